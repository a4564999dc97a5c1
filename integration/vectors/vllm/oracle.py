"""What vLLM hands to a chat template for a request body, by vLLM's own code and without an engine.

The request goes through vLLM's request models and renderer up to the call of
`tokenizer.apply_chat_template`, whose arguments are recorded. Run it with the Python of a vLLM
installation (see integration/vllm/README.md).
"""

import asyncio
import json
import logging
import os
from types import SimpleNamespace

import cases

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest  # noqa: E402
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages  # noqa: E402
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest  # noqa: E402
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest  # noqa: E402
from vllm.entrypoints.serve.engine.protocol import ErrorResponse  # noqa: E402
from vllm.renderers import chat_utils, hf, online_renderer  # noqa: E402

logging.disable(logging.CRITICAL)

PLACEHOLDERS = {"image": "<image>", "audio": "<audio>", "video": "<video>"}


class Parser(chat_utils.BaseMultiModalContentParser):
    """Takes media without looking at it."""

    model_config = SimpleNamespace(enable_prompt_embeds=False)

    def _take(self, modality):
        self._add_placeholder(modality, PLACEHOLDERS[modality])

    def parse_image(self, image_url, uuid=None):
        self._take("image")

    def parse_image_embeds(self, image_embeds, uuid=None):
        self._take("image")

    def parse_image_pil(self, image_pil, uuid=None):
        self._take("image")

    def parse_audio(self, audio_url, uuid=None):
        self._take("audio")

    def parse_input_audio(self, input_audio, uuid=None):
        self._take("audio")

    def parse_audio_embeds(self, audio_embeds, uuid=None):
        self._take("audio")

    def parse_video(self, video_url, uuid=None):
        self._take("video")

    def parse_video_embeds(self, video_embeds, uuid=None):
        self._take("video")

    def parse_prompt_embeds(self, data):
        raise NotImplementedError


class Tracker:
    def __init__(self, model_config, media_io_kwargs=None):
        pass

    def create_parser(self, mm_processor_kwargs=None):
        return Parser()

    def resolve_items(self):
        return None, None


chat_utils.MultiModalItemTracker = Tracker


class Tokenizer:
    is_fast = True

    def __init__(self):
        self.call = None

    def get_chat_template(self, chat_template, tools=None):
        return chat_template

    def apply_chat_template(
        self,
        conversation,
        tools=None,
        documents=None,
        chat_template=None,
        add_generation_prompt=False,
        continue_final_message=False,
        tokenize=True,
        padding=False,
        truncation=False,
        max_length=None,
        return_tensors=None,
        return_dict=True,
        return_assistant_tokens_mask=False,
        tokenizer_kwargs=None,
        **kwargs,
    ):
        if continue_final_message and add_generation_prompt:
            raise ValueError("incompatible")
        if not conversation:
            raise ValueError("empty")
        self.call = {
            "messages": conversation,
            "tools": tools,
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            "kwargs": kwargs,
        }
        return ""


class Renderer:
    """The renderer of a Hugging Face model, without the model."""

    def __init__(self, content_format):
        self.content_format = content_format
        self.tokenizer = Tokenizer()
        self.model_config = MODEL_CONFIG

    def get_tokenizer(self):
        return self.tokenizer

    async def render_chat_async(self, conversations, params, tok_params, **_):
        (messages,) = conversations
        conversation, _, _ = chat_utils.parse_chat_messages(
            messages, self.model_config, content_format=self.content_format
        )
        kwargs = params.get_apply_chat_template_kwargs()
        # Every variable counts as used by the template.
        hf._cached_resolve_chat_template_kwargs = lambda _: set(kwargs)
        hf.safe_apply_chat_template(self.model_config, self.tokenizer, conversation, **kwargs)
        self.tok_params = tok_params
        return (conversation,), ("",)


MODEL_CONFIG = SimpleNamespace(
    hf_config=SimpleNamespace(model_type="llama"),
    multimodal_config=None,
    enable_prompt_embeds=False,
    max_model_len=1 << 20,
    model="m",
    tokenizer="m",
)


