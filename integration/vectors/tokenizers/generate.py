#!/usr/bin/env python3
"""Writes the golden vectors: texts.jsonl, and for each tokenizer what the reference makes of them.

Run it in a virtual environment with requirements.txt, after fetch.py. Tokenizers that are not
cached keep the vectors that they have.

NAME.tsv has one line a text: its number in texts.jsonl, the count of its ids without special
tokens, and the xxh3-64 of the ids as 32-bit little-endian numbers, without and with special
tokens. tests/golden.rs of warmpath-bundle checks them.
"""

import json
import pathlib
import struct

import tokenizers
import xxhash

from texts import texts

HERE = pathlib.Path(__file__).resolve().parent
CACHE = HERE.parents[2] / ".cache" / "tokenizers"


def digest(ids):
    return xxhash.xxh3_64_hexdigest(struct.pack(f"<{len(ids)}I", *ids))


def main():
    corpus = list(texts())
    with open(HERE / "texts.jsonl", "w", encoding="ascii") as file:
        for parts in corpus:
            file.write(json.dumps(parts, separators=(",", ":")) + "\n")
    print(f"{len(corpus)} texts, reference tokenizers {tokenizers.__version__}")
    for source in json.loads((HERE / "sources.json").read_text()):
        path = CACHE / source["name"] / "tokenizer.json"
        if not path.is_file():
            print(f"{source['name']}: not cached, left as it is")
            continue
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        with open(HERE / f"{source['name']}.tsv", "w", encoding="ascii") as file:
            for number, parts in enumerate(corpus):
                text = "".join(piece * count for piece, count in parts)
                bare = tokenizer.encode(text, add_special_tokens=False).ids
                special = tokenizer.encode(text, add_special_tokens=True).ids
                file.write(f"{number}\t{len(bare)}\t{digest(bare)}\t{digest(special)}\n")
        print(f"{source['name']}: done")


if __name__ == "__main__":
    main()
