"""Writes tokens.FAMILY.jsonl: the token ids that a running vLLM makes of the chats of chats.json,
and of texts, as their number and digest.

    python3 tokens.py URL FAMILY

URL is the address of a vLLM that serves integration/vllm's model of that family. A line is
[kind, number, count, digest]: the kind of request, which of the chats or texts it is, how many ids
there are, and the start of the SHA-256 of the ids as 32-bit little-endian integers. Count and digest
are null where vLLM refuses the request.
"""

import hashlib
import json
import struct
import sys
import urllib.error
import urllib.request
from pathlib import Path

HERE = Path(__file__).parent


def expanded(value):
    """`value` with its repeated strings written out."""
    if isinstance(value, list):
        return [expanded(item) for item in value]
    if isinstance(value, dict):
        if set(value) == {"repeat"}:
            text, count = value["repeat"]
            return text * count
        return {key: expanded(item) for key, item in value.items()}
    return value


def post(url, body, refusals=(400,)):
    """The answer, or None when it is a refusal: one of these statuses."""
    data = json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code not in refusals:
            raise
        return None


def line(kind, number, ids):
    if ids is None:
        return [kind, number, None, None]
    digest = hashlib.sha256(struct.pack(f"<{len(ids)}I", *ids)).hexdigest()
    return [kind, number, len(ids), digest[:16]]


def main():
    url, family = sys.argv[1:]
    chats = expanded(json.loads((HERE / "chats.json").read_text(encoding="utf-8")))
    lines = []
    for number, chat in enumerate(chats):
        answer = post(f"{url}/tokenize", {"model": family, **chat})
        lines.append(line("chat", number, answer and answer["tokens"]))
        content = chat["messages"][-1].get("content")
        if isinstance(content, str):
            for kind, special in (("text", False), ("special", True)):
                body = {"model": family, "prompt": content, "add_special_tokens": special}
                lines.append(line(kind, number, post(f"{url}/tokenize", body)["tokens"]))
    out = HERE / f"tokens.{family}.jsonl"
    out.write_text("".join(json.dumps(item) + "\n" for item in lines), encoding="utf-8")
    refused = sum(item[2] is None for item in lines)
    print(f"{out.name}: {len(lines)} requests, {refused} refused")


if __name__ == "__main__":
    main()
