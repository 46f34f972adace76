"""The frames of the AI SDK's `WebSocketChatTransport`, of clients and of the server, as types. Pure."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from connections.aisdk.chunks import AnyChunk
from connections.aisdk.requests import GenerationOptions, Trigger, UIChatRequest
from connections.protocol.frames import Id, Name, Token

RequestId = Annotated[str, Meta(min_length=1, max_length=128)]
Headers = dict[str, Token]


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
