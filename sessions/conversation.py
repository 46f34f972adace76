"""A conversation while somebody is attached to it or a turn of it runs. All of its decisions are synchronous.

It knows what happens when: who is attached, which turns come one after the other, which seq is next.
It writes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Literal, Protocol, TypeVar

import msgspec

from engine.door import Stream
from sessions.errors import Busy
from sessions.events import Accepted, Cause, Delta, Done, Event, Journalled, Removed, Status
from sessions.history import Keys
from sessions.records import Meta, Owner, TurnRecord
from sessions.turn import Turn

T = TypeVar("T")
OnBusy = Literal["reject", "interrupt"]


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


class Send(msgspec.Struct, frozen=True, kw_only=True):
    """A user's message, valid in itself. `parent_id` unset: behind the active leaf."""

    client_msg_id: str
    conversation_id: str
    content: str
    parent_id: str | msgspec.UnsetType | None = msgspec.UNSET
    on_busy: OnBusy = "reject"
    ref: str | None = None


Attached = dict[Subscriber, set["Conversation"]]


class LiveTurn:
    """A turn with what runs it here.

    `record.done`: its end, once that was told; `ended`: it was told, or the turn was never accepted; `released`: it is
    saved too; `revoked`: its conversation was deleted before it was accepted; `status`: the last one that was told.
    """

    __slots__ = (
        "accepted",
        "confirm_by",
        "ended",
        "followers",
        "handed",
        "published_off",
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
    )

    def __init__(self, turn: Turn, record: TurnRecord, send: Send, sender: Subscriber) -> None:
        self.turn = turn
        self.record = record
        self.send = send
        self.sender = sender
        self.followers: set[Subscriber] = set()
        self.handed = 0
        self.published_off = 0
        self.status: Status | None = None
        self.stream: Stream | None = None
        self.waiting: asyncio.Timeout | None = None
        self.confirm_by: float | None = None
        self.unsaved = False
        self.revoked = False
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
        if self.waiting is not None:
            self.waiting.reschedule(by)
        if self.stream is not None:
            self.stream.cancel()


