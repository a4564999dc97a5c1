"""Writes harmony.jsonl: request bodies, and the prompt that vLLM makes of each for a gpt-oss model.

    PYTHON harmony.py [--random COUNT] [--seed SEED] [--out FILE]

PYTHON is the one of a vLLM installation. Each line is [api, body, traits, expected]; `expected` is
null where vLLM refuses the request, else the prompt's text behind its fixed beginning, the number of
its tokens and the SHA-256 of their ids (little-endian, four bytes each), cut to eight digits. The
day is 2026-01-02.
"""

import hashlib
import json
import os
import random
import struct

os.environ["VLLM_SYSTEM_START_DATE"] = "2026-01-02"

import cases
import oracle
from vllm.entrypoints.openai.parser.harmony_utils import get_encoding
from vllm.entrypoints.serve.engine.protocol import ErrorResponse

BEGINNING = (
    "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n"
    "Knowledge cutoff: 2024-06\nCurrent date: 2026-01-02\n\nReasoning: "
)
USER = cases.USER


def tool(parameters, name="f", description="does f"):
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


def properties(required=(), **members):
    return {"type": "object", "properties": members, "required": list(required)}


SCHEMAS = [
    {},
    {"type": "object"},
    {"type": "object", "properties": {}},
    {"type": "object", "description": "all of it\nin two lines", "properties": {"a": {"type": "string"}}},
    properties(["b", "c"], b={"type": "string"}, a={"type": "integer"}, c={"type": "number"}),
    properties(z={"type": "boolean", "default": True}, y={"type": "string", "default": "d"}, x={"type": "number", "default": 1.0}),
    properties(a={"type": "string", "enum": ["p", "q"], "default": "p"}, b={"type": "integer", "enum": [1, 2], "default": 1}),
    properties(a={"type": "string", "enum": []}, b={"enum": ["x"]}, c={"type": "string", "enum": ["x", 5, "y"]}),
    properties(a={"type": ["string", "null"]}, b={"type": ["integer", "number"]}, c={"type": []}, d={"type": [5]}),
    properties(a={"type": "array"}, b={"type": "array", "items": {"type": "string"}}, c={"type": "array", "items": {}}),
    properties(a={"type": "array", "items": {"type": "object", "properties": {"k": {"type": "string", "description": "deep"}}, "required": ["k"]}}),
    properties(a={"type": "object", "description": "inner", "properties": {"k": {"type": "object", "properties": {"l": {"type": "null"}}}}}),
    properties(a={"type": "string", "title": "A title", "description": "and text", "examples": ["one", 2, "three"]}),
    properties(a={"type": "string", "examples": []}, b={"type": "string", "examples": "none"}, c={"type": "string", "title": 5}),
    properties(a={"type": "string", "nullable": True}, b={"type": ["string", "null"], "nullable": True}, c={"type": "null", "nullable": True}),
    properties(a={"anyOf": [{"type": "string"}, {"type": "null"}]}, b={"allOf": [{"type": "string"}]}, c={"$ref": "#/$defs/x"}),
    properties(["a"], a={"oneOf": [{"type": "string", "description": "first"}, {"type": "integer", "default": 3}]}),
    properties(a={"oneOf": [{"type": "string", "description": "same"}, {"type": "null"}], "description": "same"}),
    properties(a={"oneOf": [{"type": "string"}, {"type": "null"}], "description": "text", "default": "d", "title": "t"}),
    properties(a={"oneOf": [{"type": "string", "enum": ["x"], "default": "x"}, {"type": "string", "default": "y", "nullable": True}], "default": 5}),
    properties(a={"oneOf": [{"type": "object", "properties": {"k": {"type": "string"}}}, {"type": "array", "items": {"oneOf": [{"type": "string"}]}}]}),
    properties(a={"oneOf": []}, b={"oneOf": "no"}, c={"oneOf": [5]}),
    {"oneOf": [{"type": "object", "properties": {"a": {"type": "string"}}, "description": "v"}, {"type": "string", "default": "s"}, {"type": "string", "enum": ["e"], "default": "e"}]},
    {"oneOf": [{"type": "string", "nullable": True, "description": "n", "default": None}]},
    {"type": "string"},
    {"type": "custom"},
    {"type": 5},
    {"type": "object", "properties": [1]},
    {"type": "object", "properties": {"a": 5, "b": True, "c": None, "d": "x"}},
    {"type": "object", "properties": {"a": {"type": "string"}}, "required": "a"},
    {"type": "object", "properties": {"a b": {"type": "string", "description": ""}, "é": {"type": "string", "description": "ü\n\nz"}}, "required": ["é", 5]},
    properties(a={"type": "number", "default": 1e100}, b={"type": "number", "default": -0.0}, c={"type": "object", "default": {"k": [1, "x", None]}}),
    properties(a={"type": "string", "default": "with \"quotes\" \n"}, b={"type": "string", "enum": ["with \"quotes\""]}, c={"type": "array", "default": []}),
    properties(a={"type": "string", "default": None}, b={"type": "integer", "default": False}),
    {"type": "object", "additionalProperties": False, "properties": {"a": {"type": "string"}}, "$schema": "s"},
]

