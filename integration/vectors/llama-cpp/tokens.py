"""Records the token ids that llama.cpp's server makes of the chats of ../vllm/chats.json, and of their texts.

    python3 tokens.py URL FAMILY

URL is the address of a server that serves integration/llama-cpp's model of that family. A line is
[kind, chat, length, digest], as in ../vllm/tokens.FAMILY.jsonl; length and digest are null for a chat that
the server refuses. The first line has the moment, in seconds.
"""

import importlib.util
import json
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
VLLM = HERE.parent / "vllm"

spec = importlib.util.spec_from_file_location("vllm_tokens", VLLM / "tokens.py")
vllm = importlib.util.module_from_spec(spec)
spec.loader.exec_module(vllm)


def main():
    url, family = sys.argv[1:]

    def tokens(text):
        body = {"content": text, "add_special": True, "parse_special": True}
        return vllm.post(f"{url}/tokenize", body)["tokens"]

    chats = vllm.expanded(json.loads((VLLM / "chats.json").read_text(encoding="utf-8")))
    # Templates print the day.
    lines = [["moment", int(time.time()), None, None]]
    for number, chat in enumerate(chats):
        # The server tokenizes a rendered chat so, and it leaves out what that adds when it renders.
        # What a template raises is a 500.
        answer = vllm.post(f"{url}/apply-template", chat, refusals=(400, 500))
        lines.append(vllm.line("chat", number, answer and tokens(answer["prompt"])))
        content = chat["messages"][-1].get("content")
        if isinstance(content, str):
            lines.append(vllm.line("text", number, tokens(content)))
    out = HERE / f"tokens.{family}.jsonl"
    out.write_text("".join(json.dumps(item) + "\n" for item in lines), encoding="utf-8")
    refused = sum(item[2] is None for item in lines[1:])
    print(f"{out.name}: {len(lines) - 1} requests, {refused} refused")


if __name__ == "__main__":
    main()