class Conversation:
    """The live part of a conversation. `attached`: where every conversation notes who is attached to it."""

    def __init__(self, owner: Owner, conversation_id: str, *, attached: Attached) -> None:
        self.owner = owner
        self.conversation_id = conversation_id
        self.keys = Keys.of(owner, conversation_id)
        self.meta: Meta | None = None
        self.arriving: list[LiveTurn] = []
        self.turns: list[LiveTurn] = []
        self.subscribers: set[Subscriber] = set()
        self._attached = attached
        self.seq = 0
        self.published_seq = 0
        self.version = 0
        self.users = 0
        self.claiming = asyncio.Lock()  # arrivals take their places one after the other
        self.writing = asyncio.Lock()  # all that takes a seq, but for the running turn's own events

    @property
    def idle(self) -> bool:
        """Whether nobody needs it here."""
        return not self.turns and not self.arriving and not self.subscribers and not self.users

    def know(self, meta: Meta) -> None:
        """Takes over the store's facts."""
        self.meta = meta
        self.seq = self.published_seq = meta.seq

    def forget(self) -> None:
        """The store's facts must be read again."""
        self.meta = None
        self.version += 1

    def next_seq(self) -> int:
        """Reserves the next seq."""
        self.seq += 1
        return self.seq

    def twin(self, arrival: LiveTurn) -> LiveTurn | None:
        """A live turn of the same `client_msg_id` that came earlier."""
        earlier = [*self.turns, *self.arriving[: self.arriving.index(arrival)]]
        same = arrival.send.client_msg_id
        return next((live for live in earlier if live.send.client_msg_id == same), None)

    def turn(self, turn_id: str | None) -> LiveTurn | None:
        """A live turn by its id."""
        return next((live for live in self.turns if live.turn.ids.turn_id == turn_id), None)

    def blocking(self) -> list[LiveTurn]:
        """The turns that make a new one wait or be refused: those whose end is not decided."""
        return [live for live in self.turns if not live.turn.is_over]

    def claim(self, live: LiveTurn) -> list[LiveTurn]:
        """Puts a turn behind those that are ending; gives back the ones that it interrupts. Raises Busy."""
        blocking = self.blocking()
        if blocking and live.send.on_busy == "reject":
            raise Busy(
                "A reply is being written in this conversation. Cancel it, or send with on_busy=interrupt."
            )
        self.arriving.remove(live)
        self.turns.append(live)
        return blocking

    def release(self, live: LiveTurn) -> None:
        """A turn is over, or was never accepted."""
        for place in (self.turns, self.arriving):
            if live in place:
                place.remove(live)
        live.ended.set()
        live.released.set()

    def before(self, live: LiveTurn) -> LiveTurn | None:
        """The turn that must end before this one begins."""
        place = self.turns.index(live)
        return self.turns[place - 1] if place else None

    def cancel(
        self, live: LiveTurn, cause: Cause, *, seen_off: int | None, rollback: bool, now: float
    ) -> bool:
        """Fixes the cut and withdraws what waits beyond it; False where the end had been decided before."""
        handed = max([live.handed, *(one.handed(live.turn.ids.turn_id) for one in self.subscribers)])
        cut = live.turn.cancel(cause, handed=handed, seen_off=seen_off, rollback=rollback, now=now)
        if cut is None:
            return False
        for subscriber in self.subscribers:
            subscriber.withdraw(live.turn.ids.turn_id, cut.chars)
        return True

    def attach(self, subscriber: Subscriber) -> None:
        """Gives a connection all events from now on."""
        if not subscriber.closed:
            self.subscribers.add(subscriber)
            self._attached.setdefault(subscriber, set()).add(self)

    def leave(self, subscriber: Subscriber) -> None:
        """Detaches a connection; what it was handed counts on."""
        for live in self.turns:
            live.handed = max(live.handed, subscriber.handed(live.turn.ids.turn_id))
            live.followers.discard(subscriber)
        self.subscribers.discard(subscriber)

    def publish(self, event: Event) -> None:
        """Gives an event to every attached connection."""
        for subscriber in self.subscribers:
            subscriber.publish(event)

    def publish_delta(self, live: LiveTurn, delta: Delta) -> None:
        """Gives text of a running turn."""
        self.publish(delta)
        self.published_seq = delta.seq
        live.published_off = delta.off + len(delta.text)

    def publish_status(self, live: LiveTurn, status: Status) -> None:
        """Tells where a turn stands; whoever is attached later is told too, while there is no text."""
        live.status = status
        self.publish(status)

    def publish_removed(self, removed: Removed) -> None:
        """Tells that an exchange left the history."""
        self.seq = self.published_seq = removed.seq
        self.publish(removed)
        self.version += 1

    def publish_late(self, events: Sequence[Journalled]) -> None:
        """Gives what was journalled for a turn that nobody runs, and what others know of it is known anew."""
        for event in events:
            match event:
                case Done():
                    self.publish_done(event)
                case Removed():
                    self.publish_removed(event)
                case _:
                    self.publish(event)
        self.forget()

    def publish_done(self, done: Done) -> None:
        """Gives the end of a turn; it covers the seqs of deltas that no one was given."""
        if (live := self.turn(done.turn_id)) is not None:
            live.record = msgspec.structs.replace(live.record, done=done)
            live.ended.set()
        first = self.published_seq + 1
        self.publish(msgspec.structs.replace(done, first_seq=first) if first < done.seq else done)
        self.published_seq = done.seq
        self.version += 1

    def publish_accepted(self, live: LiveTurn, event: Accepted) -> None:
        """Gives `accepted`: to the sender with its ref, to all others with the content."""
        told = msgspec.structs.replace(event, content=live.send.content)
        for subscriber in self.subscribers - {live.sender}:
            subscriber.publish(told)
        if live.sender in self.subscribers:
            live.sender.publish(msgspec.structs.replace(event, ref=live.send.ref, content=None))
        live.followers = set(self.subscribers)
        self.seq = self.published_seq = event.seq
        self.version += 1
