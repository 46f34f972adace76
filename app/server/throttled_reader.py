"""Feeds a peer's bytes to its parser in small parts, so that one peer's megabytes delay nobody else's ping.

uvloop reads up to 256 KB at once, several times, before it looks at another socket, and parsers take all that they get. Here a
part is parsed, then others have their turn. A turn of the event loop parses few parts, however many peers wait. Meanwhile the
transport is not read: the rest waits in the kernel.
"""

from __future__ import annotations

from asyncio import Transport
from collections.abc import Callable, Iterable
from enum import Enum, auto

from connections.authentication.caller import peer_group
from connections.loop_scheduler import FairLoopScheduler, LightClients
from connections.middleware.client_address import Network
from sessions.limits.bounds import PART_BYTES
from sessions.limits.shares import ADDRESS

PARTS_PER_ITERATION = 2
"""Parts parsed in one turn of the event loop: with many small frames, or handshakes, a millisecond's work."""
MAX_PART_BYTES = 16 * 1024
"""Bytes at a time that are only copied: the rest of a long frame, or of a body."""


class ParseScheduler(FairLoopScheduler):
    """The turns in which the bytes of all peers are parsed. `proxies`: networks of trusted ones."""

    def __init__(self, light_clients: LightClients | None = None, *, proxies: Iterable[Network] = ()) -> None:
        super().__init__(PARTS_PER_ITERATION, light_clients)
        self._proxies = tuple(proxies)

    def group_of(self, transport: Transport) -> str:
        """Return the key by which peers take turns: the address, or the network that one subscriber has.

        Connections of a proxy have a key each. Whose they are is not known yet, and one of them may be a guest's.
        """
        peer = transport.get_extra_info("peername")
        site = peer_group(str(peer[0]), self._proxies) if isinstance(peer, tuple) else ""
        return f"{ADDRESS}{site}" if site else str(id(transport))


class PauseReason(Enum):
    """Why a peer's bytes are not parsed now."""

    HANDSHAKE = auto()
    MESSAGE = auto()
    """The application has not taken the last message."""
    UNREAD = auto()
    """The peer does not read its answers."""
    BUDGET = auto()
    BODY = auto()
    ANSWER = auto()
    """The last request is not answered yet. Reading goes on, to notice when the peer leaves."""


_READS_ON = {PauseReason.ANSWER}


def _nothing() -> int:
    return 0


class ThrottledReader:
    """The bytes of one peer that wait for the parser.

    `copied`: how many of the next bytes the parser will only copy; `slack`: how many may wait while the transport is read.
    """

    __slots__ = (
        "_at",
        "_copied",
        "_group",
        "_holds",
        "_is_over",
        "_is_paused",
        "_is_scheduled",
        "_parse",
        "_pending",
        "_slack",
        "_transport",
        "_turns",
    )

    def __init__(
        self,
        transport: Transport,
        turns: ParseScheduler,
        parse: Callable[[bytes], None],
        *,
        copied: Callable[[], int] = _nothing,
        slack: int = 0,
    ) -> None:
        self._transport = transport
        self._turns = turns
        self._group = turns.group_of(transport)
        self._parse = parse
        self._copied = copied
        self._slack = slack
        self._pending = b""
        self._at = 0
        """The number of parsed bytes."""
        self._holds: set[PauseReason] = set()
        self._is_paused = self._is_scheduled = self._is_over = False

    @property
    def is_clear(self) -> bool:
        """Whether nothing waits, and new bytes would be parsed at once."""
        return not (self._holds or self.waits)

    @property
    def waits(self) -> bool:
        """Whether bytes wait."""
        return self._at < len(self._pending)

    def holds(self, hold: PauseReason) -> bool:
        """Return whether parsing waits for this reason."""
        return hold in self._holds

    def take(self, data: bytes) -> None:
        """Parse a few bytes at once if the turn has room, and many in parts."""
        if len(data) <= PART_BYTES and self.is_clear and self._turns.take_nowait(self._group):
            self._parse(data)
            return
        self._pending, self._at = self._pending[self._at :] + data if self.waits else data, 0
        self._update_reading()

    def hold(self, hold: PauseReason) -> None:
        """Parse nothing until `release`."""
        self._holds.add(hold)
        self._update_reading()

    def release(self, *holds: PauseReason) -> None:
        """Parse on from the loop's next turn, unless there is another reason to wait."""
        self._holds.difference_update(holds)
        self._update_reading()

    def enforce(self) -> None:
        """Pause reading again if somebody else resumed it."""
        self._is_paused = False
        self._update_reading()

    def in_turn(self, callback: Callable[[], None]) -> None:
        """Call back when this peer has its turn, as if it were one more part."""
        self._turns.queue(self._group, callback)

    def end(self) -> None:
        """Drop the waiting bytes and the parser. Reading goes on for the transport's next owner."""
        self._pending, self._at = b"", 0
        self._holds.clear()
        self._update_reading()
        self._is_over = True
        # parser and feed hold each other: only the collector would free them
        self._parse, self._copied = _discard, _nothing

    def _update_reading(self) -> None:
        if self._is_over or self._transport.is_closing():
            return
        pause = len(self._pending) - self._at > self._slack or not self._holds <= _READS_ON
        if pause and not self._is_paused:
            self._transport.pause_reading()
        elif self._is_paused and not pause:
            self._transport.resume_reading()
        self._is_paused = pause
        if self.waits and not self._holds and not self._is_scheduled:
            self._is_scheduled = True
            self._turns.queue(self._group, self._feed)

    def _feed(self) -> None:
        self._is_scheduled = False
        if not self._holds and not self._transport.is_closing():
            begin, self._at = self._at, self._at + min(max(PART_BYTES, self._copied()), MAX_PART_BYTES)
            part = self._pending[begin : self._at]
            if not self.waits:
                self._pending, self._at = b"", 0
            self._parse(part)
        self._update_reading()


def _discard(part: bytes) -> None:
    """The parser of a closed connection."""
