"""The requests of the AI SDK's clients: bodies, and the frames of its `WebSocketChatTransport`. Pure.

A client sends its whole list of messages each time. Only the last one counts: what came before is in the history.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from connections.api.ai_sdk.encoder import AnyChunk
from connections.http import check_json_limits
from connections.images import MAX_IMAGES, InvalidImage, image_from_url
from connections.protocol import codec
from connections.protocol.base import Id, Name
from connections.protocol.errors import BadFrame, BadParams
from connections.protocol.frames import (
    MAX_TOOLS,
    JsonObject,
    ModelName,
    OfferedTool,
    Params,
    Token,
    ToolDecision,
    ToolDescription,
    ToolName,
    ToolResult,
)
from engine.vision.image import Image

Trigger = Literal["submit-message", "regenerate-message"]
_SHA256_CHARS = 64
RequestId = Annotated[str, Meta(min_length=1, max_length=128)]
Headers = dict[str, Token]


class ToolOfAMap(msgspec.Struct, frozen=True, kw_only=True):
    """A tool of a client that names its tools by the keys of an object."""

    description: ToolDescription | None = None
    parameters: JsonObject | None = None


class GenerationOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to generate a reply: the fields of `send`, and three fields of front ends that mean the same."""

    params: Params = Params()
    tools: tuple[OfferedTool, ...] | dict[ToolName, ToolOfAMap] = ()
    tool_choice: ToolName = "auto"
    on_busy: Literal["reject", "enqueue", "interrupt", "rollback"] = "interrupt"
    on_disconnect: Literal["cancel", "continue"] = "cancel"
    grace_s: float | None = None
    model: ModelName | None = None
    system: str | None = None

    def turn(self, *, grace_s: float) -> dict[str, Any]:
        """Return the fields of a frame. `grace_s`: the default. Raises BadParams."""
        grace_s = grace_s if self.grace_s is None else self.grace_s
        if not 0 <= grace_s <= 60:  # noqa: PLR2004 - what `send` allows
            raise BadParams("must be 0 to 60 seconds.", field="grace_s")
        return {
            "params": self._params(),
            "tools": self._tools(),
            "tool_choice": self.tool_choice,
            "on_busy": self.on_busy,
            "on_disconnect": self.on_disconnect,
            "grace_s": grace_s,
        }

    def _params(self) -> Params:
        return msgspec.structs.replace(
            self.params,
            model=self.params.model or self.model,
            system=self.params.system if self.system is None else self.system,
        )

    def _tools(self) -> tuple[OfferedTool, ...]:
        if len(self.tools) > MAX_TOOLS:
            raise BadParams(f"must have at most {MAX_TOOLS} items.", field="tools")
        if isinstance(self.tools, tuple):
            return self.tools
        return tuple(
            OfferedTool(name=name, description=tool.description or "", parameters=tool.parameters)
            for name, tool in self.tools.items()
        )


class UIChatRequest(GenerationOptions, frozen=True, kw_only=True):
    """A body. `id`: of the chat, which is a conversation. `message_id`: what is edited, regenerated, or continued."""

    id: Name
    messages: list[msgspec.Raw]
    trigger: Trigger = "submit-message"
    message_id: Id | None = msgspec.field(default=None, name="messageId")


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a call that waited for approval."""

    id: str = ""
    approved: bool | None = None


class Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A part of a message, of any kind."""

    type: str
    text: str = ""
    tool_call_id: str = ""
    state: str = ""
    output: Any = None
    error_text: str | None = None
    provider_executed: bool | None = None
    approval: Approval | None = None
    url: str = ""
    media_type: str = ""


class UIMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message in a front end."""

    id: Id
    role: Literal["system", "user", "assistant"]
    parts: list[Part]


class NewMessage(msgspec.Struct, frozen=True):
    """A user's message with its images. `is_edit`: it replaces the one with its id."""

    message_id: str
    content: str
    is_edit: bool = False
    images: tuple[Image, ...] = ()

    @property
    def attachments(self) -> tuple[str, ...]:
        """The ids of its images."""
        return tuple(image.digest for image in self.images)


class Regeneration(msgspec.Struct, frozen=True):
    """Another reply to a user's message. `reply_id`: the existing one, if the client names it."""

    reply_id: str | None
    question: NewMessage


class ToolAnswers(msgspec.Struct, frozen=True):
    """Outcomes of calls of a message, which then continues."""

    message_id: str
    answers: tuple[ToolResult | ToolDecision, ...]


ChatAction = NewMessage | Regeneration | ToolAnswers

_request_decoder = msgspec.json.Decoder(UIChatRequest)
_message_decoder = msgspec.json.Decoder(UIMessage)


def chat_request(body: bytes) -> UIChatRequest:
    """Return the request in a body. Raises BadFrame, TooManyValues."""
    check_json_limits(body)
    try:
        return codec.read(_request_decoder, body.decode())
    except UnicodeDecodeError:
        raise BadFrame("The request is not UTF-8.") from None


def action_of(request: UIChatRequest) -> ChatAction:
    """Return what a request's last message asks for. Raises BadFrame, BadParams."""
    if not request.messages:
        raise BadParams("must have a message.", field="messages")
    last = codec.read(_message_decoder, bytes(request.messages[-1]).decode())
    if last.role == "assistant":
        return ToolAnswers(last.id, tuple(_answers(last)))
    if last.role == "system":
        raise BadParams(
            "must end with a message of the user. Instructions go into `system`.", field="messages"
        )
    is_edit = request.trigger == "submit-message" and request.message_id == last.id
    images = _images(last)
    submitted = NewMessage(last.id, _text(last, is_alone=not images), is_edit, images)
    return (
        Regeneration(request.message_id, submitted) if request.trigger == "regenerate-message" else submitted
    )