def requested(api, body, traits):
    value = json.loads(body)
    if api == "chat_completions":
        return ChatCompletionRequest.model_validate(value)
    if api == "responses":
        return ResponsesRequest.model_validate(value)
    assert api == "messages"
    return AnthropicServingMessages.to_chat_completion_request(
        AnthropicMessagesRequest.model_validate(value),
        merge_inline_system=traits["system_first"],
        disabled_thinking_effort=traits["thinking_off_effort"],
    )


def without_parser(api, request):
    """The request for a server without a tool parser, which does not change prompts."""
    if api != "responses" and request.tool_choice != "none":
        request.tool_choice = None
    return request


def plain(value):
    """JSON of a value that may hold pydantic's lazy lists."""
    return json.loads(json.dumps(value, ensure_ascii=True))


def without_engine(renderer, traits, **more):
    """vLLM's renderer of requests, for a model with these traits."""
    online = object.__new__(online_renderer.OnlineRenderer)
    online.__dict__.update(
        model_config=MODEL_CONFIG,
        renderer=renderer,
        parser=None,
        enable_auto_tools=True,
        exclude_tools_when_tool_choice_none=traits["hides_unused_tools"],
        default_chat_template_kwargs=traits["default_kwargs"],
        trust_request_chat_template=False,
        **more,
    )
    return online


def rendered(online, api, request):
    render = online.render_responses if api == "responses" else online.render_chat
    return asyncio.run(render(request))


def conversation(api, body, traits):
    """What the template gets, or None when vLLM refuses the request."""
    renderer = Renderer(traits["content_format"])
    template = "'developer'" if traits["developer"] else "no such role"
    online = without_engine(
        renderer,
        traits,
        use_harmony=False,
        chat_template=template,
        chat_template_content_format="auto",
        trust_request_mm_kwargs=True,
    )
    try:
        request = without_parser(api, requested(api, body, traits))
        result = rendered(online, api, request)
        call = renderer.tokenizer.call
        if isinstance(result, ErrorResponse) or call is None:
            return None
        call["special_tokens"] = renderer.tok_params.add_special_tokens
        call["truncate"] = renderer.tok_params.truncate_prompt_tokens
        call["truncate_side"] = renderer.tok_params.truncation_side
        call = plain(call)
        # No tokenizer takes half of a surrogate pair.
        json.dumps(call, ensure_ascii=False).encode()
        return call
    except Exception as error:  # noqa: BLE001
        if os.environ.get("ORACLE_DEBUG"):
            print(repr(error)[:500])
        return None


class CodeRenderer:
    """A renderer of vLLM's that writes chats by code, without a model."""

    def __init__(self, kind, tokenizer):
        self.renderer = object.__new__(kind)
        self.renderer.__dict__.update(tokenizer=tokenizer, model_config=MODEL_CONFIG)
        self.tokenizer = tokenizer

    async def render_chat_async(self, conversations, params, tok_params, **_):
        (messages,) = conversations
        conversation, self.prompt = self.renderer.render_messages(messages, params)
        return (conversation,), ("",)


def code_prompt(renderer, api, body, traits, read):
    """What `read` makes of the prompt of a :class:`CodeRenderer`, or None when vLLM refuses the request."""
    traits = {**cases.TRAITS, "system_first": True, **traits}
    online = without_engine(
        renderer,
        traits,
        use_harmony=False,
        chat_template=None,
        chat_template_content_format="auto",
        trust_request_mm_kwargs=True,
    )
    try:
        request = without_parser(api, requested(api, body, traits))
        if isinstance(rendered(online, api, request), ErrorResponse):
            return None
        return read(renderer.prompt)
    except Exception as error:  # noqa: BLE001
        if os.environ.get("ORACLE_DEBUG"):
            print(renderer.tokenizer, api, body[:300], repr(error)[:300])
        return None
