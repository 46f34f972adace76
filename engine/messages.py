"""The values that cross the engine's interface: requests, outputs, facts about the model.

Every type is a frozen msgspec struct, so that the same values serve as Python API
and, as msgpack, each after its length, as messages between the gateway and the engine's process.
"""

from __future__ import annotations

import re
import socket
import struct
import threading
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from enum import StrEnum
from typing import Generic, Literal, TypeVar

import msgspec

from engine.vision.image import Image

GROUP_SEPARATOR = "\x1f"
"""Separates a group from its client in a client's name. It is ASCII's unit separator, which no name has."""


class ToolCall(msgspec.Struct, frozen=True):
    """A call that a model wrote. `arguments`: the text of a JSON object. `call_id`: the id that its result refers to."""

    call_id: str
    name: str
    arguments: str


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message of a prompt, in the terms of the model's chat template.

    An assistant's message may have `reasoning` and `calls`. A tool's message answers the call `call_id`. A user's message
    may have `images`, in the order of their places in the text.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""
    images: tuple[Image, ...] = ()

    def without_data(self) -> Message:
        """Return the same message without the bytes of its images."""
        return msgspec.structs.replace(self, images=tuple(image.named() for image in self.images))


REPLY_TOKENS = 8192
"""The longest reply if neither its sender nor the model nor the operator names a limit."""