def edit_id(submitted: NewMessage) -> str:
    """Return the id of an edit: the same for the same edit sent again."""
    named = "\0".join((submitted.message_id, submitted.content, *submitted.attachments))
    return hashlib.sha256(named.encode()).hexdigest()


def _text(message: UIMessage, *, is_alone: bool) -> str:
    text = "\n\n".join(part.text for part in message.parts if part.type == "text")
    if not text and is_alone:
        raise BadParams("ends with a message that has no text.", field="messages")
    return text


def _images(message: UIMessage) -> tuple[Image, ...]:
    """Return the images of a message. Raises BadParams for other files, or too many."""
    files = [part for part in message.parts if part.type == "file"]
    if len(files) > MAX_IMAGES:
        why = f"ends with a message that has more than {MAX_IMAGES} files."
        raise BadParams(why, field="messages")
    return tuple(map(_image, files))


def _image(part: Part) -> Image:
    if not part.media_type.startswith("image/"):
        why = "has a file that is no image. This server takes images as PNG, JPEG, WebP or GIF."
        raise BadParams(why, field="messages")
    try:
        return image_from_url(part.url)
    except InvalidImage as why:
        raise BadParams(f"has a file that can't be taken. {why}", field="messages") from None


def _answers(message: UIMessage) -> list[ToolResult | ToolDecision]:
    """Return the answers of a message to its calls, with those of earlier requests. Raises BadParams."""
    answers: list[ToolResult | ToolDecision] = []
    for part in message.parts:
        if part.approval is not None and part.approval.approved is not None and _is_decided(part):
            answers.append(_decision(part.tool_call_id, part.approval))
        elif part.state == "output-available" and not part.provider_executed:
            answers.append(ToolResult(call_id=part.tool_call_id, content=content_of(part.output)))
        elif part.state == "output-error" and not part.provider_executed:
            answers.append(ToolResult(call_id=part.tool_call_id, error=part.error_text or "It failed."))
    return answers


def _is_decided(part: Part) -> bool:
    """Return whether its approval may be new: a client that runs a call itself sends the result instead."""
    return part.state == "approval-responded" or bool(part.provider_executed)


def _decision(call_id: str, approval: Approval) -> ToolDecision:
    """Return a decision. Raises BadParams unless this server asked for the approval."""
    approved_call_id, _, shown = approval.id.rpartition(".")
    if approved_call_id != call_id or len(shown) != _SHA256_CHARS:
        raise BadParams("answers an approval that was not asked for.", field="messages")
    return ToolDecision(call_id=call_id, args_sha256=shown, decision="allow" if approval.approved else "deny")


def content_of(output: Any) -> str:
    """Return the text of a result from a client."""
    return output if isinstance(output, str) else msgspec.json.encode(output).decode()


class ChatFrame(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """The root of clients' frames. Answers carry the same `requestId`."""

    request_id: RequestId = msgspec.field(name="requestId")

    @property
    def ref(self) -> str:
        """What its answers carry."""
        return self.request_id


class SendFrame(ChatFrame, frozen=True, kw_only=True, tag="send"):
    """A message, or outcomes of calls. `headers`: `authorization` has a token. `body`: options of the reply."""

    id: Name
    messages: list[msgspec.Raw]
    trigger: Trigger = "submit-message"
    message_id: Id | None = msgspec.field(default=None, name="messageId")
    headers: Headers = {}
    body: GenerationOptions = GenerationOptions()

    def request(self) -> UIChatRequest:
        """Return the same as a body."""
        return UIChatRequest(
            id=self.id,
            messages=self.messages,
            trigger=self.trigger,
            message_id=self.message_id,
            **msgspec.structs.asdict(self.body),
        )


class ResumeFrame(ChatFrame, frozen=True, kw_only=True, tag="resume"):
    """Asks for the message that is being written, from its start."""

    id: Name
    headers: Headers = {}


class AbortFrame(ChatFrame, frozen=True, kw_only=True, tag="abort"):
    """The client wants no more of an answer."""


ClientFrame = SendFrame | ResumeFrame | AbortFrame


class ServerChatFrame(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", rename="camel", omit_defaults=True
):
    """The root of the server's frames."""

    request_id: str


class StartFrame(ServerChatFrame, frozen=True, kw_only=True, tag="start"):
    """A message begins."""


class ChunkFrame(ServerChatFrame, frozen=True, kw_only=True, tag="chunk"):
    """A chunk of it; `sequence` counts them from 0."""

    sequence: int
    chunk: AnyChunk


class EndFrame(ServerChatFrame, frozen=True, kw_only=True, tag="end"):
    """The message has been sent."""


class Refused(ServerChatFrame, frozen=True, kw_only=True, tag="error"):
    """The request was refused: a sentence for people."""

    error_text: str


class NoActiveFrame(ServerChatFrame, frozen=True, kw_only=True, tag="no-active"):
    """No message is being written."""


def token_of(headers: Headers) -> str | None:
    """The value of `Authorization`, whatever its case."""
    return next((value for name, value in headers.items() if name.lower() == "authorization"), None)
