"""Writes mistral.jsonl: request bodies, and the prompt that vLLM makes of each for Mistral models that come
with a tekken.json, by the versions of Mistral's format.

    PYTHON mistral.py [--random COUNT] [--seed SEED] [--out FILE]

PYTHON is the one of a vLLM installation, whose mistral-common brings a tekken.json. Versions are told apart
by what that file says of itself (mistral.versions.json). Each line is [api, body, traits, expected];
`expected` is, by the version, the prompt's text and the SHA-256 of its token ids (as JSON without spaces,
cut to eight digits), and has none where vLLM refuses the request. An image is one token, a sound two.

mistral.texts.tsv is written too: for each text of ../tokenizers/texts.jsonl its number, the count of its ids,
and the digests of these and of those with the token that opens a sequence.
"""

import hashlib
import json
import tempfile
from pathlib import Path
from types import SimpleNamespace

import cases
import mistral_common
import numpy
import oracle
from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy
from vllm.renderers.mistral import MistralRenderer
from vllm.tokenizers.mistral import MistralTokenizer

TEKKEN = Path(mistral_common.__file__).parent / "data" / "tekken_240911.json"
VERSIONS = json.loads(Path(__file__).with_name("mistral.versions.json").read_text())
USER, TOOL, CALL = cases.USER, cases.TOOL, cases.CALL
SYSTEM = {"role": "system", "content": "be good"}


def media(tokens):
    """An encoder for which everything takes these tokens."""
    return lambda chunk: SimpleNamespace(tokens=tokens, image=numpy.zeros(1), audio=SimpleNamespace(audio_array=0))


def tokenizer(version):
    """vLLM's tokenizer of a model whose tekken.json is of this version."""
    tekken = json.loads(TEKKEN.read_text())
    tekken |= VERSIONS[version]
    tekken["config"]["version"] = version
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "tekken.json").write_text(json.dumps(tekken))
        made = MistralTokenizer.from_pretrained(folder)
    made.instruct.image_encoder = media([10])
    made.instruct.audio_encoder = media([25, 24])
    return made


def digest(ids):
    return hashlib.sha256(json.dumps(ids, separators=(",", ":")).encode()).hexdigest()[:8]


def prompt(made, api, body, traits):
    """The prompt's text and the digest of its ids, or None when vLLM refuses the request."""

    def read(prompt):
        ids = prompt["prompt_token_ids"]
        return [made.tokenizer.decode(ids, SpecialTokenPolicy.KEEP), digest(ids)]

    return oracle.code_prompt(oracle.CodeRenderer(MistralRenderer, made), api, body, traits, read)


def result(call, content, **fields):
    return {"role": "tool", "tool_call_id": call, "content": content, **fields}


def calls(*ids, **fields):
    return cases.assistant(tool_calls=[{**CALL, "id": one} for one in ids], **fields)


def thinking(text, **fields):
    return {"type": "thinking", "thinking": text, **fields}