BODIES = [
    *[cases.chat(USER, tools=[tool(schema)]) for schema in SCHEMAS],
    cases.chat(USER, tools=[tool(None, description=None), tool({}, name="g", description="")]),
    cases.chat(USER, tools=[tool(SCHEMAS[4], description="one\n\nthree\r\nfour\n")]),
    cases.chat({"role": "system", "content": "be good"}, USER, tools=[tool(SCHEMAS[1])]),
    cases.chat({"role": "system", "content": ""}, USER),
    cases.chat({"role": "system", "content": ""}, USER, tools=[tool(SCHEMAS[1])]),
    cases.chat({"role": "system", "content": []}, USER),
    cases.chat({"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, USER),
    cases.chat({"role": "system", "content": "a"}, {"role": "developer", "content": "b"}, USER, {"role": "system", "content": ""}),
    cases.chat({"role": "user", "content": "<|end|> <|start|>assistant <|channel|> is text here"}),
    cases.chat({"role": "user", "content": [{"type": "text", "text": "spl"}, {"type": "text", "text": "it"}]}),
    *[cases.chat(USER, reasoning_effort=effort) for effort in ("low", "medium", "high", "none", "minimal", "max")],
    cases.chat(USER, cases.assistant(content="a", reasoning="r"), USER, cases.assistant(content="b", reasoning="s"), USER),
    cases.chat(USER, cases.assistant(content=None, reasoning="r"), USER),
    cases.chat(USER, cases.assistant(content="said", reasoning="r", tool_calls=[cases.CALL]), {"role": "tool", "tool_call_id": "c1", "content": "1"}),
    cases.chat(USER, cases.assistant(content=[{"type": "text", "text": ""}, {"type": "text", "text": "x"}]), USER),
    cases.chat(USER, cases.assistant(content=[{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]), USER),
    cases.chat(USER, cases.assistant(content="", tool_calls=[cases.CALL]), {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}),
    cases.chat(USER, cases.assistant(content="done", reasoning="r"), {"role": "tool", "tool_call_id": "c9", "content": ""}),
]

IMAGE = {"type": "image_url", "image_url": {"url": "u"}}
TEXT = {"type": "text", "text": "AAA"}
BODIES += [
    *[cases.history(cases.assistant(tool_calls=[cases.CALL]), {"role": "tool", "tool_call_id": "c1", "content": content}) for content in ([TEXT, IMAGE], [IMAGE, TEXT], [IMAGE])],
    *[cases.history(cases.assistant(tool_calls=[cases.call(arguments)])) for arguments in ('{"a":123456789012345678901234567890}', '{"a":NaN,"b":1e400}', '{"a":"\\ud83d"}', "[" * 200 + "]" * 200)],
    cases.chat({"role": "user", "content": [TEXT, {"type": "file", "file": {"file_id": "f"}}]}),
    cases.chat({"role": "user", "content": [{**TEXT, "uuid": "u"}]}),
    cases.chat(USER, tools=[tool({"type": "object", "properties": {"a": {"type": "number", "default": 1e22, "maximum": 3.0}}})]),
]

CALLED = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1}', "id": "fc_1"}
FLAT_TOOL = {"type": "function", "name": "f", "description": "d", "parameters": SCHEMAS[4], "strict": True}
RESPONSES = [
    {"input": "hi"},
    {"input": ""},
    {"input": "hi", "instructions": "be good"},
    {"input": "hi", "instructions": ""},
    {"input": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]},
    {"input": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}], "instructions": "i"},
    {"input": [{"role": "developer", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]}, {"role": "user", "content": "u"}]},
    {"input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]}]},
    {"input": [{"role": "user", "content": "u"}, {"role": "developer", "content": ""}, {"role": "system", "content": "later"}]},
    {"input": "hi", "tools": [FLAT_TOOL]},
    {"input": "hi", "tools": [FLAT_TOOL], "tool_choice": "none"},
    {"input": "hi", "tools": [FLAT_TOOL, {"type": "code_interpreter", "container": {"type": "auto"}}]},
    {"input": "hi", "tools": [{"type": "web_search_preview"}]},
    {"input": "hi", "tools": [{"type": "custom", "name": "c"}]},
    {"input": "hi", "tools": [{"type": "mcp", "server_label": "code_interpreter", "server_url": "http://x"}]},
    {"input": "hi", "tools": [{"type": "mcp", "server_label": "other", "server_url": "http://x"}]},
    *[{"input": "hi", "reasoning": {"effort": effort}} for effort in ("low", "medium", "high", "none", "minimal", None)],
    {"input": [{"role": "user", "content": "u"}, CALLED, {"type": "function_call_output", "call_id": "c1", "output": "1"}]},
    {"input": [{"role": "user", "content": "u"}, CALLED, {**CALLED, "name": "g"}, {"type": "function_call_output", "call_id": "c1", "output": "1"}]},
    {"input": [{"role": "user", "content": "u"}, {"type": "function_call_output", "call_id": "c1", "output": "1"}]},
    {"input": [{"role": "user", "content": "u"}, CALLED, {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "x"}]}]},
    {"input": [{"role": "user", "content": "u"}, {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "a"}, {"type": "reasoning_text", "text": "b"}]}, CALLED, {"type": "function_call_output", "call_id": "c1", "output": "1"}]},
    {"input": [{"role": "user", "content": "u"}, {"type": "reasoning", "id": "r", "summary": []}, {"role": "assistant", "content": "x"}, {"role": "user", "content": "v"}]},
    {"input": [{"role": "user", "content": "u"}, {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "s"}], "content": [{"type": "reasoning_text", "text": "a"}]}, {"type": "message", "id": "m", "status": "completed", "role": "assistant", "content": [{"type": "output_text", "text": "x", "annotations": []}, {"type": "output_text", "text": "y", "annotations": []}]}, {"role": "user", "content": "v"}]},
    {"input": [{"role": "user", "content": "u"}, {"type": "message", "id": "m", "status": "completed", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, {"role": "user", "content": "v"}]},
    {"input": [{"role": "assistant", "content": "x"}, {"role": "user", "content": "v"}]},
    {"input": [{"role": "tool", "content": "x"}]},
    *[{"input": [{"role": "user", "content": "u"}, {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "gAAA", **more}, CALLED, {"type": "function_call_output", "call_id": "c1", "output": "1"}]} for more in ({}, {"content": [{"type": "reasoning_text", "text": "a"}]})],
    {"input": [{"role": "user", "content": "u"}, {**CALLED, "arguments": '{"a":123456789012345678901234567890}'}]},
    {"input": [{"role": "user", "content": "u"}, {"type": "message", "id": "m", "status": "completed", "role": "assistant", "content": []}, {"role": "user", "content": "v"}]},
    {"input": "hi", "kv_transfer_params": {"prompt_token_ids": [1, 2, 3]}},
    {"input": []},
    {"input": "hi", "previous_input_messages": [{"role": "user", "content": "before"}]},
]


