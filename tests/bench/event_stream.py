"""Parses a chat completion's event stream: bytes in, events out. Knows no socket.

Sources: the WHATWG HTML standard's section on server-sent events; OpenAI's streaming chat completions.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tests.bench.client import ClientEvent, Kind, ServerMisbehaved


class Delta(msgspec.Struct):
    """New text, if any."""

    content: str | None = None


class Choice(msgspec.Struct):
    """The only choice."""

    delta: Delta
    finish_reason: str | None = None


class Usage(msgspec.Struct):
    """Usage, which comes with the last chunk."""

    completion_tokens: int = 0


class Chunk(msgspec.Struct):
    """One event."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: str | dict[str, object] | None = None


_decode = msgspec.json.Decoder(Chunk).decode


class EventStream:
    """Splits the body of a response at its blank lines. The end is the usage, or else `[DONE]`."""

    def __init__(self, receive: Callable[[bytes], ClientEvent | None] | None = None) -> None:
        """`receive`: parses the events of another endpoint than chat completions."""
        self._parse = receive
        self._rest = b""
        self._ended = False

    def feed(self, body: bytes) -> list[ClientEvent]:
        """Take bytes and return the complete events. Raises ServerMisbehaved if an event is an error."""
        *events, self._rest = (self._rest + body).split(b"\n\n")
        return [received for event in events if (received := self._heard(event)) is not None]

    def _heard(self, event: bytes) -> ClientEvent | None:
        line = event.strip().rpartition(b"\n")[2].removeprefix(b"data:").strip()
        if not line:
            return None
        if line == b"[DONE]":
            return None if self._ended or self._parse is not None else ClientEvent(Kind.END)
        if self._parse is not None:
            return self._parse(line)
        chunk = _decode(line)
        if chunk.error is not None:
            raise ServerMisbehaved(str(chunk.error))
        if chunk.usage is not None:
            self._ended = True
            return ClientEvent(Kind.END, chunk.usage.completion_tokens)
        if any(choice.delta.content for choice in chunk.choices):
            return ClientEvent(Kind.TEXT)
        return None
