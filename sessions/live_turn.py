"""A turn with what runs it on this replica, and the connections that follow it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Protocol, TypeVar

from engine.door import Stream
from sessions.events import Done, Event, Failure, Status
from sessions.records import TurnRecord
from sessions.sends import Send
from sessions.turn import Turn
from sessions.turn_journal import TurnJournal

T = TypeVar("T")


class Subscriber(Protocol):
    """An attached connection, as conversations see it. Nothing here ever waits."""

    @property
    def closed(self) -> bool:
        """Whether it left for good."""
        ...

    def publish(self, event: Event) -> None:
        """Takes an event for delivery."""
        ...

    def handed(self, turn_id: str) -> int:
        """The furthest offset of the turn's text that was handed to the transport."""
        ...

    def withdraw(self, turn_id: str, chars: int) -> None:
        """Takes back what waits of the turn's text beyond `chars`."""
        ...


class LiveTurn:
    """A turn with what runs it here.

    `record.done`: its end, once that was told; `end`: its end, before that; `ended`: it was told, or the turn was never accepted; `decided`: that it will end;
    `failure`: why it can't run; `ready`: messages can be accepted behind it; `released`: it is saved too; `revoked`: its conversation was deleted before it was accepted; `forwarded`: another replica takes it in; `was_attached`: its sender was, before; `status`: the last one that was told.
    """

    __slots__ = (
        "accepted",
        "confirm_by",
        "decided",
        "end",
        "ended",
        "failure",
        "followers",
        "forwarded",
        "grace",
        "handed",
        "journal",
        "published_off",
        "ready",
        "record",
        "released",
        "revoked",
        "send",
        "sender",
        "status",
        "stream",
        "turn",
        "unsaved",
        "waiting",
        "was_attached",
    )

    def __init__(self, turn: Turn, record: TurnRecord, send: Send, sender: Subscriber) -> None:
        self.turn = turn
        self.record = record
        self.send = send
        self.sender = sender
        self.followers: set[Subscriber] = set()
        self.handed = 0
        self.published_off = 0
        self.journal: TurnJournal | None = None
        self.failure: Failure | None = None
        self.end: Done | None = None
        self.ready = asyncio.Event()
        self.decided = asyncio.Event()
        self.grace: asyncio.TimerHandle | None = None
        self.status: Status | None = None
        self.stream: Stream | None = None
        self.waiting: asyncio.Timeout | None = None
        self.confirm_by: float | None = None
        self.unsaved = False
        self.revoked = False
        self.forwarded = False
        self.was_attached = False
        self.accepted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.ended = asyncio.Event()
        self.released = asyncio.Event()

    @property
    def published_text(self) -> str:
        """The part of the reply that attached connections were given."""
        return self.turn.text[: self.published_off]

    @property
    def wait(self) -> Status | None:
        """What was told of the wait for its text, while there is none."""
        return None if self.published_off or self.turn.is_over else self.status

    async def in_time(self, output: Awaitable[T]) -> T | None:
        """Waits for something; None where the turn was cancelled, and its time to be confirmed is up before."""
        try:
            async with asyncio.timeout_at(self.confirm_by) as limit:
                self.waiting = limit
                return await output
        except TimeoutError:
            if not limit.expired():
                raise
            return None
        finally:
            self.waiting = None

    def expect_confirmation(self, by: float) -> None:
        """The engine has until `by` (the loop's time) to confirm the cancel."""
        self.confirm_by = by
        self.decided.set()
        if self.waiting is not None:
            self.waiting.reschedule(by)
        if self.stream is not None:
            self.stream.cancel()
