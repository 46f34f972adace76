"""Hands what a peer sends to its parser in small parts, so that one peer's megabytes delay nobody else's ping.

uvloop reads up to 256 KB at once and several times before it looks at another socket; parsers take all that they get.
Here a part is parsed, then others have their turn. Meanwhile the transport is not read: what waits, waits in the kernel.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, Transport
from collections.abc import Callable
from enum import Enum, auto

SLICE_BYTES = 16 * 1024
"""What is parsed of one peer in one turn of the event loop."""
SIP_BYTES = 512
"""What is parsed before somebody looks whether a bound was met: at most 85 WebSocket frames, or 28 requests."""


class Hold(Enum):
    """Why a peer's bytes are not parsed at the moment."""

    HANDSHAKE = auto()
    MESSAGE = auto()
    """The application has not taken the last one."""
    UNREAD = auto()
    """The peer does not take its answers."""
    BUDGET = auto()
    BODY = auto()
    ANSWER = auto()
    """The last request is not answered yet. Reading goes on: that is how a peer's leaving is noticed."""


_READS_ON = {Hold.ANSWER}


class Feed:
    """The bytes of one peer that wait for its parser. `slack`: how many may wait while the transport is read."""

    __slots__ = (
        "_holds",
        "_is_over",
        "_is_paused",
        "_is_woken",
        "_loop",
        "_parse",
        "_sip",
        "_slack",
        "_transport",
        "_unfed",
    )

    def __init__(
        self,
        transport: Transport,
        loop: AbstractEventLoop,
        parse: Callable[[bytes], None],
        *,
        sip: Callable[[], int] = lambda: SIP_BYTES,
        slack: int = 0,
    ) -> None:
        self._transport = transport
        self._loop = loop
        self._parse = parse
        self._sip = sip
        self._slack = slack
        self._unfed = b""
        self._holds: set[Hold] = set()
        self._is_paused = self._is_woken = self._is_over = False

    @property
    def is_clear(self) -> bool:
        """Whether what comes now may be parsed at once."""
        return not (self._holds or self._unfed)

    @property
    def waits(self) -> bool:
        """Whether bytes wait."""
        return bool(self._unfed)

    def holds(self, hold: Hold) -> bool:
        """Return whether this is a reason to wait."""
        return hold in self._holds

    def take(self, data: bytes) -> None:
        """Take bytes, to be parsed in parts."""
        self._unfed = self._unfed + data if self._unfed else data
        self._settle()

    def hold(self, hold: Hold) -> None:
        """Parse nothing from now on; `release` ends it."""
        self._holds.add(hold)
        self._settle()

    def release(self, *holds: Hold) -> None:
        """Parse what waits, from the loop's next turn on, unless there is another reason to wait."""
        self._holds.difference_update(holds)
        self._settle()

    def enforce(self) -> None:
        """Pause reading again where somebody else resumed it."""
        self._is_paused = False
        self._settle()

    def end(self) -> None:
        """Forget what waits: nobody parses it any more. Reading goes on for whoever has the transport then."""
        self._unfed = b""
        self._holds.clear()
        self._settle()
        self._is_over = True

    def _settle(self) -> None:
        if self._is_over or self._transport.is_closing():
            return
        pause = len(self._unfed) > self._slack or not self._holds <= _READS_ON
        if pause and not self._is_paused:
            self._transport.pause_reading()
        elif self._is_paused and not pause:
            self._transport.resume_reading()
        self._is_paused = pause
        if self._unfed and not self._holds and not self._is_woken:
            self._is_woken = True
            self._loop.call_soon(self._feed)

    def _feed(self) -> None:
        self._is_woken = False
        at = 0
        while (
            at < min(SLICE_BYTES, len(self._unfed)) and not self._holds and not self._transport.is_closing()
        ):
            sip = self._unfed[at : at + self._sip()]
            at += len(sip)
            self._parse(sip)
        self._unfed = self._unfed[at:]
        self._settle()
