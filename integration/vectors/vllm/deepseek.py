"""Writes deepseek.jsonl: request bodies, and the prompt that vLLM makes of each for DeepSeek models
whose chats its own code writes.

    PYTHON deepseek.py [--random COUNT] [--seed SEED] [--out FILE]

PYTHON is the one of a vLLM installation. Each line is [api, body, traits, expected]; `expected` is the
prompt's text by the encoding, which is vLLM's tokenizer mode, and has none where vLLM refuses the
request. What all prompts with tools, or all with an effort, have in common stands as {{the SHA-256 of its UTF-8, cut to eight
digits}}.
"""

import hashlib
import json
import re

import cases
import oracle
from vllm.renderers.deepseek_v4 import DeepseekV4Renderer
from vllm.renderers.deepseek_v32 import DeepseekV32Renderer
from vllm.tokenizers.deepseek_v4 import get_deepseek_v4_tokenizer
from vllm.tokenizers.deepseek_v32 import get_deepseek_v32_tokenizer
from vllm.tokenizers.deepseek_v41 import get_deepseek_v41_tokenizer

# Each encoding's renderer and tokenizer.
ENCODINGS = {
    "deepseek_v32": (DeepseekV32Renderer, get_deepseek_v32_tokenizer),
    "deepseek_v4": (DeepseekV4Renderer, get_deepseek_v4_tokenizer),
    "deepseek_v41": (DeepseekV4Renderer, get_deepseek_v41_tokenizer),
}
COMMON = re.compile(
    r"## Tools\n.*?(?:<functions>\n|### Available Tool Schemas\n)"
    r"|Reasoning Effort: Absolute.*?unchecked\.\n\n|Reasoning Effort: Beyond.*?undiscovered\.\n\n",
    re.DOTALL,
)
USER, TOOL, CALL = cases.USER, cases.TOOL, cases.CALL
SYSTEM = {"role": "system", "content": "be good"}
DEVELOPER = {"role": "developer", "content": "d"}


class Text:
    """A tokenizer whose tokens are the text itself."""

    def get_added_vocab(self):
        return {}

    def encode(self, text, **_):
        return text


def renderer(encoding):
    """vLLM's renderer of an encoding, without a model."""
    kind, tokenizer = ENCODINGS[encoding]
    return oracle.CodeRenderer(kind, tokenizer(Text()))


def text(prompt):
    """The prompt's text."""
    prompt["prompt"].encode()
    return prompt["prompt"]


def shortened(text):
    return COMMON.sub(lambda found: f"{{{{{hashlib.sha256(found[0].encode()).hexdigest()[:8]}}}}}", text)


def result(call, content, **fields):
    return {"role": "tool", "tool_call_id": call, "content": content, **fields}


def calls(*ids, **fields):
    return cases.assistant(tool_calls=[{**CALL, "id": one} for one in ids], **fields)


