"""The responses under way on one WebSocket, and those that its client may continue. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from connections.api.errors import Problem, invalid
from connections.protocol.errors import shorten
from connections.responses.requests.items import encode_messages
from engine.messages import Message
from sessions.errors import Overloaded

MAX_STREAMS = 32
"""Lanes in use at a time."""
MAX_UNSTORED = 64
MAX_UNSTORED_BYTES = 256 * 1024
"""Bytes of the unstored conversations that a socket's client may continue; the oldest ones are forgotten."""
MAX_NEWEST_BYTES = 1024 * 1024
"""Bytes of the newest one, which may exceed that: a client with one long conversation can continue it."""


class UnstoredResponses:
    """Responses that are kept only here, while the socket is open, each with all messages up to its end."""

    def __init__(self) -> None:
        self._messages: OrderedDict[str, tuple[tuple[Message, ...], int]] = OrderedDict()
        self._bytes = 0

    def get(self, response_id: str | None) -> tuple[Message, ...] | None:
        """Return all messages up to its end; None if it is not here."""
        found = None if response_id is None else self._messages.get(response_id)
        return None if found is None else found[0]

    def put(self, response_id: str, messages: tuple[Message, ...]) -> None:
        """Keep one, as long as there is room."""
        size = len(encode_messages(messages))
        self._messages[response_id] = (messages, size)
        self._bytes += size
        while len(self._messages) > MAX_UNSTORED or self._bytes > self._most_bytes:
            self.forget(next(iter(self._messages)))

    @property
    def _most_bytes(self) -> int:
        return MAX_UNSTORED_BYTES if len(self._messages) > 1 else MAX_NEWEST_BYTES

    def forget(self, response_id: str | None) -> None:
        """Forget a response."""
        if response_id is not None and (found := self._messages.pop(response_id, None)) is not None:
            self._bytes -= found[1]


class ActiveStream:
    """A place for one response at a time. `stop` ends the current one; `is_stopped`: it was stopped before it began."""

    def __init__(self) -> None:
        self.response_id: str | None = None
        self.stop: Callable[[], None] | None = None
        self.is_stopped = False

    def write(self, response_id: str, stop: Callable[[], None]) -> None:
        """Begin a response here."""
        self.response_id, self.stop = response_id, stop
        if self.is_stopped:
            stop()

    def end(self) -> None:
        """End the response here, also one that is about to begin."""
        self.is_stopped = True
        if self.stop is not None:
            self.stop()


class ActiveStreams:
    """The streams in use."""

    def __init__(self) -> None:
        self._streams: dict[str | None, ActiveStream] = {}

    def take(self, stream_id: str | None) -> ActiveStream:
        """Take a stream. Raises Problem if it is in use, Overloaded if too many are."""
        if stream_id in self._streams:
            named = "on this connection" if stream_id is None else f'in the lane "{shorten(stream_id)}"'
            why = f"A response is being written {named}. Send the next request when it has ended, or in another `stream_id`."
            raise invalid("stream_id", why, code="response_in_progress")
        if len(self._streams) >= MAX_STREAMS:
            raise Overloaded(
                f"{MAX_STREAMS} responses are being written on this connection, which is the limit."
            )
        stream = self._streams[stream_id] = ActiveStream()
        return stream

    def release(self, stream_id: str | None) -> None:
        """Free a stream."""
        del self._streams[stream_id]

    def stop(self, response_id: str | None, stream_id: str | None) -> None:
        """End a response: the named one, else that of the stream. Raises Problem if there is none."""
        for name, stream in self._streams.items():
            if stream.response_id == response_id if response_id is not None else name == stream_id:
                stream.end()
                return
        why = "No such response is being written on this connection."
        raise Problem(404, why, code="response_not_found", param="response_id")
