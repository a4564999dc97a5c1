"""Renders with the real transformers: the one reference that both scripts here use."""

import datetime
import json
import pathlib

import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

HERE = pathlib.Path(__file__).resolve().parent
TEMPLATES = HERE.parents[2] / ".cache" / "templates"
SPECIAL_TOKENS = {
    "bos_token": "<|bos|>",
    "eos_token": "<|eos|>",
    "pad_token": "<|pad|>",
    "unk_token": "<|unk|>",
}


class FixedTime(datetime.datetime):
    """`datetime.now()` as the vectors fix it."""

    @classmethod
    def now(cls, tz=None):
        return cls(2026, 3, 9, 14, 5, 7, 123456, tz)


chat_template_utils.datetime = FixedTime


def major_version() -> str:
    return "v" + transformers.__version__.split(".")[0]


def tokenizer(chat_template):
    model = Tokenizer(WordLevel({"<|unk|>": 0}, unk_token="<|unk|>"))
    made = PreTrainedTokenizerFast(tokenizer_object=model, **SPECIAL_TOKENS)
    made.chat_template = chat_template
    return made


def render(chat_template, conversation: dict) -> str:
    """The prompt; raises where transformers raises."""
    return tokenizer(chat_template).apply_chat_template(
        conversation["messages"],
        tools=conversation.get("tools"),
        documents=conversation.get("documents"),
        add_generation_prompt=conversation.get("add_generation_prompt", False),
        continue_final_message=conversation.get("continue_final_message", False),
        tokenize=False,
        **conversation.get("kwargs", {}),
    )


def conversations() -> list:
    return json.loads((HERE / "conversations.json").read_text(encoding="utf-8"))