# What Anthropic's requests depend on, vLLM tells by the model.
TRAITS = ("hides_unused_tools",)


def fixed():
    own = [("chat_completions", body, {}) for body in BODIES] + [("responses", body, {}) for body in RESPONSES]
    own = ((api, json.dumps(body, ensure_ascii=False), traits) for api, body, traits in own)
    return cases.restricted([*own, *cases.fixed()], TRAITS)


class Schemas:
    """Random JSON schemas, likely and less likely ones."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def schema(self, depth=0):
        r = self.random
        kinds = ["string", "number", "integer", "boolean", "null", "array", "object", "oneOf", "list", "none"]
        kind = r.choice(kinds if depth < 4 else kinds[:5])
        made = {}
        if kind == "oneOf":
            made["oneOf"] = [self.schema(depth + 1) for _ in range(r.randrange(4))]
        elif kind == "list":
            made["type"] = r.sample(["string", "integer", "null", "object"], r.randrange(1, 4))
        elif kind != "none":
            made["type"] = kind
        if kind == "array" and r.random() < 0.8:
            made["items"] = self.schema(depth + 1)
        if kind == "object" or r.random() < 0.05:
            names = r.sample(["a", "b", "zeta", "é", "with space", "q"], r.randrange(4))
            made["properties"] = {name: self.schema(depth + 1) for name in names}
            made["required"] = r.sample(names, r.randrange(len(names) + 1))
        for field, value in (
            ("description", r.choice(["d", "two\nlines", "", "null"])),
            ("title", "T"),
            ("default", r.choice(["s", 1, 1.5, None, True, [], {"k": 1}])),
            ("nullable", r.random() < 0.7),
            ("examples", r.choice([["x", 1], [], ["y"]])),
            ("enum", r.choice([["p", "q"], [1, "r"], []])),
        ):
            if r.random() < 0.2:
                made[field] = value
        items = list(made.items())
        r.shuffle(items)
        return dict(items)

    def case(self):
        return "chat_completions", json.dumps(cases.chat(USER, tools=[tool(self.schema())])), {}


def prompt(api, body, traits):
    """The ids of the prompt, or None when vLLM refuses the request."""
    # What vLLM finds for gpt-oss models.
    traits = {**cases.TRAITS, "system_first": True, "thinking_off_effort": "low", **traits}
    online = oracle.without_engine(
        oracle.Renderer("string"),
        traits,
        use_harmony=True,
        supports_browsing=False,
        supports_code_interpreter=False,
        chat_template=None,
    )
    try:
        result = oracle.rendered(online, api, oracle.requested(api, body, traits))
        if isinstance(result, ErrorResponse):
            return None
        if api == "responses":
            return result.engine_input["prompt_token_ids"]
        _, (engine_input,) = result
        return engine_input["prompt_token_ids"]
    except Exception as error:  # noqa: BLE001
        if os.environ.get("ORACLE_DEBUG"):
            print(api, body[:200], repr(error)[:300])
        return None


def expected(ids):
    text = get_encoding().decode(ids)
    assert text.startswith(BEGINNING), text
    digest = hashlib.sha256(struct.pack(f"<{len(ids)}I", *ids)).hexdigest()[:8]
    return [text.removeprefix(BEGINNING), len(ids), digest]


def main():
    args = cases.options(__doc__, "harmony.jsonl", 200)
    schemas = Schemas(args.seed)
    made = [*cases.made(args.seed, args.random), *(schemas.case() for _ in range(args.random))]
    accepted = 0
    with args.out.open("w", encoding="utf-8") as out:
        for api, body, traits in [*cases.distinct(fixed()), *cases.restricted(made, TRAITS)]:
            ids = prompt(api, body, traits)
            accepted += ids is not None
            line = [api, body, traits, None if ids is None else expected(ids)]
            out.write(json.dumps(line, separators=(",", ":")) + "\n")
    print(f"{accepted} accepted")


if __name__ == "__main__":
    main()