class Params(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a reply is generated. `None` means: as in the model's own generation config.

    `top_logprobs`: how many likeliest tokens' log-probabilities come with each token's own; None: none come.
    `min_p`: a token needs that share of the likeliest one's probability. `presence_penalty` is subtracted once from the
    logits of tokens that the reply has, `frequency_penalty` for each time that they came. `logit_bias`: token ids and
    what is added to their logits. `min_tokens`: the reply ends no sooner. `ignore_eos`: no end token ends it.
    `special_tokens`: the text shows them.
    """

    max_new_tokens: int | None = None
    do_sample: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    max_time_s: float | None = None
    top_logprobs: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    special_tokens: bool | None = None


class Tool(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool that a model may call. `parameters`: a JSON Schema of an object, as text.

    `strict`: arguments follow the schema exactly, or the request is refused. Otherwise keywords that no grammar can
    follow are ignored.
    """

    name: str
    description: str = ""
    parameters: str = '{"type":"object","properties":{}}'
    strict: bool = False


class JsonSchema(msgspec.Struct, frozen=True, tag="json_schema", omit_defaults=True):
    """The reply is JSON that this JSON Schema, as text, allows. `strict`: as with tools."""

    schema: str
    strict: bool = True


class JsonObject(msgspec.Struct, frozen=True, tag="json_object"):
    """The reply is some JSON object."""


class Regex(msgspec.Struct, frozen=True, tag="regex"):
    """The whole reply matches a regular expression."""

    pattern: str


class Grammar(msgspec.Struct, frozen=True, tag="grammar"):
    """The reply is a sentence of this grammar, in the dialect of Lark that llguidance reads."""

    lark: str


Format = JsonSchema | JsonObject | Regex | Grammar


class Translation(msgspec.Struct, frozen=True, omit_defaults=True):
    """The reply is a translation of the last message. Only models whose facts have `languages` follow it; others refuse it.

    `target`, `source`: codes as the model names them; empty: its only one. `prefix`: the translation so far, which is
    forced; the reply is what follows it, with the blank between both, if there is one. A blank at the end of the prefix
    is left out. The prefix must be whole words, else the model may spell it in other tokens than its own. `unfinished`: the
    source continues. A model trained for that translates only what its beginning determines; others ignore this.
    """

    target: str = ""
    source: str = ""
    prefix: str = ""
    unfinished: bool = False


TemplateValue = str | int | float | bool | None


class ReplySpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """The spec of a reply, apart from its sampling. It shapes the prompt and the grammar.

    `tool_choice`: `auto`, `none` (the model is not shown the tools), `required`, or `named`: the one in `tool_name`.
    `parallel_calls`: a reply may have more than one call. `reasoning`: `auto`, `off`, `least` (as little as the template
    allows), or an effort, which a model without efforts ignores.
    `template`: further variables of the chat template. `continues`: the reply continues the last message, which is the
    assistant's. `translation`: the last message is translated.
    """

    tools: tuple[Tool, ...] = ()
    tool_choice: Literal["auto", "none", "required", "named"] = "auto"
    tool_name: str = ""
    parallel_calls: bool = True
    format: Format | None = None
    reasoning: str = "auto"
    template: dict[str, TemplateValue] = {}
    continues: bool = False
    translation: Translation | None = None

    @property
    def must_call(self) -> bool:
        """Whether the reply must be a call: it has no text that a format could apply to."""
        return bool(self.tools) and self.tool_choice in ("required", "named")

    @property
    def shown_tools(self) -> tuple[Tool, ...]:
        """The tools that the prompt shows."""
        return () if self.tool_choice == "none" else self.tools


PLAIN = ReplySpec()
"""A plain text reply."""


class Trace(msgspec.Struct, frozen=True, omit_defaults=True):
    """The ids of a request, from a client or its proxy, for logs and upstreams. They decide nothing.

    `request_id`: the header `X-Request-Id`. `traceparent`: W3C Trace Context's. Empty if missing or invalid.
    """

    request_id: str = ""
    traceparent: str = ""

    @property
    def trace_id(self) -> str:
        """The trace id, which all parts of one request share; empty without tracing."""
        return self.traceparent[3:35]

    @property
    def facts(self) -> dict[str, str]:
        """These ids as fields of log lines."""
        fields = {"request_id": self.request_id, "trace_id": self.trace_id}
        return {name: value for name, value in fields.items() if value}

    @property
    def headers(self) -> dict[str, str]:
        """The headers that pass these ids on to a server."""
        headers = {"X-Request-Id": self.request_id, "traceparent": self.traceparent}
        return {name: value for name, value in headers.items() if value}


NO_TRACE = Trace()
current_trace: ContextVar[Trace] = ContextVar("trace", default=NO_TRACE)
"""The ids of the current task's request. Tasks inherit them from the task that began them."""


class Request(msgspec.Struct, frozen=True, tag="request"):
    """Asks for one reply. `request_id` is unique among the open requests.

    `cache_salt`: a prompt only reuses cached keys and values of the same salt. `shares_system`: the system prompt is the
    operator's, so everyone may share its keys and values. `client`: the engine is fair between clients; in a group a
    client's name is the group's name, `GROUP_SEPARATOR` and its own. A higher `priority` leaves the queue first.
    `conversation`: of several engines, the one that served this conversation last is preferred, since it has the keys and
    values. `model`: empty for the default. `fallbacks`: models that serve now and can answer instead; so this request fails
    at once if it can't be served at once. `trace`: ids for logs and upstreams.
    """

    request_id: str
    messages: tuple[Message, ...]
    params: Params = Params()
    cache_salt: str = ""
    shares_system: bool = False
    client: str = ""
    priority: int = 0
    conversation: str = ""
    model: str = ""
    fallbacks: tuple[str, ...] = ()
    spec: ReplySpec = PLAIN
    trace: Trace = NO_TRACE


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """Stops a request, wherever it is. Unknown ids are ignored, since their replies have ended."""

    request_id: str


class CountRequest(msgspec.Struct, frozen=True, tag="count"):
    """Asks for the prompt length, in tokens, of messages under the model's chat template. `client`, `spec`: as in `Request`.

    A spec whose grammar can't be compiled is refused here.
    """

    count_id: int
    messages: tuple[Message, ...]
    client: str = ""
    spec: ReplySpec = PLAIN


class CancelCount(msgspec.Struct, frozen=True, tag="uncount"):
    """Nobody waits for a count any more. No answer follows, except one that was already on its way."""

    count_id: int


class CountResult(msgspec.Struct, frozen=True, tag="counted"):
    """Answers `CountRequest`. Beyond the window `tokens` is a lower bound. `error`, `field`: see `PromptRejected`."""

    count_id: int
    tokens: int
    error: str | None = None
    field: str = ""


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Asks whether the process is alive. The answer does not wait for the step loop, so a long step causes no silence."""

    number: int


class Pong(msgspec.Struct, frozen=True, tag="pong"):
    """Answers `Ping`. `busy`: the step loop is at work. `turns`: how many it has begun; if they don't rise, it is stuck."""

    number: int
    busy: bool = False
    turns: int = 0


class FinishReason(StrEnum):
    """Why the engine ended a reply."""

    STOP = "stop"
    """An end-of-sequence token or a stop string."""
    LENGTH = "length"
    """`max_new_tokens` were made, or the context window is full."""
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    """`max_time_s` passed."""
    ERROR = "error"


class ErrorCode(StrEnum):
    """Whose fault an ERROR is."""

    INTERNAL = "internal"
    CONTEXT_OVERFLOW = "context_overflow"
    """By an upstream's tokenizer the prompt is longer than the window; here its length was only estimated."""
    BAD_PARAMS = "bad_params"
    """A part of the request can't be followed."""


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """A token and the natural logarithm of its probability according to the model, before penalties, temperature and limits.

    `raw`: its bytes, which may be a part of a character; None if it has no text.
    """

    token: str
    logprob: float
    raw: bytes | None


class ChosenToken(msgspec.Struct, frozen=True, array_like=True):
    """A token of a reply, and the likeliest tokens in its place, in order; the chosen one may be among them.

    `end`: how many characters the reply has up to the end of this token.
    """

    chosen: TokenLogprob
    top: tuple[TokenLogprob, ...]
    end: int


class Chunk(msgspec.Struct, frozen=True, tag="chunk", omit_defaults=True):
    """Whole characters of a reply, ready to show. `text` is never empty.

    `tokens`: how many tokens were generated for it since the output before it.
    `logprobs`: if they were asked for, the tokens whose whole text has been output by now; each token is in one chunk.
    """

    request_id: str
    text: str
    tokens: int
    logprobs: tuple[ChosenToken, ...] = ()


class Reasoning(msgspec.Struct, frozen=True, tag="reasoning"):
    """Whole characters of the model's reasoning. Fields as in `Chunk`."""

    request_id: str
    text: str
    tokens: int


class ToolCallOutput(msgspec.Struct, frozen=True, tag="called", omit_defaults=True):
    """A complete call of the model. `arguments`: the text of a JSON object. `tokens`: as in `Chunk`.

    What looked like a call and is none becomes text. `call_id`: the upstream's id of the call; empty: there is none yet.
    """

    request_id: str
    name: str
    arguments: str
    tokens: int
    call_id: str = ""


class Queued(msgspec.Struct, frozen=True, tag="queued"):
    """A request waits. `position` counts from 1, the next to start; sent when it changes."""

    request_id: str
    position: int


class Prefilling(msgspec.Struct, frozen=True, tag="prefilling"):
    """A prompt that takes more than one step is being computed: `progress` is the share that is done, from 0 to 1."""

    request_id: str
    progress: float


class Retried(msgspec.Struct, frozen=True, tag="retried"):
    """A request that failed before it had any text is retried. `elsewhere`: by another engine, else by the same."""

    request_id: str
    elsewhere: bool


class Started(msgspec.Struct, frozen=True, tag="started"):
    """A request left the queue. Its prefill begins with the step that sends this."""

    request_id: str
    prompt_tokens: int
    cached_tokens: int = 0


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """The one end of a request. Text that was held back comes in a `Chunk` before it (except at a cancel).

    `steps_after`: steps started for this request after its cancel was read; None without a cancel, and where the request
    had been sent to an upstream. `error_code` says whose fault an `error` is. `generated_tokens` counts every token of the
    reply, the end token included. `stop`: the stop string that ended it; None: none did, or an upstream does not report it.
    """

    request_id: str
    reason: FinishReason
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    steps_after: int | None = None
    error: str | None = None
    error_code: ErrorCode = ErrorCode.INTERNAL
    stop: str | None = None


Output = Queued | Retried | Started | Prefilling | Chunk | Reasoning | ToolCallOutput | Finished


class StepOutputs(msgspec.Struct, frozen=True, tag="step"):
    """All outputs of one engine step, in order: one message a step for all requests.

    `made_at`: when the step's tokens were fetched, by the machine's monotonic clock, which all of its processes share.
    """

    outputs: tuple[Output, ...]
    made_at: float = 0.0


class Loading(msgspec.Struct, frozen=True, tag="loading"):
    """Progress of the start. `progress` is a share from 0 to 1, `stage` is for people."""

    stage: str
    progress: float


class Languages(msgspec.Struct, frozen=True):
    """The languages of a model that translates, by its own codes: from one of `sources` to one of `targets`.

    `source_tokens`: the most tokens of a text that it reads at once.
    """

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    source_tokens: int


class ModelFacts(msgspec.Struct, frozen=True, tag="ready"):
    """Sent once the model can serve. `defaults` has a value for every field of `Params` that the model defines.

    `features`: the parts of `ReplySpec` that it can follow: `tools`, `reasoning`, `effort`, `template`, `format`, `continue`,
    `translate`; `images` in messages; `tools.auto` if no choice is followed; `format.` and a tag if only some are.

    `context_tokens`: the most tokens of prompt and reply together. `lacks`: fields of `Params` that the engine can't follow.
    `languages`: of a model that only translates.
    """

    model: str
    context_tokens: int
    defaults: Params
    device: str
    dtype: str
    max_batch: int
    parameters: int
    lacks: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    languages: Languages | None = None


class LoadFailed(msgspec.Struct, frozen=True, tag="failed"):
    """The model can never be served with these settings. `message`: for the operator, without a traceback."""

    message: str


class EngineStatistics(msgspec.Struct, frozen=True, tag="statistics"):
    """Numbers for metrics. Counters only grow while the engine's process lives.

    `running` and `queued` count requests, `prompt_tokens` computed tokens, `cached_tokens` those with kept keys and values.
    `kv_used_bytes` are held by running replies, `kv_cached_bytes` kept for later turns.
    Of an upstream alone: `failures`, failed requests; `shed`, requests that it had no room for; `retries`, repeated requests;
    `fallbacks`, requests taken over from another upstream; `circuit_open`, 1 while its circuit is open; `deliveries`, pieces of
    text that readers took, and `delivery_seconds`, how long these had waited.
    Of an engine's process alone, as of the last time that anything changed: `cpu_seconds`, of all its threads;
    `resident_bytes`; `device_used_bytes` of `device_total_bytes` of a CUDA device's memory, other processes' share included.
    """

    running: int = 0
    queued: int = 0
    steps: int = 0
    prefill_steps: int = 0
    generated_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    cancels: int = 0
    steps_after_cancel: int = 0
    step_seconds: float = 0.0
    kv_used_bytes: int = 0
    kv_cached_bytes: int = 0
    kv_total_bytes: int = 0
    failures: int = 0
    shed: int = 0
    retries: int = 0
    fallbacks: int = 0
    circuit_open: int = 0
    deliveries: int = 0
    delivery_seconds: float = 0.0
    cpu_seconds: float = 0.0
    resident_bytes: int = 0
    device_used_bytes: int = 0
    device_total_bytes: int = 0


ToEngine = Request | Cancel | CountRequest | CancelCount | Ping
FromEngine = StepOutputs | CountResult | Loading | ModelFacts | LoadFailed | EngineStatistics | Pong

_REQUEST_ID = re.compile(r"[\w.:/+=-]{1,128}", re.ASCII)

_TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?"
)
"""W3C Trace Context, section 3.2. Only version 00 ends with the flags."""