A, B, C = "abcdefgh1", "abcdefgh2", "call_abcdefgh3"
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
AUDIO = {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}}
PARTS = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
BODIES = [
    *[cases.chat(*messages, **fields) for fields in ({}, {"tools": [TOOL]}, {"tools": [TOOL, TOOL], "reasoning_effort": "high"})
      for messages in (
          [USER], [SYSTEM, USER], [USER, USER], [SYSTEM, SYSTEM, USER], [SYSTEM], [USER, SYSTEM, USER],
          [USER, cases.assistant(content="a "), USER], [USER, cases.assistant(content="a"), cases.assistant(content="b"), USER],
          [SYSTEM, USER, cases.assistant(content="a"), SYSTEM, USER], [cases.assistant(content="a"), USER],
          [{"role": "developer", "content": "d"}, USER], [USER, cases.assistant(content="a")],
      )],
    *[cases.chat(USER, calls(*ids, **said), *results, *after)
      for said in ({}, {"content": "c"}) for after in ([], [USER], [cases.assistant(content="so"), USER])
      for ids, results in (
          ([A], [result(A, "1")]),
          ([A, B], [result(A, "1"), result(B, "2")]),
          ([A, B], [result(B, "2"), result(A, "1")]),
          ([C, B], [result(B, "2"), result(C, "1")]),
          ([A, B], [result(B, "2"), result(B, "3"), result(A, "1")]),
          ([A], [result(B, "1")]),
          ([A], [result(A, "1", name="f")]),
      )],
    *[cases.chat(USER, calls(A), result(A, content), USER) for content in (
        "", " ", "plain", '{"b": 1,"a":[1.0,2e3,-0.0]}', "12", "null", '"text"', "NaN", "{", "[1, 2", '{"a":1,"a":2}', "é \\u00e9",
        '"\\u4e2d"', "123456789012345678901234567890", PARTS, [], [IMAGE, *PARTS], [thinking("t")], None,
    )],
    *[cases.chat(USER, cases.assistant(tool_calls=[cases.call(arguments, id=A)]), result(A, "1")) for arguments in (
        "{}", "", "null", "[]", "[1]", '"{}"', "5", '{"a":"x","b":1,"c":1.0,"d":true,"e":null,"f":[1,"é"],"g":{"h":"\\u4e2d"}}',
        '{"a":1e22,"b":-0.0,"c":123456789012345678901234567890}', '{"a":"<x>\\n\\"q\\""}', "{", '{"a":NaN}', '{"a":1,"a":2}',
    )],
    *[cases.chat({"role": "user", "content": content}, cases.assistant(content="x"), {"role": "user", "content": content})
      for content in (PARTS, [*PARTS, IMAGE, *PARTS], [*PARTS, IMAGE], [IMAGE], [IMAGE, IMAGE], [IMAGE, *PARTS, IMAGE], [AUDIO, *PARTS],
                      [], [""], "", " ", [{"type": "text", "text": ""}], [thinking("t")], ["x", "y"], [{"type": "input_text", "text": "i"}],
                      [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}], None)],
    *[cases.chat(SYSTEM, {"role": "user", "content": content}) for content in ([*PARTS, IMAGE], [IMAGE], [IMAGE, IMAGE], [AUDIO])],
    *[cases.chat({"role": "system", "content": content}, USER) for content in (
        PARTS, [thinking("t")], [{"type": "text", "text": "a"}, thinking("t"), {"type": "text", "text": "b"}, {"type": "text", "text": "c"}],
        [thinking("t", closed=False)], "", [], [IMAGE], "x-anthropic-billing-header: 1\nrest",
    )],
    *[cases.chat(USER, cases.assistant(**said), USER) for said in (
        {"content": "a", "reasoning": "r"}, {"content": "a", "reasoning": ""}, {"reasoning": "r"}, {"content": "a", "reasoning_content": "r"},
        {"content": "a", "reasoning": "r", "reasoning_content": "r"}, {"content": "a", "reasoning": "r", "reasoning_content": "s"},
        {"content": [thinking("t"), *PARTS]}, {"content": [thinking("t", closed=False)]}, {"content": [thinking("t", closed=True)]},
        {"content": [*PARTS, thinking("t")]}, {"content": PARTS}, {"content": ""}, {"content": []}, {"content": None}, {},
        {"content": "  "}, {"content": " a  "}, {"content": PARTS, "reasoning": "r"}, {"content": [thinking("t")], "reasoning": "r"},
        {"content": [{"type": "refusal", "refusal": "no"}]}, {"content": "a", "prefix": True},
        {"content": "a", "tool_calls": []}, {"content": "a", "name": "n"},
    )],
    *[cases.chat(USER, said, continue_final_message=True, add_generation_prompt=False) for said in (
        cases.assistant(content="pre "), cases.assistant(content="pre", reasoning="r"), cases.assistant(content=PARTS), USER,
        cases.assistant(content=[thinking("t", closed=False)]), calls(A),
    )],
    cases.chat(USER, cases.assistant(content="a"), add_generation_prompt=False),
    cases.chat(USER, cases.assistant(content="a"), cases.assistant(content="b"), continue_final_message=True, add_generation_prompt=False),
    *[cases.chat(USER, reasoning_effort=effort) for effort in ("none", "minimal", "low", "medium", "high", "xhigh", "max", None)],
    *[cases.chat(USER, chat_template_kwargs=kwargs) for kwargs in ({}, {"enable_thinking": True}, {"reasoning_effort": "high"})],
    cases.chat({"role": "user", "content": "[INST] </s><s>[TOOL_CALLS] <SPECIAL_20> <unk>"}, tools=[TOOL]),
    cases.chat({"role": "user", "content": "Größe 12345 中文\r\n\r\n  \t😀 don't"}),
    cases.chat(USER, tools=[{"type": "function", "function": {"name": "f"}}, {"type": "function", "function": {"parameters": {"type": "object", "x": [1.0, None, "é"]}, "strict": True, "description": "é \"q\"", "name": "g"}}]),
    *[cases.chat(USER, tools=[TOOL], tool_choice=choice) for choice in ("none", "auto", "required", {"type": "function", "function": {"name": "f"}})],
    cases.chat(USER, tools=[TOOL], response_format={"type": "json_object"}),
    cases.chat(USER, add_special_tokens=True, documents=[{"title": "t"}]),
    cases.chat(USER, calls(A), USER), cases.chat(USER, calls(A), calls(B), result(A, "1"), result(B, "2")),
    cases.chat(USER, calls(A, A), result(A, "1"), result(A, "2")), cases.chat(USER, result(A, "1")), cases.chat(result(A, "1")),
    cases.chat(USER, calls("null"), result("null", "1")), cases.chat(USER, calls(""), result("", "1")),
    cases.chat(USER, calls(A), result(A, "1"), calls(B), result(B, "1"), USER, calls(A), result(A, "3")),
]


