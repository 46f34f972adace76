"""The requests of the AI SDK's clients.

A client sends its whole list of messages each time. Only the last message counts: the history has the others.

A person's chats are that person's conversations, on every device. With an application's key, or without
authentication, the owner is the client that the URL names. Without a name the chat's id is the name, so anybody who
knows the id has access. Clients show the whole body of a refusal to the user, so it is a sentence.
"""

from __future__ import annotations

import hashlib
from typing import Any, Literal

import msgspec

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
    ToolDecision,
    ToolDescription,
    ToolName,
    ToolResult,
)
from engine.vision.image import Image
from sessions.turn.message_request import OnBusy, OnDisconnect

_SHA256_CHARS = 64


class ToolOfAMap(msgspec.Struct, frozen=True, kw_only=True):
    """A tool of a client that names its tools by the keys of an object."""

    description: ToolDescription | None = None
    parameters: JsonObject | None = None


class UIChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A body: the message, and how to reply: fields of `send`, and three fields of front ends that mean the same.

    `id`: of the chat, which is a conversation. `message_id`: what is edited, regenerated, or continued.
    """

    id: Name
    messages: list[msgspec.Raw]
    trigger: Literal["submit-message", "regenerate-message"] = "submit-message"
    message_id: Id | None = msgspec.field(default=None, name="messageId")
    params: Params = Params()
    tools: tuple[OfferedTool, ...] | dict[ToolName, ToolOfAMap] = ()
    tool_choice: ToolName = "auto"
    on_busy: OnBusy = "interrupt"
    on_disconnect: OnDisconnect = "cancel"
    grace_s: float | None = None
    model: ModelName | None = None
    system: str | None = None

    def turn(self) -> dict[str, Any]:
        """Return the fields of a frame that begins a turn. Raises BadParams."""
        grace_s = self.grace_s or 0
        if not 0 <= grace_s <= 60:  # noqa: PLR2004 - what `send` allows
            raise BadParams("must be 0 to 60 seconds.", field="grace_s")
        params = msgspec.structs.replace(
            self.params,
            model=self.params.model or self.model,
            system=self.params.system if self.system is None else self.system,
        )
        return {
            "conversation_id": self.id,
            "params": params,
            "tools": self._tools(),
            "tool_choice": self.tool_choice,
            "on_busy": self.on_busy,
            "on_disconnect": self.on_disconnect,
            "grace_s": grace_s,
        }

    def _tools(self) -> tuple[OfferedTool, ...]:
        if len(self.tools) > MAX_TOOLS:
            raise BadParams(f"must have at most {MAX_TOOLS} items.", field="tools")
        if isinstance(self.tools, tuple):
            return self.tools
        return tuple(
            OfferedTool(name=name, description=tool.description or "", parameters=tool.parameters)
            for name, tool in self.tools.items()
        )


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
        raise BadParams("must end with a user message. Put instructions into `system`.", field="messages")
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
        raise BadParams("ends with a message without text.", field="messages")
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
        why = "has a file that is not an image. Supported: PNG, JPEG, WebP and GIF."
        raise BadParams(why, field="messages")
    try:
        return image_from_url(part.url)
    except InvalidImage as why:
        raise BadParams(f"has an unsupported file. {why}", field="messages") from None


def _answers(message: UIMessage) -> list[ToolResult | ToolDecision]:
    """Return the answers of a message to its calls, with those of earlier requests. Raises BadParams."""
    answers: list[ToolResult | ToolDecision] = []
    for part in message.parts:
        # a client that runs a call sends its result instead of a new approval
        may_be_approved = part.state == "approval-responded" or part.provider_executed
        if part.approval is not None and part.approval.approved is not None and may_be_approved:
            answers.append(_decision(part.tool_call_id, part.approval))
        elif part.state == "output-available" and not part.provider_executed:
            output = part.output
            content = output if isinstance(output, str) else msgspec.json.encode(output).decode()
            answers.append(ToolResult(call_id=part.tool_call_id, content=content))
        elif part.state == "output-error" and not part.provider_executed:
            answers.append(ToolResult(call_id=part.tool_call_id, error=part.error_text or "It failed."))
    return answers


def _decision(call_id: str, approval: Approval) -> ToolDecision:
    """Return a decision. Raises BadParams unless this server asked for the approval."""
    approved_call_id, _, shown = approval.id.rpartition(".")
    if approved_call_id != call_id or len(shown) != _SHA256_CHARS:
        raise BadParams("answers an approval that was not requested.", field="messages")
    return ToolDecision(call_id=call_id, args_sha256=shown, decision="allow" if approval.approved else "deny")
