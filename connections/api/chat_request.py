"""OpenAI's requests, as far as supported (API reference: Chat, Completions). Only types, with its names.

Besides OpenAI's own fields there are those of vLLM, SGLang, Ollama and DeepSeek that have an effect here.
"""

from __future__ import annotations

import msgspec

from connections.api.fields import null


class ImageUrl(msgspec.Struct, frozen=True):
    """An image in a `data:` URL. `detail`: how closely the model should look at it."""

    url: str
    detail: str | None = None


class Part(msgspec.Struct, frozen=True):
    """A part of a message's content: text, an image, or an assistant's reasoning."""

    type: str
    text: str | None = None
    thinking: str | None = None
    image_url: ImageUrl | str | None = None


class MessageFunction(msgspec.Struct, frozen=True):
    """A function that was called. `arguments`: the text of a JSON object."""

    name: str
    arguments: str = "{}"


class MessageCall(msgspec.Struct, frozen=True):
    """A call in an assistant's message."""

    function: MessageFunction
    id: str = ""
    type: str = "function"


class ChatMessage(msgspec.Struct, frozen=True):
    """A message of a request. `reasoning` is vLLM's newer name for `reasoning_content`; `function_call` is refused."""

    role: str
    content: str | list[Part] | None = None
    tool_calls: list[MessageCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    function_call: msgspec.Raw = msgspec.field(default_factory=null)
    audio: msgspec.Raw = msgspec.field(default_factory=null)


class Function(msgspec.Struct, frozen=True):
    """A function that may be called. `parameters`: a JSON Schema of an object."""

    name: str
    description: str | None = None
    parameters: msgspec.Raw = msgspec.field(default_factory=null)


class FunctionTool(msgspec.Struct, frozen=True):
    """A tool of a request."""

    function: Function | None = None
    type: str = "function"


class FunctionName(msgspec.Struct, frozen=True):
    """Names a function."""

    name: str


class NamedTool(msgspec.Struct, frozen=True):
    """Names a tool."""

    function: FunctionName
    type: str = "function"


class AllowedTools(msgspec.Struct, frozen=True):
    """Some of the tools, and whether one of them has to be called."""

    tools: list[NamedTool]
    mode: str = "auto"


class ToolChoice(msgspec.Struct, frozen=True):
    """The one function to call, or the tools that may be called."""

    type: str = "function"
    function: FunctionName | None = None
    allowed_tools: AllowedTools | None = None


class NamedSchema(msgspec.Struct, frozen=True):
    """A JSON Schema. `strict` has no effect: a reply with a schema always follows it."""

    name: str = ""
    schema: msgspec.Raw = msgspec.field(default_factory=null)
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True):
    """The format of a reply: `text`, `json_object` or `json_schema`."""

    type: str
    json_schema: NamedSchema | None = None


class StructuredOutputs(msgspec.Struct, frozen=True):
    """vLLM's fields for the same; one of them. `json`: a JSON Schema, or its text; `grammar`: Lark as in llguidance."""

    json: msgspec.Raw = msgspec.field(default_factory=null)
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: msgspec.Raw = msgspec.field(default_factory=null)


class Reasoning(msgspec.Struct, frozen=True):
    """OpenRouter's fields for reasoning. `exclude`: it is not sent."""

    effort: str | None = None
    enabled: bool | None = None
    exclude: bool | None = None


class Thinking(msgspec.Struct, frozen=True):
    """DeepSeek's field for the same: `enabled` or `disabled`."""

    type: str


class StreamOptions(msgspec.Struct, frozen=True):
    """Options of a stream."""

    include_usage: bool | None = None


class BaseRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that both endpoints of OpenAI's have.

    `n`: number of replies. `top_k`, `repetition_penalty`, `min_p`, `min_tokens`, `ignore_eos`,
    `skip_special_tokens` and those that begin with `guided_` come from other servers.
    """

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: msgspec.Raw = msgspec.field(default_factory=null)
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    user: str | None = None

    @property
    def cached_for(self) -> str:
        """What the application says about its user: prompts of others are cached apart."""
        return self.prompt_cache_key or self.safety_identifier or self.user or ""

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with its usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


class ChatRequest(BaseRequest, frozen=True, kw_only=True):
    """A request of `POST /v1/chat/completions`."""

    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: str | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    verbosity: str | None = None
    reasoning_effort: str | None = None
    reasoning: Reasoning | None = None
    think: bool | str | None = None
    thinking: Thinking | None = None
    enable_thinking: bool | None = None
    include_reasoning: bool | None = None
    chat_template_kwargs: dict[str, str | int | float | bool | None] | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None


class CompletionRequest(BaseRequest, frozen=True, kw_only=True):
    """A request of `POST /v1/completions`. `logprobs`: number of likeliest tokens to send with each one."""

    prompt: str | list[str]
    logprobs: int | None = None
