"""A run's request (AG-UI 1.0), as far as it has an effect here, and its conversion for a turn. Pure; a refusal names the field.

A run's messages and tools are OpenAI's in other terms: they are converted to those, and read as at the chat's endpoint.
`state` is left out: no model reads it, and nothing here changes it. It stays as the client has it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from connections.api import chat_requests
from connections.api.chat_requests import (
    ChatMessage,
    ChatRequest,
    Function,
    FunctionTool,
    MessageCall,
    Part,
)
from connections.api.requests import Problem, decode_body, invalid, invalid_field, null
from connections.protocol.base import Limits
from sessions.running.ephemeral import EphemeralRequest

_ChatContent = str | list[Part] | None
MAX_ID_CHARS = 256
"""Characters of a thread's or a run's id: each end of a run repeats both."""
_IGNORED = ("activity",)
"""Roles of messages for people only."""
_MESSAGE_INDEX = re.compile(r"messages\[(\d+)\]")
_NAMES = (("tool_call_id", "toolCallId"), ("tool_calls", "toolCalls"))
_FUNCTION = re.compile(r"(tools\[\d+\])\.function")


class Source(msgspec.Struct, frozen=True, rename="camel"):
    """A part's content: in base64 (`data`), or at a URL (`url`), which may be a `data:` URL."""

    type: str = ""
    value: str = ""
    mime_type: str = ""


class RunPart(msgspec.Struct, frozen=True, rename="camel"):
    """A part of a message. `source`: of an image, sound, video or document; `binary`, which is older, has none."""

    type: str
    text: str | None = None
    source: Source | None = None
    mime_type: str = ""
    data: str | None = None
    url: str | None = None

    @property
    def image_url(self) -> str | None:
        """The image's URL; None for any other part."""
        match self:
            case RunPart(type="image", source=Source(type="data", value=value, mime_type=kind)):
                return f"data:{kind};base64,{value}"
            case RunPart(type="image", source=Source(type="url", value=value)):
                return value
            case RunPart(type="binary", mime_type=kind) if kind.startswith("image/"):
                return self.url if self.data is None else f"data:{kind};base64,{self.data}"
        return None


class RunMessage(msgspec.Struct, frozen=True, rename="camel"):
    """A message of any role. `error`: why a tool failed."""

    role: str
    id: str = ""
    content: msgspec.Raw = msgspec.field(default_factory=null)
    tool_calls: list[MessageCall] | None = None
    tool_call_id: str | None = None
    error: str | None = None


class RunTool(msgspec.Struct, frozen=True):
    """A tool that the client runs. `parameters`: a JSON Schema of an object."""

    name: str
    description: str | None = None
    parameters: msgspec.Raw = msgspec.field(default_factory=null)


class RunContext(msgspec.Struct, frozen=True):
    """Information for the model besides the conversation."""

    description: str
    value: str


class ForwardedProps(msgspec.Struct, frozen=True):
    """The client's own fields that have an effect here: which model answers, and how. They have OpenAI's names.

    `server_tools`: the server tools that a run may call, `*` for all; its thread is then kept here.
    """

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    reasoning_effort: str | None = None
    enable_thinking: bool | None = None
    tool_choice: str | None = None
    parallel_tool_calls: bool | None = None
    server_tools: list[str] | None = None


class ResumeEntry(msgspec.Struct, frozen=True, rename="camel"):
    """The answer to an interrupt. `payload`: its content, if it is `resolved`."""

    interrupt_id: str
    status: str = "resolved"
    payload: msgspec.Raw = msgspec.field(default_factory=null)


class Payload(msgspec.Struct, frozen=True, rename="camel"):
    """Whether a call may run. `edited_args`: other arguments to run with, an object."""

    approved: bool
    edited_args: dict[str, msgspec.Raw] | None = None


class RunInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A request of `POST /v1/ag-ui`. `forwarded_props`: any JSON; `resume` answers the interrupts of the last run.

    `protocol_version`: from AG-UI 1.0 on; clients before it refuse events with fields that they do not know.
    """

    thread_id: str
    run_id: str
    messages: list[RunMessage]
    tools: list[RunTool] | None = None
    context: list[RunContext] | None = None
    forwarded_props: msgspec.Raw = msgspec.field(default_factory=null)
    resume: list[ResumeEntry] | None = None
    protocol_version: str | None = None

    @property
    def props(self) -> ForwardedProps:
        """The fields of `forwarded_props` that have an effect here. Raises msgspec.ValidationError."""
        is_object = bytes(self.forwarded_props).startswith(b"{")
        return _props(self.forwarded_props) if is_object else ForwardedProps()

    @property
    def model(self) -> str | None:
        """The requested model; None: the default."""
        return self.props.model


_decode = msgspec.json.Decoder(RunInput).decode


def run_input(body: bytes) -> RunInput:
    """Return the request in a body, with checked types. Raises Problem, TooManyValues."""
    request = decode_body(body, _checked)
    for field, name in (("threadId", request.thread_id), ("runId", request.run_id)):
        if not 0 < len(name) <= MAX_ID_CHARS:
            raise invalid_field(field, f"must have 1 to {MAX_ID_CHARS} characters.")
    return request


def _checked(body: bytes) -> RunInput:
    body.decode()  # the decoder does not check the UTF-8 of raw fields
    request = _decode(body)
    _ = request.props
    return request


def ask_of(request: RunInput, limits: Limits) -> EphemeralRequest:
    """Return the messages and how to answer them. Raises Problem."""
    places = [number for number, one in enumerate(request.messages) if one.role not in _IGNORED]
    reader = _ContentReader(accepts_images=bool(limits.max_images))
    messages, starts = _messages(request.messages, places, reader)
    try:
        ask = chat_requests.chat_turn_request(_chat(request, messages), limits)
    except Problem as problem:
        raise _with_client_names(problem, starts) from None
    ignored = (*(("messages",) if reader.skipped else ()), *(("resume",) if request.resume else ()))
    return msgspec.structs.replace(ask, user=request.thread_id, ignored=ignored, streams=True)


class _ContentReader:
    """Reads parts of messages. As the protocol asks, unreadable parts fail no run: they set `skipped`."""

    def __init__(self, *, accepts_images: bool) -> None:
        self.skipped = False
        self._accepts_images = accepts_images

    def read(self, content: Content) -> str | list[Part] | None:
        """Convert content for the chat's endpoint."""
        return list(self._parts(content)) if isinstance(content, list) else content

    def _parts(self, parts: Sequence[RunPart]) -> Iterator[Part]:
        for part in parts:
            if part.type == "text":
                yield Part("text", part.text)
            elif self._accepts_images and (url := part.image_url) is not None:
                yield Part("image_url", image_url=url)
            else:
                self.skipped = True