def trace_of_headers(headers: Iterable[tuple[bytes, bytes]]) -> Trace:
    """Read a request's headers, with names in lower case. Invalid values are left out."""
    found = {name: value.decode("latin-1") for name, value in headers if name in _NAMES}
    request_id, traceparent = (found.get(name, "") for name in _NAMES)
    is_newer = not traceparent.startswith("00-")
    is_sound = _TRACEPARENT.fullmatch(traceparent) and (is_newer or len(traceparent) == _LENGTH)
    return Trace(
        request_id if _REQUEST_ID.fullmatch(request_id) else "",
        traceparent[:_LENGTH] if is_sound else "",
    )


_NAMES = (b"x-request-id", b"traceparent")
_LENGTH = 55


_PREFIX = struct.Struct(">I")
_LARGEST_READ = 1 << 18

R = TypeVar("R")


def pack(message: msgspec.Struct) -> bytes:
    """Return an encoded message. Raises UnicodeEncodeError for text with a lone surrogate."""
    body = msgspec.msgpack.encode(message)
    return _PREFIX.pack(len(body)) + body


class Unpacker:
    """Splits a stream of bytes into the bodies of messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, received: bytes) -> list[bytes]:
        """Take more bytes; return the bodies that are complete now."""
        self._buffer += received
        bodies = []
        start = 0
        while (body := start + _PREFIX.size) <= len(self._buffer):
            end = body + int(_PREFIX.unpack_from(self._buffer, start)[0])
            if end > len(self._buffer):
                break
            bodies.append(bytes(self._buffer[body:end]))
            start = end
        del self._buffer[:start]
        return bodies


class BlockingChannel(Generic[R]):
    """One end of a socket between two processes: one thread reads, any thread writes."""

    def __init__(self, connection: socket.socket, decoder: msgspec.msgpack.Decoder[R]) -> None:
        """Take a connected stream socket, and the decoder of the messages that arrive."""
        self._connection = connection
        self._decoder = decoder
        self._writing = threading.Lock()

    def send(self, message: msgspec.Struct) -> None:
        """Send a message; wait if the other end is late. Raises OSError once it is gone."""
        packed = pack(message)
        with self._writing:
            self._connection.sendall(packed)

    def receive(self) -> Iterator[R]:
        """Yield messages until the other end is closed. Raises OSError if the connection breaks."""
        unpacker = Unpacker()
        while received := self._connection.recv(_LARGEST_READ):
            for body in unpacker.feed(received):
                yield self._decoder.decode(body)
