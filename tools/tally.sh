#!/usr/bin/env bash
# tally.sh COMMAND...: runs the command, adds up the "test result:" lines that cargo prints, repeats the
# lines "skipped: ...", closes with one line "N passed, N failed, N skipped", and exits as the command did.
set -uo pipefail

mkdir -p .cache
log=.cache/test.log
"$@" 2>&1 | tee "$log"
status=${PIPESTATUS[0]}
grep '^skipped: ' "$log" | sort -u
awk '
    /^test result: / {
        for (i = 2; i <= NF; i++) {
            if ($i == "passed;") passed += $(i - 1)
            if ($i == "failed;") failed += $(i - 1)
            if ($i == "ignored;") skipped += $(i - 1)
        }
    }
    END { printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped }
' "$log"
exit "$status"