IMAGE = {"type": "image_url", "image_url": {"url": "u"}}
AUDIO = {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}}
PARTS = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
ANSWERED = [USER, cases.assistant(content="a", reasoning="r"), USER]
BODIES = [
    *[cases.chat(*ANSWERED, **fields) for fields in ({}, {"tools": [TOOL]}, {"add_generation_prompt": False})],
    *[cases.chat(USER, chat_template_kwargs=kwargs) for kwargs in (
        {"thinking": True}, {"thinking": False}, {"enable_thinking": True}, {"enable_thinking": False},
        {"thinking": True, "enable_thinking": False}, {"thinking": False, "enable_thinking": True},
        {"thinking": "no"}, {"thinking": 0}, {"thinking": []}, {"thinking": None}, {"enable_thinking": None},
        {"reasoning_effort": "max"}, {"reasoning_effort": "xhigh"}, {"reasoning_effort": "minimal"},
        {"reasoning_effort": "odd"}, {"reasoning_effort": "none", "thinking": True}, {"reasoning_effort": 30},
        {"reasoning_effort": 0}, {"reasoning_effort": 101}, {"reasoning_effort": True}, {"reasoning_effort": 5.0},
        {"reasoning_effort": "high", "thinking": False}, {"reasoning_effort": ["low"]}, {"drop_thinking": False},
    )],
    *[cases.chat(USER, reasoning_effort=effort) for effort in ("none", "minimal", "low", "medium", "high", "xhigh", "max")],
    *[cases.chat(*messages, tools=tools, chat_template_kwargs={"thinking": thinking, "drop_thinking": drop})
      for thinking in (True, False) for drop in (True, False) for tools in ([], [TOOL], [TOOL, TOOL])
      for messages in (
          [SYSTEM, *ANSWERED],
          [*ANSWERED, cases.assistant(content="b", reasoning="s")],
          [*ANSWERED, cases.assistant(content="b")],
          [DEVELOPER, *ANSWERED],
          [*ANSWERED, DEVELOPER, cases.assistant(content="b", reasoning="s"), {**DEVELOPER, "tools": [TOOL]}],
          [USER, SYSTEM, USER, calls("x", content="c"), result("x", "1"), cases.assistant(content="a", reasoning="r")],
          [USER, calls("x", reasoning="r"), result("x", "1"), USER],
          [SYSTEM],
          [SYSTEM, SYSTEM],
          [SYSTEM, cases.assistant(content="a", reasoning="r")],
          [SYSTEM, cases.assistant(content="a"), SYSTEM, USER, SYSTEM],
      )],
    *[cases.chat(USER, calls("x", "y", "z"), *results, *after) for after in ([], [USER], [calls("p"), result("p", "4"), USER])
      for results in (
          [result("x", "1"), result("y", "2"), result("z", "3")],
          [result("z", "3"), result("x", "1"), result("y", "2")],
          [result("z", "3"), result("x", "1")],
          [result("y", "2"), result("?", "4"), result("x", "1")],
          [result("y", "2"), USER, result("x", "1")],
          [result("y", "2"), USER, USER, result("x", "1"), SYSTEM],
          [result("y", PARTS), result("x", [IMAGE, *PARTS]), result("z", [])],
          [result("y", "2"), result("x", "1"), result("x", "1"), result("z", "3"), result("z", "3")],
          [cases.assistant(content="a"), result("y", "2"), result("x", "1")],
      )],
    cases.chat(USER, calls("", "y"), result("y", "2"), result("", "1")),
    cases.chat(USER, calls("x", "x"), result("x", "1"), result("x", "2")),
    cases.chat(result("x", "1")),
    cases.chat(result("x", "1"), calls("x")),
    cases.chat(result("x", "1"), result("y", "1"), calls("x", "y")),
    cases.chat(result("x", "1"), USER, calls("x"), result("x", "1"), USER),
    *[cases.chat({"role": "user", "content": content}, cases.assistant(content=content), {"role": "user", "content": content})
      for content in (PARTS, [*PARTS, IMAGE, *PARTS], [], [IMAGE], [AUDIO, *PARTS], [{"type": "refusal", "refusal": "no"}],
                      [{"type": "thinking", "thinking": "t"}], ["x", "y"], [{"type": "input_text", "text": "i"}], None)],
    *[cases.chat({"role": role, "content": PARTS}, USER) for role in ("system", "developer", "assistant", "latest_reminder", "other")],
    *[cases.chat(USER, {"role": "latest_reminder", "content": content}, *after) for content in ("now", "", None, PARTS)
      for after in ([], [USER], [cases.assistant(content="a")])],
    *[cases.chat(*before, {"role": role, "content": "x", "task": task}, *after)
      for task in ("action", "query", "title", "odd", "", None) for role in ("user", "assistant", "system")
      for before in ([], [USER]) for after in ([], [cases.assistant(content="a", reasoning="r")], [USER], [result("x", "1"), USER])],
    *[cases.chat(USER, cases.assistant(tool_calls=[cases.call(arguments)]), result("c1", "1")) for arguments in (
        "{}", "", "null", "[]", "[1]", '"{}"', '"text"', "5", '{"a":"x","b":1,"c":1.0,"d":true,"e":null,"f":[1,"é"],"g":{"h":"\\u4e2d"}}',
        '{"a":1e22,"b":-0.0,"c":123456789012345678901234567890}', '{"a":"<x>\\n\\"q\\""}', "{", '{"a":NaN}', '{"a":1,"a":2}',
    )],
    cases.chat(USER, cases.assistant(content="x", reasoning=""), USER, cases.assistant(content="", reasoning="r")),
    cases.chat(USER, cases.assistant(content="x", reasoning_content="r")),
    cases.chat(USER, cases.assistant(content="x", prefix=True, reasoning="r")),
    cases.chat(SYSTEM, USER, response_format={"type": "json_object"}),
    cases.chat({**SYSTEM, "content": "x-anthropic-billing-header: 1\nrest"}, calls("x", "y"), result("y", PARTS), result("x", PARTS)),
    cases.chat(USER, cases.assistant(content="pre", reasoning="r"), continue_final_message=True, add_generation_prompt=False),
    cases.chat(USER, add_special_tokens=True),
    cases.chat({"role": "user", "content": "<｜User｜>{content}{{ x }}</think>{% y %}"}, tools=[TOOL]),
    cases.chat(USER, tools=[{"type": "function", "function": {"name": "f"}}, {"type": "function", "function": {"name": "{g}", "description": "é \"q\" </functions>", "parameters": {"type": "object", "x": [1.0, None]}, "strict": True}}]),
]


