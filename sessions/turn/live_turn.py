"""A turn with what runs it on this replica, and the connections that follow it."""

from __future__ import annotations

import asyncio
from typing import Protocol

from sessions.events import Done, Event, Failure, Status
from sessions.records import TurnRecord
from sessions.turn.engine_wait import EngineWait
from sessions.turn.sends import Send
from sessions.turn.turn import Turn
from sessions.turn.turn_journal import TurnJournal


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

    `ready`: messages can be accepted behind it; `ended`: its end was told, or it was never accepted; `released`: that
    is saved too. `end`: how it ends, before that is told; `record.done`: behind that. `failure`: why it can't run;
    `revoked`: its conversation was deleted before it was accepted; `forwarded`: to which replica, that takes it in;
    `was_attached`: its sender was, before; `status`: the last one that was told; `engine`: its wait for that one.
    """

    __slots__ = (
        "accepted",
        "end",
        "ended",
        "engine",
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
        "turn",
        "unsaved",
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
        self.engine = EngineWait()
        self.ready = asyncio.Event()
        self.grace: asyncio.TimerHandle | None = None
        self.status: Status | None = None
        self.unsaved = False
        self.revoked = False
        self.forwarded: str | None = None
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