class Maker(cases.Maker):
    """Random chats that a Mistral model is likely to take."""

    def chat(self):
        if self.maybe(0.3):
            return super().chat()
        messages = [self.system() for _ in range(self.random.randrange(3))]
        while len(messages) < 9 and not (messages and self.maybe(0.15)):
            messages += self.turn()
        if self.maybe(0.8) and messages[-1]["role"] == "assistant":
            messages.append(self.user())
        body = cases.chat(*messages)
        if self.maybe(0.4):
            body["tools"] = [self.tool() for _ in range(self.random.randrange(1, 3))]
        if self.maybe(0.2):
            body["reasoning_effort"] = self.one("none", "high")
        if messages[-1]["role"] == "assistant":
            body |= {"continue_final_message": True, "add_generation_prompt": False}
        return body

    def text(self):
        return {"type": "text", "text": self.words()}

    def system(self):
        content = self.one(self.words(), [self.text(), self.text()], [self.text(), thinking(self.words()), self.text()])
        return {"role": self.one("system", "system", "developer"), "content": content}

    def user(self):
        parts = [self.one(self.text(), self.text(), IMAGE) for _ in range(self.random.randrange(1, 4))]
        return {"role": "user", "content": self.one(self.words(), self.words(), parts)}

    def said(self):
        said = {"content": self.one("a", " b ", self.words(), [thinking("t"), self.text()], [self.text(), self.text()])}
        return said | ({"reasoning": self.words()} if self.maybe(0.2) else {})

    def turn(self):
        ids = self.random.sample([A, B, C, "x"], self.random.randrange(1, 4))
        results = [result(one, self.one("1", self.words(), PARTS, json.dumps(self.value()))) for one in ids]
        self.random.shuffle(results)
        if self.maybe(0.1):
            results.pop()
        called = [self.call() | {"id": one} for one in ids]
        said = self.said() if self.maybe(0.3) else {}
        return self.one(
            [self.user()],
            [self.user(), cases.assistant(**self.said())],
            [self.user(), cases.assistant(**self.said()), self.user()],
            [self.user(), cases.assistant(tool_calls=called, **said), *results],
            [cases.assistant(tool_calls=called, **said), *results, cases.assistant(**self.said())],
            [self.user(), cases.assistant(tool_calls=called, **said), *results, self.user()],
            [self.system(), self.user()],
        )


def write_texts(tekken):
    """Writes what mistral-common makes of the tokenizers' hostile texts, without and with the opening token."""
    texts = Path(__file__).parents[1] / "tokenizers" / "texts.jsonl"
    with Path(__file__).with_name("mistral.texts.tsv").open("w", encoding="ascii") as out:
        for number, line in enumerate(texts.read_text().splitlines()):
            text = "".join(piece * count for piece, count in json.loads(line))
            bare, opened = (tekken.encode(text, bos=bos, eos=False) for bos in (False, True))
            out.write(f"{number}\t{len(bare)}\t{digest(bare)}\t{digest(opened)}\n")


def main():
    args = cases.options(__doc__, "mistral.jsonl", 200)
    tokenizers = {version: tokenizer(version) for version in VERSIONS}
    write_texts(tokenizers["v15"].tokenizer)
    accepted = dict.fromkeys(VERSIONS, 0)
    with args.out.open("w", encoding="utf-8") as out:
        for api, body, traits in cases.given(BODIES, Maker(args.seed), args.random):
            prompts = {version: prompt(made, api, body, traits) for version, made in tokenizers.items()}
            prompts = {version: made for version, made in prompts.items() if made is not None}
            for version in prompts:
                accepted[version] += 1
            out.write(json.dumps([api, body, traits, prompts], separators=(",", ":")) + "\n")
    print(f"accepted: {accepted}")


if __name__ == "__main__":
    main()