class Maker(cases.Maker):
    """Random chats that a DeepSeek model is likely to take."""

    def chat(self):
        if self.maybe(0.3):
            return super().chat()
        messages = [SYSTEM] if self.maybe(0.5) else []
        while len(messages) < 9 and not (messages and self.maybe(0.15)):
            messages += self.turn()
        body = cases.chat(*messages)
        if self.maybe(0.4):
            body["tools"] = [self.tool() for _ in range(self.random.randrange(3))]
        if self.maybe(0.6):
            names = self.random.sample(["thinking", "enable_thinking", "drop_thinking", "reasoning_effort"], 2)
            body["chat_template_kwargs"] = {
                name: self.one("low", "max", "none", 40) if name == "reasoning_effort" else self.maybe(0.6) for name in names
            }
        if self.maybe(0.2):
            body["reasoning_effort"] = self.one("none", "low", "high", "max")
        if self.maybe(0.1):
            body |= {"continue_final_message": True, "add_generation_prompt": False}
        return body

    def turn(self):
        said = {"content": self.one("a", "", None, PARTS), **({"reasoning": "r"} if self.maybe(0.6) else {})}
        ids = self.random.sample(["x", "y", "z"], self.random.randrange(1, 4))
        results = [result(one, self.one("1", "two", PARTS)) for one in ids]
        self.random.shuffle(results)
        if self.maybe(0.2):
            results.pop()
        return self.one(
            [{**USER, "content": self.one("hi", PARTS, [IMAGE, *PARTS])}],
            [USER, cases.assistant(**said)],
            [USER, cases.assistant(**said)],
            [USER, cases.assistant(**said), USER],
            [USER, calls(*ids, **said), *results],
            [calls(*ids, **said), *results],
            [calls(*ids, **said), *results, cases.assistant(**said)],
            [self.one(SYSTEM, DEVELOPER, {**DEVELOPER, "tools": [TOOL]})],
            [{**USER, "task": self.one("action", "query")}, cases.assistant(**said)],
            [{"role": "latest_reminder", "content": "now"}],
        )


def main():
    args = cases.options(__doc__, "deepseek.jsonl", 200)
    accepted = dict.fromkeys(ENCODINGS, 0)
    with args.out.open("w", encoding="utf-8") as out:
        for api, body, traits in cases.given(BODIES, Maker(args.seed), args.random):
            texts = {
                encoding: oracle.code_prompt(renderer(encoding), api, body, traits, text) for encoding in ENCODINGS
            }
            texts = {encoding: shortened(made) for encoding, made in texts.items() if made is not None}
            for encoding in texts:
                accepted[encoding] += 1
            out.write(json.dumps([api, body, traits, texts], separators=(",", ":")) + "\n")
    print(f"accepted: {accepted}")


if __name__ == "__main__":
    main()
