"""Writes `golden.formats.json`: the content format that vLLM detects for each official template.

vLLM's own functions are taken from its pinned source distribution, which is
fetched into the cache folder; nothing else of it is run or installed.

Usage: python3 generate_formats.py (in an environment made from requirements.v5.txt)
"""

import ast
import collections
import hashlib
import json
import sys
import tarfile

import fetch
import jinja2
import reference
from transformers.utils import chat_template_utils

PACKAGE = "vllm"
VERSION = "0.33.0"
SHA256 = "f4c33c2503d52bb411146afa9618a4f48bed68912f617e6803ac8d76e4c74112"
SOURCE = f"vllm-{VERSION}/vllm/renderers/hf.py"


def detector() -> dict:
    """The functions beneath vLLM's detection, as a namespace."""
    folder = fetch.ROOT / ".cache" / "vllm"
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / f"vllm-{VERSION}.tar.gz"
    if not archive.exists():
        fetch.download(folder, PACKAGE, VERSION)
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    if digest != SHA256:
        sys.exit(f"{archive}: sha256 is {digest}, expected {SHA256}")
    with tarfile.open(archive) as tar:
        text = tar.extractfile(SOURCE).read().decode("utf-8")
    wanted = [
        node
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef)
        and node.name.startswith(("_is_", "_iter_nodes_", "_attr_dotted"))
    ]
    namespace = {"jinja2": jinja2, "deque": collections.deque}
    module = ast.Module(body=wanted, type_ignores=[])
    exec(compile(module, SOURCE, "exec"), namespace)
    return namespace


def detect(functions: dict, template: str) -> str:
    compiled = chat_template_utils._compile_jinja_template(template)
    tree = compiled.environment.parse(template)
    try:
        next(functions["_iter_nodes_assign_content_item"](tree))
    except StopIteration:
        return "string"
    except AssertionError:
        return "string"
    return "openai"


def main() -> None:
    functions = detector()
    formats = {}
    for path in sorted(reference.TEMPLATES.glob("*.jinja")):
        try:
            formats[path.name] = detect(functions, path.read_bytes().decode("utf-8"))
        except jinja2.TemplateError:
            formats[path.name] = None
    golden = {"versions": {"vllm": VERSION}, "formats": formats}
    text = json.dumps(golden, indent=1) + "\n"
    (reference.HERE / "golden.formats.json").write_text(text, encoding="utf-8")
    print(collections.Counter(formats.values()))


if __name__ == "__main__":
    main()
