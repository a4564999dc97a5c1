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
import urllib.error
import urllib.request
from pathlib import Path

HERE = Path(__file__).parent
VLLM = HERE.parent / "vllm"

spec = importlib.util.spec_from_file_location("vllm_tokens", VLLM / "tokens.py")
vllm = importlib.util.module_from_spec(spec)
spec.loader.exec_module(vllm)


def post(url, body):
    """The answer, or None when it is a refusal: a template's, or a request model's."""
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code not in (400, 500):
            raise
        return None


def main():
    url, family = sys.argv[1:]

    def tokens(text, special):
        body = {"content": text, "add_special": special, "parse_special": True}
        return post(f"{url}/tokenize", body)["tokens"]

    chats = vllm.expanded(json.loads((VLLM / "chats.json").read_text(encoding="utf-8")))
    # Templates print the day.
    lines = [["moment", int(time.time()), None, None]]
    for number, chat in enumerate(chats):
        # The server tokenizes a rendered chat so, and it leaves out what that adds when it renders.
        answer = post(f"{url}/apply-template", chat)
        lines.append(vllm.line("chat", number, answer and tokens(answer["prompt"], True)))
        content = chat["messages"][-1].get("content")
        if isinstance(content, str):
            lines.append(vllm.line("text", number, tokens(content, True)))
    out = HERE / f"tokens.{family}.jsonl"
    out.write_text("".join(json.dumps(item) + "\n" for item in lines), encoding="utf-8")
    refused = sum(item[2] is None for item in lines[1:])
    print(f"{out.name}: {len(lines) - 1} requests, {refused} refused")


if __name__ == "__main__":
    main()
