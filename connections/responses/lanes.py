"""What one WebSocket has under way, and what its client may go on from. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from connections.openai.problems import Problem, invalid
from connections.responses.requests.items import encoded
from connections.wire.errors import shorten
from engine.messages import Message
from sessions.errors import Overloaded

MAX_LANES = 32
"""That are written in at a time."""
MAX_KEPT = 64
MAX_KEPT_BYTES = 256 * 1024
"""Of the conversations that a socket's client may go on from and that are kept nowhere else; the oldest ones are forgotten."""
MAX_NEWEST_BYTES = 1024 * 1024
"""Of the newest of them, which is kept beyond that: who has one long conversation goes on with it."""


class Kept:
    """Responses that are kept nowhere but here, for as long as the socket is there: all that was said up to the end of each."""

    def __init__(self) -> None:
        self._read: OrderedDict[str, tuple[tuple[Message, ...], int]] = OrderedDict()
        self._bytes = 0

    def get(self, response_id: str | None) -> tuple[Message, ...] | None:
        """All that was said; None where it is not here."""
        found = None if response_id is None else self._read.get(response_id)
        return None if found is None else found[0]

    def put(self, response_id: str, messages: tuple[Message, ...]) -> None:
        """Keeps one, as long as there is room."""
        size = len(encoded(messages))
        self._read[response_id] = (messages, size)
        self._bytes += size
        while len(self._read) > MAX_KEPT or self._bytes > self._most_bytes:
            self.forget(next(iter(self._read)))

    @property
    def _most_bytes(self) -> int:
        return MAX_KEPT_BYTES if len(self._read) > 1 else MAX_NEWEST_BYTES

    def forget(self, response_id: str | None) -> None:
        """Keeps it no longer."""
        if response_id is not None and (found := self._read.pop(response_id, None)) is not None:
            self._bytes -= found[1]


class Lane:
    """A place for one response at a time. `stop` ends the one that is written; `is_stopped`: it was to end before it began."""

    def __init__(self) -> None:
        self.response_id: str | None = None
        self.stop: Callable[[], None] | None = None
        self.is_stopped = False

    def write(self, response_id: str, stop: Callable[[], None]) -> None:
        """A response is written here."""
        self.response_id, self.stop = response_id, stop
        if self.is_stopped:
            stop()

    def end(self) -> None:
        """Ends what is written here, or is about to be."""
        self.is_stopped = True
        if self.stop is not None:
            self.stop()


class Lanes:
    """The lanes that are written in."""

    def __init__(self) -> None:
        self._lanes: dict[str | None, Lane] = {}

    def take(self, stream_id: str | None) -> Lane:
        """Takes a lane. Raises Problem where it is taken, Overloaded where too many are."""
        if stream_id in self._lanes:
            named = "on this connection" if stream_id is None else f'in the lane "{shorten(stream_id)}"'
            why = f"A response is being written {named}. Send the next request when it has ended, or in another `stream_id`."
            raise invalid("stream_id", why, code="response_in_progress")
        if len(self._lanes) >= MAX_LANES:
            raise Overloaded(
                f"{MAX_LANES} responses are being written on this connection, which is all it may have."
            )
        lane = self._lanes[stream_id] = Lane()
        return lane

    def give_back(self, stream_id: str | None) -> None:
        """Nothing is written in a lane any more."""
        del self._lanes[stream_id]

    def stop(self, response_id: str | None, stream_id: str | None) -> None:
        """Ends a response: the one that is named, else that of the lane. Raises Problem where there is none."""
        for name, lane in self._lanes.items():
            if lane.response_id == response_id if response_id is not None else name == stream_id:
                lane.end()
                return
        why = "No such response is being written on this connection."
        raise Problem(404, why, code="response_not_found", param="response_id")