def names_of(request: RunInput) -> Mapping[str, str]:
    """Return this client's names of fields that lower layers name differently."""
    return chat_requests.field_names(_chat(request, [])) | {"tools": "tools"}


def _chat(request: RunInput, messages: Sequence[ChatMessage]) -> ChatRequest:
    """Return the run as a request of the chat's endpoint."""
    props = msgspec.structs.asdict(request.props)
    del props["server_tools"]
    tools = [FunctionTool(Function(one.name, one.description, one.parameters)) for one in request.tools or ()]
    full_message = _with_context(messages, request.context or ())
    return ChatRequest(
        **props | {"model": request.model or "", "messages": full_message, "tools": tools or None}
    )


def _messages(
    given: Sequence[RunMessage], places: Sequence[int], reader: _ContentReader
) -> tuple[list[ChatMessage], list[int]]:
    """Return the messages, and their places in the request. A reply's reasoning, text and calls are joined."""
    groups: list[list[ChatMessage]] = []
    starts: list[int] = []
    for place in places:
        one = _message(given[place], f"messages[{place}]", reader)
        if groups and one.role == groups[-1][-1].role == "assistant":
            groups[-1].append(one)
        else:
            groups.append([one])
            starts.append(place)
    return [_joined(group) if len(group) > 1 else group[0] for group in groups], starts


def _message(message: RunMessage, where: str, reader: _ContentReader) -> ChatMessage:
    try:
        content = reader.read(_content(message.content))
    except msgspec.ValidationError:
        raise invalid_field(f"{where}.content", "must be a string or a list of parts.") from None
    if message.role == "reasoning":
        return ChatMessage("assistant", reasoning=_text(content))
    if message.role == "tool" and message.error:
        content = "\n".join(filter(None, (f"Error: {message.error}", _text(content))))
    return ChatMessage(
        message.role, content, tool_calls=message.tool_calls, tool_call_id=message.tool_call_id
    )


def _text(content: _ChatContent) -> str:
    if isinstance(content, list):
        return "\n".join(part.text for part in content if part.text)
    return content or ""


def _joined(messages: Sequence[ChatMessage]) -> ChatMessage:
    """Join what one reply thought, said and called, in one pass: there may be thousands."""
    calls: list[MessageCall] = [call for one in messages for call in one.tool_calls or ()]
    return ChatMessage(
        "assistant",
        "\n".join(filter(None, (_text(one.content) for one in messages))),
        tool_calls=calls or None,
        reasoning="\n".join(one.reasoning for one in messages if one.reasoning) or None,
    )


def _with_context(messages: Sequence[ChatMessage], context: Sequence[RunContext]) -> list[ChatMessage]:
    """Put the context into the user's last message, so that earlier messages stay as they are cached."""
    full_message = list(messages)
    if not context:
        return full_message
    context_text = "\n".join(f"{one.description}: {one.value}" for one in context)
    last = next(
        (place for place in reversed(range(len(full_message))) if full_message[place].role == "user"), None
    )
    if last is None:
        return [*full_message, ChatMessage("user", context_text)]
    parts = list(_parts(full_message[last].content))
    full_message[last] = ChatMessage("user", [Part("text", f"{context_text}\n"), *parts])
    return full_message


def _parts(content: _ChatContent) -> Iterator[Part]:
    if isinstance(content, list):
        yield from content
    elif content is not None:
        yield Part("text", content)


def _with_client_names(problem: Problem, starts: Sequence[int]) -> Problem:
    """Return the same problem with the client's own places and names."""

    def full_message(text: str) -> str:
        for theirs, ours in _NAMES:
            text = text.replace(theirs, ours)
        text = _FUNCTION.sub(r"\1", text)
        return _MESSAGE_INDEX.sub(lambda found: f"messages[{_start(starts, int(found[1]))}]", text)

    field = full_message(problem.param) if problem.param else None
    return invalid(field, full_message(str(problem)), code=problem.code)


def _start(starts: Sequence[int], place: int) -> int:
    return starts[place] if place < len(starts) else place


_props = msgspec.json.Decoder(ForwardedProps).decode
Content = str | list[RunPart] | None
_content = msgspec.json.Decoder(Content).decode
