"""Writes `golden.<major version>.json`: what transformers renders, as digests.

For every official template and every conversation: `[digest, bytes]`, the first
32 hexadecimal digits of the prompt's SHA-256 and its length in UTF-8, or `null`
where transformers raises. The prompts themselves hold other people's templates,
so they are not kept; `show.py` prints one.

Usage: python3 generate.py (in an environment made from requirements.<version>.txt)
"""

import hashlib
import json

import jinja2
import reference
import transformers


def main() -> None:
    conversations = reference.conversations()
    golden = {}
    for path in sorted(reference.TEMPLATES.glob("*.jinja")):
        template = path.read_bytes().decode("utf-8")
        results = {}
        for conversation in conversations:
            try:
                prompt = reference.render(template, conversation).encode("utf-8")
                digest = hashlib.sha256(prompt).hexdigest()[:32]
                results[conversation["name"]] = [digest, len(prompt)]
            except Exception:
                results[conversation["name"]] = None
        golden[path.name] = results
        rendered = sum(result is not None for result in results.values())
        print(f"{path.name}: {rendered} of {len(results)} rendered")
    header = {"transformers": transformers.__version__, "jinja2": jinja2.__version__}
    lines = [f"  {json.dumps(name)}: {json.dumps(golden[name])}" for name in golden]
    text = "{\n" + f'  "versions": {json.dumps(header)},\n' + ",\n".join(lines) + "\n}\n"
    target = reference.HERE / f"golden.{reference.major_version()}.json"
    target.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
