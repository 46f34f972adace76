"""A turn with what runs it on this replica, and the connections that follow it."""

from __future__ import annotations

import asyncio
from typing import Protocol

import msgspec

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

    def thought(self, turn_id: str) -> int:
        """The furthest offset of the turn's reasoning that was handed to the transport."""
        ...

    def withdraw(self, turn_id: str, chars: int, thought: int) -> None:
        """Takes back what waits of the turn beyond `chars` of its text and `thought` of its reasoning."""
        ...


class Delivery:
    """How far a turn's events went. `handed`: to connections that left; `unsaved`: they were told that its text is not journalled.

    `followers`: the connections that have all of it; `status`: where it stands, as was told last; `fallback`: the model that
    the store knows to stand in.
    """

    __slots__ = ("fallback", "followers", "handed", "published_off", "status", "unsaved")

    def __init__(self) -> None:
        self.followers: set[Subscriber] = set()
        self.handed = 0
        self.published_off = 0
        self.status: Status | None = None
        self.unsaved = False
        self.fallback = ""


class Stages:
    """What others wait for. `ready`: messages can be accepted behind it; `released`: its end is saved, too.

    `accepted`: whether it was; `ended`: its end was told, or it was never accepted.
    """

    __slots__ = ("accepted", "ended", "ready", "released")

    def __init__(self) -> None:
        self.accepted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.ready = asyncio.Event()
        self.ended = asyncio.Event()
        self.released = asyncio.Event()


class Intake:
    """What happened on its way in. `was_attached`: its sender was, before; `forwarded`: to which replica, that takes it in.

    `revoked`: its conversation was deleted before it was accepted.
    """

    __slots__ = ("forwarded", "revoked", "was_attached")

    def __init__(self) -> None:
        self.was_attached = False
        self.forwarded: str | None = None
        self.revoked = False


class LiveTurn:
    """A turn with what runs it here.

    `end`: how it ends, before that is told; `record.done`: behind that. `failure`: why it can't run; `engine`: its wait
    for that one; `grace`: what cancels it where nobody comes back.
    """

    __slots__ = (
        "delivery",
        "end",
        "engine",
        "failure",
        "grace",
        "intake",
        "journal",
        "record",
        "send",
        "sender",
        "stages",
        "turn",
    )

    def __init__(self, turn: Turn, record: TurnRecord, send: Send, sender: Subscriber) -> None:
        self.turn = turn
        self.record = record
        self.send = send
        self.sender = sender
        self.intake = Intake()
        self.stages = Stages()
        self.delivery = Delivery()
        self.engine = EngineWait()
        self.journal: TurnJournal | None = None
        self.failure: Failure | None = None
        self.end: Done | None = None
        self.grace: asyncio.TimerHandle | None = None

    def choose(self, model: str) -> TurnRecord:
        """Takes the model that answers, which is the one that was asked for or one that stands in for it; gives the record."""
        fallback = "" if model == self.record.model else model
        self.record = msgspec.structs.replace(self.record, fallback=fallback)
        return self.record

    @property
    def published_text(self) -> str:
        """The part of the reply that attached connections were given."""
        return self.turn.text[: self.delivery.published_off]

    @property
    def wait(self) -> Status | None:
        """What was told of the wait for its text, while there is none."""
        return None if self.delivery.published_off or self.turn.is_over else self.delivery.status
