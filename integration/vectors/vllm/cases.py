"""Request bodies to try on vLLM's request models: the ones that somebody thought of, and as many
random ones as asked for.
"""

import argparse
import json
import random
from pathlib import Path

TRAITS = {
    "content_format": "string",
    "developer": False,
    "system_first": False,
    "thinking_off_effort": "none",
    "hides_unused_tools": False,
    "default_kwargs": {},
}
OPENAI = {"content_format": "openai"}

USER = {"role": "user", "content": "hi"}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "does f",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}


def chat(*messages, **fields):
    return {"messages": list(messages), **fields}


def assistant(**fields):
    return {"role": "assistant", **fields}


def call(arguments, **fields):
    return {**CALL, "function": {"name": "f", "arguments": arguments}, **fields}


def history(*messages):
    """A conversation with something before and after."""
    return chat(USER, *messages, {"role": "user", "content": "and?"})


CHAT_BODIES = [
    # Roles and content.
    chat(USER),
    chat(),
    chat({"content": "x", "role": "user", "unknown": 1, "name": "n"}),
    chat({"role": "user"}),
    chat({"role": "user", "content": None}),
    chat({"role": "user", "content": ""}),
    chat({"role": "user", "content": []}),
    chat({"role": "user", "content": 5}),
    chat({"role": "user", "content": "x", "name": None}),
    chat({"role": "user", "content": "x", "name": ""}),
    chat({"role": "user", "content": "x", "task": "t"}),
    chat({"role": "system", "content": "be good"}, USER),
    chat({"role": "system", "content": ["a", "b"]}, USER),
    chat({"role": "weird", "content": "x"}),
    chat({"role": "function", "content": "x", "name": "f"}),
    chat({"role": 5, "content": "x"}),
    chat({"role": "user", "content": "nul \0 tab \t é 中 \U0001f600"}),
    chat(USER, USER, USER),
    # Developers.
    chat({"role": "developer", "content": "d"}, USER),
    chat({"role": "developer", "content": "d", "tools": [TOOL]}, USER),
    chat({"role": "developer", "content": "d", "tools": [{"type": "function", "function": {"strict": True, "name": "f", "x": 1}, "y": 2}]}, USER),
    chat({"role": "developer", "content": "d", "tools": [{"type": "function", "function": {"parameters": None, "name": "f"}}]}, USER),
    chat({"role": "developer", "content": "d", "tools": [{"type": "function", "function": {"parameters": {}, "name": "f", "description": None}}, TOOL]}, USER),
    chat({"role": "system", "content": "s"}, {"role": "developer", "content": "d"}, USER),
    chat(USER, {"role": "developer", "content": "d"}, {"role": "system", "content": "s", "name": "n"}),
    chat({"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, USER, {"role": "developer", "content": ""}),
    # Parts.
    chat({"role": "user", "content": ["a", "b"]}),
    chat({"role": "user", "content": ["a", "", "b"]}),
    chat({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": ""}, {"text": "b", "type": "text"}]}),
    chat({"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}, "b": None}]}),
    chat({"role": "user", "content": [{"type": "text", "text": None}]}),
    chat({"role": "user", "content": [{"text": "a"}]}),
    chat({"role": "user", "content": [{"type": "input_text", "text": "a"}]}),
    chat({"role": "user", "content": [{"type": "nonsense", "text": "a"}]}),
    chat({"role": "user", "content": [{"type": "refusal", "refusal": "no"}]}),
    chat({"role": "user", "content": [{"type": "text", "text": "a", "uuid": "u"}]}),
    history(assistant(content=[{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "b"}])),
    history(assistant(content=[{"type": "thinking", "thinking": "b", "closed": True}, {"type": "text", "text": "a"}])),
    # Media.
    chat({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}, {"type": "text", "text": "what?"}]}),
    chat({"role": "user", "content": [{"type": "text", "text": "what?"}, {"type": "image_url", "image_url": {"url": "u", "detail": "low"}, "extra": 1}]}),
    chat({"role": "user", "content": [{"type": "image_url", "image_url": "u"}]}),
    chat({"role": "user", "content": [{"image_url": "u"}, "see"]}),
    chat({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}, "uuid": "i"}]}),
    chat({"role": "user", "content": ["<image> given", {"type": "image_url", "image_url": {"url": "u"}}, {"type": "image_url", "image_url": {"url": "v"}}]}),
    chat({"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}, {"type": "video_url", "video_url": {"url": "v"}}, {"type": "audio_url", "audio_url": {"url": "a"}}, "all"]}),
    # Assistants.
    history(assistant(content=None)),
    history(assistant()),
    history(assistant(content="x", refusal="no", audio={"id": "i"})),
    history(assistant(content="x", reasoning="r")),
    history(assistant(content="x", reasoning_content="r")),
    history(assistant(content="x", reasoning="r", reasoning_content="s")),
    history(assistant(content="x", reasoning=None, reasoning_content="s")),
    history(assistant(content="x", reasoning="")),
    history({"role": "user", "content": "x", "reasoning": "r"}),
    history(assistant(content="x", function_call={"name": "f", "arguments": "{}"})),
    history(assistant(content="x", prefix=True, thinking="q")),
    # Calls.
    history(assistant(tool_calls=[CALL])),
    history(assistant(content=None, tool_calls=[CALL, {**CALL, "id": "c2"}]), {"role": "tool", "tool_call_id": "c1", "content": "1"}, {"role": "tool", "tool_call_id": "c2", "content": "2"}),
    history(assistant(content="", tool_calls=[])),
    history(assistant(content="x", tool_calls=None)),
    history(assistant(tool_calls=[{"extra": 3, **CALL, "function": {"x": 2, "name": "f", "arguments": "{}"}}])),
    history(assistant(tool_calls=[{"type": "function", "function": {"name": "f", "arguments": "{}"}}])),
    history(assistant(tool_calls=[{"id": "c", "function": {"name": "f", "arguments": "{}"}}])),
    history(assistant(tool_calls=[{**CALL, "type": "custom"}])),
    history(assistant(tool_calls=[call({"a": 1})])),
    history(assistant(tool_calls=[call(None)])),
    *[
        history(assistant(tool_calls=[call(arguments)]))
        for arguments in (
            "",
            " ",
            "{}",
            ' {"a" : [1, 2.5, "x", null, true] }\n',
            "[1]",
            "42",
            '"s"',
            "null",
            "{not json",
            '{"a":1}x',
            '{"a":1,"b":2,"a":3}',
            '{"a":-0,"b":-0.0,"c":1e3,"d":10.50,"e":0.1}',
            '{"a":"\\ud83d\\ude00\\u00e9\\n\\/"}',
            '{"a":"\n"}',
            '{"a":01}',
            '{"a":1.}',
            '{"a":.5}',
            "{'a':1}",
            '{"a":1,}',
            '{"a":+1}',
            '{"a":{"b":{"c":[[[{}]]]}}}',
            '\ufeff{"a":1}',
            '{"a":18446744073709551615,"b":-9223372036854775808}',
        )
    ],
    history({"role": "user", "content": "x", "tool_calls": [CALL]}),
    history({"role": "tool", "content": "x", "tool_call_id": "i", "name": "f"}),
    history({"role": "tool", "content": "x"}),
    history({"role": "tool", "content": "x", "tool_call_id": None}),
    history({"role": "tool", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "", "z": 1}, "b"], "tool_call_id": "i"}),
    history({"role": "tool", "content": [], "tool_call_id": "i"}),
    history({"role": "tool", "content": [{"type": "tool_reference", "name": "f"}, "t"], "tool_call_id": "i"}),
    # Tools.
    chat(USER, tools=[TOOL]),
    chat(USER, tools=[]),
    chat(USER, tools=None),
    chat(USER, tools=[TOOL], tool_choice="none"),
    chat(USER, tools=[TOOL], tool_choice="auto"),
    chat(USER, tools=[TOOL], tool_choice={"type": "function", "function": {"name": "f"}}),
    chat(USER, tools=[{"function": {"name": "f"}}]),
    chat(USER, tools=[{"type": "other", "function": {"name": "f"}}]),
    chat(USER, tools=[{"type": "function", "function": {"parameters": None, "strict": None, "description": "d", "name": "f", "unknown": 1}, "unknown": 2}]),
    chat(USER, tools=[{"type": "function", "function": {"name": "f", "strict": True, "parameters": {"b": 1.0, "a": [1, {"z": None}]}}}]),
    chat(USER, tools=[{"type": "function", "function": {"name": "f", "strict": "yes"}, "defer_loading": True}]),
    chat(USER, tools=[{"type": "function", "function": {"name": "f", "defer_loading": False}, "defer_loading": 1}]),
    chat(USER, tools=[{"type": "function", "function": {"description": "no name"}}]),
    # Variables.
    chat(USER, add_generation_prompt=False),
    chat(USER, add_generation_prompt="false"),
    chat(USER, assistant(content="pre"), add_generation_prompt=False, continue_final_message=True),
    chat(USER, assistant(content="pre"), continue_final_message=True),
    chat(USER, assistant(content="pre"), add_generation_prompt=True, continue_final_message=True),
    chat(USER, chat_template_kwargs={"enable_thinking": False, "n": None, "a": "auto", "list": [1], "tokenizer_kwargs": {}}),
    chat(USER, chat_template_kwargs={"add_generation_prompt": False, "continue_final_message": True, "documents": [{"a": "b"}]}),
    chat(USER, chat_template_kwargs={"tools": [{"mine": 1}]}, tools=[TOOL]),
    chat(USER, chat_template_kwargs={"chat_template": None}),
    chat(USER, chat_template_kwargs={"chat_template": "x"}),
    chat(USER, chat_template_kwargs=[]),
    chat(USER, reasoning_effort="none"),
    chat(USER, reasoning_effort="high", chat_template_kwargs={"enable_thinking": None}),
    chat(USER, reasoning_effort="low", chat_template_kwargs={"enable_thinking": False, "reasoning_effort": "max"}),
    chat(USER, documents=[{"title": "t", "text": "x"}]),
    chat(USER, documents=[{"title": 5}]),
    chat(USER, add_special_tokens=True),
    chat(USER, truncate_prompt_tokens=5),
    chat(USER, truncate_prompt_tokens=-1, truncation_side="right"),
    chat(USER, truncate_prompt_tokens=7, truncation_side="left"),
    chat(USER, chat_template="x"),
    # A coding client's header.
    chat({"role": "system", "content": "x-anthropic-billing-header: a=1\nrest\nmore"}, USER),
    chat({"role": "system", "content": [{"type": "text", "text": "x-anthropic-billing-header: a=1"}, {"type": "text", "text": "rest"}]}, USER),
    chat({"role": "user", "content": "x-anthropic-billing-header: a=1\nrest"}),
]

# As text, for what a serializer would not write.
CHAT_TEXTS = [
    '{"messages":[{"role":"user","content":"a","content":"b"}],"messages":[{"role":"user","content":"c","role":"system"}]}',
    '{"messages":[{"role":"user","content":"a\\ud83d\\ude00b\\u0041"}]}',
    '{"messages":[{"role":"user","content":"a\\ud800b"}]}',
    '{"messages":[{"role":"user","content":"a"}],"unused":"\\ud800","n":NaN,"big":1' + "0" * 400 + "}",
    '{"messages":[{"role":"user","content":"a"}],"chat_template_kwargs":{"f":1.50,"i":1,"e":1E2,"m":-0}}',
    ' \n{ "messages" : [ { "role" : "user" , "content" : "a" } ] } \t',
    '{"\\u006dessages":[{"r\\u006fle":"user","content":"a"}]}',
    '\ufeff{"messages":[{"role":"user","content":"a"}]}',
    '{"messages":[{"role":"user","content":"a"}]} x',
    '{"messages":[{"role":"user","content":"a",}]}',
    '{"messages":[{"role":"user","content":"a\x01"}]}',
]


def anthropic(*messages, **fields):
    return {"model": "m", "max_tokens": 9, "messages": list(messages), **fields}


def blocks(role, *content):
    return {"role": role, "content": list(content)}


def text(words):
    return {"type": "text", "text": words}


ANTHROPIC_TOOL = {"name": "f", "description": "d", "input_schema": {"properties": {"a": {}}}}
ANTHROPIC_BODIES = [
    anthropic(USER),
    anthropic(USER, system="s"),
    anthropic(USER, system=""),
    anthropic(USER, system=[text("a"), text(""), text("b")]),
    anthropic(USER, system=[text("x-anthropic-billing-header: 1"), text("b")]),
    anthropic(USER, system="x-anthropic-billing-header: 1\nrest"),
    anthropic(USER, {"role": "system", "content": "late"}, {"role": "assistant", "content": "x"}, USER, system="s"),
    anthropic(USER, blocks("system", text("late"), text("r")), USER),
    anthropic(USER, {"role": "system", "content": "x-anthropic-billing-header: 1"}, USER),
    anthropic(blocks("user")),
    anthropic(blocks("user", text("a"), text("b"))),
    anthropic(blocks("user", text("a"), text(""))),
    anthropic({"role": "user", "content": ""}),
    anthropic({"role": "tool", "content": "x"}),
    anthropic(blocks("user", {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}, text("what?"))),
    anthropic(blocks("user", {"type": "image", "source": {"type": "url", "url": "u"}})),
    anthropic(blocks("user", {"type": "document", "source": {}})),
    anthropic(USER, blocks("assistant", {"type": "thinking", "thinking": "t", "signature": "s"}, {"type": "redacted_thinking", "data": "d"}, text("x")), USER),
    anthropic(USER, blocks("assistant", text("x"), {"type": "tool_use", "id": "i", "name": "f", "input": {"b": 1, "a": [1.5, None]}}, {"type": "tool_use", "id": "j", "name": "g", "input": {}}), blocks("user", {"type": "tool_result", "tool_use_id": "i", "content": "r"}, {"type": "tool_result", "tool_use_id": "j", "content": [text("a"), text("b")], "is_error": True}, text("and?"))),
    anthropic(USER, blocks("assistant", {"type": "tool_use", "id": "i", "name": "f", "input": None}), blocks("user", {"type": "tool_result", "tool_use_id": "i"})),
    anthropic(USER, blocks("assistant", {"type": "tool_use", "id": "i", "name": "f", "input": {}}), blocks("user", {"type": "tool_result", "tool_use_id": "i", "content": [{"type": "image", "source": {"type": "url", "url": "u"}}, {"type": "tool_reference", "tool_name": "g"}]})),
    anthropic(USER, blocks("assistant"), USER),
    anthropic(USER, blocks("assistant", {"type": "tool_result", "tool_use_id": "i", "content": "x"}), USER),
    anthropic(USER, tools=[ANTHROPIC_TOOL]),
    anthropic(USER, tools=[{**ANTHROPIC_TOOL, "input_schema": {"type": "object", "x": 1}, "strict": True, "cache_control": {"type": "ephemeral"}}], tool_choice={"type": "none"}),
    anthropic(USER, tools=[]),
    anthropic(USER, tools=[{"name": "f"}]),
    anthropic(USER, tools=[ANTHROPIC_TOOL], tool_choice={"type": "any"}),
    anthropic(USER, thinking={"type": "disabled"}),
    anthropic(USER, thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=4096),
    anthropic(USER, thinking={"type": "adaptive"}, output_config={"effort": "high"}),
    anthropic(USER, thinking={"type": "disabled"}, output_config={"effort": "high"}),
    anthropic(USER, chat_template_kwargs={"enable_thinking": False}),
]


def responses(*items, **fields):
    return {"input": list(items), **fields}


def message(role, *content, **fields):
    return {"type": "message", "role": role, "content": list(content), **fields}


def output(words):
    return {"type": "output_text", "text": words}


FUNCTION_CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a": 1}'}
REASONING = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "r"}]}
RESPONSES_BODIES = [
    {"input": "hi"},
    {"input": ""},
    {"input": "hi", "instructions": "s"},
    {"input": "hi", "instructions": ""},
    {"input": "hi", "reasoning": {"effort": "low"}},
    {"input": "hi", "reasoning": {}},
    {"input": "hi", "truncation": "auto"},
    {"input": "hi", "chat_template_kwargs": {"enable_thinking": False}},
    {"input": []},
    {"input": 5},
    responses(USER),
    responses({"role": "system", "content": "s"}, USER),
    responses({"role": "developer", "content": "d"}, USER, instructions="i"),
    responses(message("user", {"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"})),
    responses(message("user", {"type": "input_image", "image_url": "u", "detail": "low"}, {"type": "input_text", "text": "b"})),
    responses(message("user", {"type": "input_image", "image_url": "u"})),
    responses(message("user", {"type": "input_file", "file_id": "f"})),
    responses(USER, {"role": "assistant", "content": "x"}, USER),
    responses(USER, {"role": "assistant", "content": [output("x"), output("y")]}, USER),
    responses(USER, message("assistant", output("x"), output("y"), id="m", status="completed"), USER),
    responses(USER, message("assistant", output("x")), message("assistant", output("y")), USER),
    responses(USER, message("assistant", output("pre"), status="in_progress", id="m")),
    responses(USER, message("assistant", output("pre"), status="incomplete", id="m")),
    responses(USER, {"role": "assistant", "content": "pre", "status": "incomplete"}),
    responses(USER, REASONING, message("assistant", output("x")), USER),
    responses(USER, REASONING, FUNCTION_CALL, {"type": "function_call_output", "call_id": "c", "output": "o"}),
    responses(USER, message("assistant", output("x")), REASONING, FUNCTION_CALL, {**FUNCTION_CALL, "call_id": "d", "namespace": "n"}, {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "o"}]}),
    responses(USER, {**REASONING, "id": "r", "content": None, "summary": [{"type": "summary_text", "text": "s"}]}, USER),
    responses(USER, {**REASONING, "encrypted_content": "x"}, USER),
    responses(USER, {"type": "reasoning", "content": []}, USER),
    responses(USER, {**FUNCTION_CALL, "arguments": "nonsense"}, USER),
    responses(USER, {"type": "custom_tool_call", "call_id": "c", "name": "g", "input": 'a "b"'}, {"type": "custom_tool_call_output", "call_id": "c", "output": "o"}),
    responses(USER, {"type": "item_reference", "id": "x"}),
    {"input": "hi", "tools": [{"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}]},
    {"input": "hi", "tools": [{"type": "function", "name": "f", "parameters": None, "strict": None}], "tool_choice": "none"},
    {"input": "hi", "tools": [{"type": "custom", "name": "g", "description": "free"}]},
    {"input": "hi", "tools": [{"type": "namespace", "name": "n", "description": "d", "tools": [{"type": "function", "name": "f", "parameters": {}}]}]},
    {"input": "hi", "tools": []},
    {"input": "hi", "prompt": {"id": "p"}},
]


def fixed():
    """All cases that somebody thought of."""
    variants = [{}, OPENAI, {"developer": True}, {**OPENAI, "developer": True}]
    for body in CHAT_BODIES:
        is_plain = "developer" not in json.dumps(body)
        for traits in variants[:2] if is_plain else variants:
            yield "chat_completions", json.dumps(body, ensure_ascii=False), traits
        if "tools" in body:
            yield "chat_completions", json.dumps(body), {"hides_unused_tools": True}
    for body in CHAT_TEXTS:
        yield "chat_completions", body, {}
    defaults = {"default_kwargs": {"enable_thinking": False, "x": None, "tools": "auto"}}
    yield "chat_completions", json.dumps(chat(USER)), defaults
    yield "chat_completions", json.dumps(chat(USER, reasoning_effort="low", tools=[TOOL])), defaults
    for body in ANTHROPIC_BODIES:
        for traits in ({}, {**OPENAI, "system_first": True, "thinking_off_effort": "low"}):
            yield "messages", json.dumps(body), traits
    for body in RESPONSES_BODIES:
        for traits in ({}, OPENAI):
            yield "responses", json.dumps(body), traits


class Maker:
    """Makes random bodies of pieces that are likely to be valid."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def one(self, *options):
        return self.random.choice(options)

    def maybe(self, chance):
        return self.random.random() < chance

    def words(self):
        return self.one("", "a", "hello", "é中\U0001f600", "two\nlines", " ", "<image>", "x" * 40, "\\n\"q\"")

    def value(self, depth=2):
        kinds = [None, True, 0, -3, 1.5, 2.0, "", self.words()]
        if depth:
            kinds += [
                [self.value(depth - 1) for _ in range(self.random.randrange(3))],
                {self.one("a", "b", "type", "c d"): self.value(depth - 1) for _ in range(self.random.randrange(3))},
            ]
        return self.one(*kinds)

    def shuffled(self, fields):
        items = list(fields.items())
        if self.maybe(0.3):
            items.append((self.one("extra", "cache_control", "prefix"), self.value()))
        self.random.shuffle(items)
        return dict(items)

    def part(self):
        return self.one(
            self.words(),
            self.shuffled({"type": "text", "text": self.words()}),
            self.shuffled({"type": "text", "text": self.words()}),
            self.shuffled({"type": "image_url", "image_url": {"url": self.one("u", "v")}}),
            self.shuffled({"type": self.one("input_text", "output_text"), "text": self.words()}),
            self.shuffled({"type": "thinking", "thinking": self.words()}),
            self.shuffled({"type": "refusal", "refusal": self.one("no", "")}),
            self.shuffled({"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}}),
        )

    def content(self):
        if self.maybe(0.5):
            return self.words()
        if self.maybe(0.1):
            return None
        return [self.part() for _ in range(self.random.randrange(4))]

    def call(self):
        arguments = self.one(
            json.dumps(self.value(3)),
            json.dumps({"k": self.value(2), "a": 1}),
            self.one("", "{", "null", "{}"),
        )
        function = self.shuffled({"name": self.one("f", "get"), "arguments": arguments})
        return self.shuffled({"id": self.one("c1", "c2"), "type": "function", "function": function})

    def message(self):
        role = self.one("system", "developer", "user", "user", "assistant", "assistant", "tool", "other")
        fields = {"role": role}
        if self.maybe(0.95):
            fields["content"] = self.content()
        if self.maybe(0.1):
            fields["name"] = self.one("n", "")
        if role == "assistant" and self.maybe(0.4):
            fields["tool_calls"] = [self.call() for _ in range(self.random.randrange(3))]
        if self.maybe(0.2):
            fields[self.one("reasoning", "reasoning_content")] = self.one("r", "", None)
        if role == "tool" or self.maybe(0.05):
            fields["tool_call_id"] = self.one("c1", "c2")
        if role == "developer" and self.maybe(0.3):
            fields["tools"] = [self.tool()]
        return self.shuffled(fields)

    def tool(self):
        function = {"name": self.one("f", "g")}
        if self.maybe(0.7):
            function["description"] = self.one("d", None, "")
        if self.maybe(0.7):
            function["parameters"] = self.one(None, {}, {"type": "object", "properties": {"a": self.value()}})
        if self.maybe(0.2):
            function["strict"] = self.one(True, False, None)
        tool = {"type": "function", "function": self.shuffled(function)}
        return self.shuffled(tool)

    def chat(self):
        body = chat(*[self.message() for _ in range(self.random.randrange(1, 6))])
        if self.maybe(0.3):
            body["tools"] = [self.tool() for _ in range(self.random.randrange(1, 3))]
        if self.maybe(0.2):
            body["tool_choice"] = self.one("none", "auto")
        if self.maybe(0.2):
            body["chat_template_kwargs"] = {self.one("enable_thinking", "x", "documents"): self.value(1)}
        if self.maybe(0.2):
            body["reasoning_effort"] = self.one("none", "low", "high", None)
        if self.maybe(0.2):
            body["add_generation_prompt"] = self.one(True, False)
        if self.maybe(0.1):
            body["continue_final_message"] = self.one(True, False)
        return self.shuffled(body)

    def anthropic_block(self):
        return self.one(
            text(self.words()),
            text(self.words()),
            {"type": "thinking", "thinking": self.words()},
            {"type": "image", "source": {"type": "url", "url": "u"}},
            {"type": "tool_use", "id": "i", "name": "f", "input": self.one(None, {}, {"a": self.value()})},
            {"type": "tool_result", "tool_use_id": "i", "content": self.one("r", None, [text("a"), text(self.words())])},
        )

    def anthropic(self):
        messages = []
        for _ in range(self.random.randrange(1, 5)):
            content = self.words()
            if self.maybe(0.7):
                content = [self.anthropic_block() for _ in range(self.random.randrange(4))]
            messages.append({"role": self.one("user", "assistant", "system"), "content": content})
        body = anthropic(*messages)
        if self.maybe(0.4):
            body["system"] = self.one(self.words(), [text(self.words()), text("s")])
        if self.maybe(0.3):
            body["tools"] = [{"name": "f", "input_schema": self.one({}, {"type": "object", "a": self.value()})}]
        if self.maybe(0.3):
            body["thinking"] = self.one({"type": "disabled"}, {"type": "adaptive"})
        return body

    def item(self):
        return self.one(
            {"role": self.one("user", "system", "developer"), "content": self.words()},
            message("user", *[{"type": "input_text", "text": self.words()} for _ in range(self.random.randrange(1, 3))]),
            {"role": "assistant", "content": self.words()},
            message("assistant", output(self.words()), id="m", status="completed"),
            {**REASONING, "id": "r"},
            {**FUNCTION_CALL, "arguments": json.dumps(self.value(2))},
            {"type": "function_call_output", "call_id": "c", "output": self.words()},
        )

    def responses(self):
        body = responses(*[self.item() for _ in range(self.random.randrange(1, 6))])
        if self.maybe(0.3):
            body["instructions"] = self.words()
        if self.maybe(0.2):
            body["reasoning"] = {"effort": self.one("none", "low")}
        return body

    def case(self):
        api = self.one("chat_completions", "chat_completions", "messages", "responses")
        make = {"chat_completions": self.chat, "messages": self.anthropic, "responses": self.responses}
        traits = {}
        if self.maybe(0.5):
            traits["content_format"] = "openai"
        for name in ("developer", "system_first", "hides_unused_tools"):
            if self.maybe(0.3):
                traits[name] = True
        if self.maybe(0.3):
            traits["thinking_off_effort"] = "low"
        return api, json.dumps(make[api](), ensure_ascii=self.maybe(0.5)), traits


def made(seed, count):
    maker = Maker(seed)
    for _ in range(count):
        yield maker.case()


def restricted(cases, traits):
    """The cases with these traits only."""
    for api, body, given in cases:
        yield api, body, {key: value for key, value in given.items() if key in traits}


def given(bodies, maker, count):
    """Chats, the fixed cases and so many of the maker's; what other traits there are vLLM tells by the model."""
    own = (("chat_completions", json.dumps(body, ensure_ascii=False), {}) for body in bodies)
    made = (maker.case() for _ in range(count))
    return distinct(restricted([*own, *fixed(), *made], ("hides_unused_tools", "default_kwargs")))


def distinct(cases):
    """The cases, each once."""
    seen = set()
    for api, body, traits in cases:
        case = (api, body, json.dumps(traits))
        if case not in seen:
            seen.add(case)
            yield api, body, traits


def options(description, out, random_cases):
    """What a program that writes cases to the file `out` is asked."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--random", type=int, default=random_cases)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / out)
    return parser.parse_args()
