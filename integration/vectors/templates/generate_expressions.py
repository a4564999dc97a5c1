"""Writes `golden.expressions.json`: what Jinja2, as transformers sets it up, renders for small templates.

In: `expressions.json`, templates that each show one difference between Python
and other engines, and the variables they share. Out: for each template its
output, or `null` where rendering raises or where the output holds the address
of an object, which has no defined text.

Usage: python3 generate_expressions.py (in an environment made from requirements.v5.txt)
"""

import json
import re

import jinja2
import reference
import transformers


def main() -> None:
    source = json.loads((reference.HERE / "expressions.json").read_text(encoding="utf-8"))
    conversation = {
        "messages": [{"role": "user", "content": "x"}],
        "kwargs": source["variables"],
    }
    outputs = []
    for template in source["templates"]:
        try:
            output = reference.render(template, conversation)
            output.encode("utf-8")
        except Exception:
            output = None
        if output is not None and re.search(r"0x[0-9a-f]{8,}", output):
            output = None
        outputs.append(output)
    header = {"transformers": transformers.__version__, "jinja2": jinja2.__version__}
    golden = {"versions": header, "outputs": outputs}
    text = json.dumps(golden, ensure_ascii=False, indent=0)
    (reference.HERE / "golden.expressions.json").write_text(text + "\n", encoding="utf-8")
    raised = sum(output is None for output in outputs)
    print(f"{len(outputs)} templates, {raised} of them raise")


if __name__ == "__main__":
    main()
