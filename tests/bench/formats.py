"""The requests and events of further endpoints, for a streamed reply over HTTP."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from tests.bench.client import ClientEvent, Kind, ServerMisbehaved
from tests.bench.records import ServerApi


class Counts(msgspec.Struct):
    """Tokens, under the names of several endpoints."""

    output_tokens: int = 0


class Facts(msgspec.Struct, rename="camel"):
    """Metadata of a reply, at the AI SDK's endpoint."""

    generated_tokens: int = 0


class Metadata(msgspec.Struct):
    """Metadata of a message, at the AI SDK's endpoint."""

    midstream: Facts


class Response(msgspec.Struct):
    """Response of the Responses API."""

    usage: Counts | None = None


class Event(msgspec.Struct):
    """The fields of events that are read."""

    type: str
    response: Response | None = None
    usage: Counts | None = None
    message_metadata: Metadata | None = msgspec.field(name="messageMetadata", default=None)

    @property
    def tokens(self) -> int:
        """Number of generated tokens, if the event has it."""
        if self.message_metadata is not None:
            return self.message_metadata.midstream.generated_tokens
        usage = self.usage or (self.response.usage if self.response is not None else None)
        return 0 if usage is None else usage.output_tokens


class Speech(NamedTuple):
    """An endpoint. `body`: returns the request for a content and a number of new tokens."""

    path: str
    body: Callable[[str, int], dict[str, object]]
    texts: tuple[str, ...]
    ends: tuple[str, ...]

    def heard(self, data: bytes) -> ClientEvent | None:
        """Return the news in an event. Raises ServerMisbehaved."""
        event = _decode(data)
        if event.type in ("error", "response.failed"):
            raise ServerMisbehaved(data.decode())
        if event.type in self.texts:
            return ClientEvent(Kind.TEXT)
        if event.type not in self.ends:
            return None
        return ClientEvent(Kind.END, event.tokens)


_decode = msgspec.json.Decoder(Event).decode


def speech_of(api: ServerApi, model: str) -> Speech:
    """Return the speech of an API. Raises KeyError if it is none of these."""
    greedy: dict[str, object] = {"model": model, "stream": True, "temperature": 0}

    def response(content: str, tokens: int) -> dict[str, object]:
        return greedy | {"input": content, "max_output_tokens": tokens, "store": False}

    def message(content: str, tokens: int) -> dict[str, object]:
        return greedy | {"messages": [{"role": "user", "content": content}], "max_tokens": tokens}

    def chat(content: str, tokens: int) -> dict[str, object]:
        message = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": content}]}
        params = {"max_new_tokens": tokens, "temperature": 0}
        return {"id": uuid.uuid4().hex, "messages": [message], "params": params}

    client = f"/v1/ai-sdk/chat?client_id=bench-{uuid.uuid4().hex}"
    return {
        ServerApi.AI_SDK: Speech(client, chat, ("text-delta",), ("finish",)),
        ServerApi.RESPONSES: Speech(
            "/v1/responses",
            response,
            ("response.output_text.delta",),
            ("response.completed", "response.incomplete"),
        ),
        ServerApi.MESSAGES: Speech("/v1/messages", message, ("content_block_delta",), ("message_delta",)),
    }[api]
