#!/usr/bin/env bash
# Says which tests in a real Envoy could not run on this machine, and why; silent if all could.
set -euo pipefail

if ! [ -x .cache/promtool/promtool ]; then
    echo 'skipped: promtool on the metrics (no promtool: tools/fetch-promtool.sh says why)'
fi
if ! command -v chromium >/dev/null; then
    echo 'skipped: the status page in a browser (no chromium)'
elif ! command -v chromedriver >/dev/null; then
    echo 'skipped: the status page in a browser (no chromedriver)'
fi
