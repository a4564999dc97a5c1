#!/usr/bin/env bash
# Serves one of the tiny models until it is stopped: serve.sh DIR FAMILY PORT [vLLM's own flags ...].
# DIR is where setup.sh installed vLLM and models.py made the models.
set -euo pipefail
dir=${1:?usage: serve.sh DIR FAMILY PORT} family=$2 port=$3
shift 3
# Models that speak Harmony have a parser of their own, and vLLM would tell from a real DeepSeek V4 how to
# write its chats.
parser=hermes mode=auto
[ "$family" != gptoss ] || parser=openai
[ "$family" != deepseek_v4 ] || mode=deepseek_v4
[ "$family" != mistral_tekken ] || mode=mistral
# One thread leaves the rest of a small machine to what is measured.
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 VLLM_CPU_KVCACHE_SPACE=1 \
	VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS=1 PYTHONHASHSEED=0 VLLM_SERVER_DEV_MODE=1
exec "$dir/venv/bin/vllm" serve "$dir/models/$family" --served-model-name "$family" "$family-alias" \
	--host 127.0.0.1 --port "$port" --load-format dummy --dtype bfloat16 --max-model-len 65536 \
	--block-size 32 --enable-prefix-caching --enforce-eager --enable-prompt-tokens-details \
	--enable-scale-out --enable-auto-tool-choice --tool-call-parser $parser --tokenizer-mode $mode "$@"
