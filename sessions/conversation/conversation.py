"""A conversation while somebody is attached to it or a turn of it runs. All of its decisions are synchronous.

It knows what happens when: who is attached, which turns come one after the other, which seq is next.
It writes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from sessions.conversation.deletion import Deletion
from sessions.conversation.other_replicas import OtherReplicas
from sessions.conversation.reconnecting import Returning
from sessions.errors import Busy
from sessions.events import Accepted, Cause, Deleted, Delta, Done, Event, Journalled, Removed, Status
from sessions.records import Meta, Owner
from sessions.store.history.keys import Keys
from sessions.turn.live_turn import LiveTurn, Subscriber

Attached = dict[Subscriber, set["Conversation"]]


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
        self.epoch = ""  # in which `published_seq` counts
        self.published_seq = 0
        self.version = 0
        self.users = 0
        self.followed = False  # whether `published_seq` is what attached connections know
        self.newest_reply = ""  # of the turn accepted last: the next message of the queue stands behind it
        self.others = OtherReplicas()
        self.deletion = Deletion()
        self.returning = Returning()
        self.claiming = asyncio.Lock()  # arrivals take their places one after the other
        self.ordering = asyncio.Lock()  # a seq from memory, from its reservation until it was told
        self.writing = asyncio.Lock()  # all that takes a seq, but for the running turn's own events

    @property
    def idle(self) -> bool:
        """Whether nobody needs it here."""
        return self.is_unused and not self.turns and not self.arriving and not self.others.watching

    @property
    def is_unused(self) -> bool:
        """Whether no connection is attached to it here, or about to be."""
        return not self.subscribers and not self.users

    @property
    def is_attended(self) -> bool:
        """Whether a connection is attached, on any replica, as far as known."""
        return bool(self.subscribers) or self.others.watched

    @property
    def live(self) -> LiveTurn | None:
        """The turn that runs here, once it was accepted."""
        return next((live for live in self.turns if live.turn.accepted_at is not None), None)

    def know(self, meta: Meta) -> None:
        """Takes over the store's facts."""
        self.meta = meta
        self.seq = meta.seq

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
                "A reply is being written in this conversation. Cancel it, or send with another on_busy."
            )
        self.arriving.remove(live)
        self.turns.append(live)
        return [] if live.send.on_busy == "enqueue" else blocking

    def release(self, live: LiveTurn) -> None:
        """A turn is over, or was never accepted."""
        for place in (self.turns, self.arriving):
            if live in place:
                place.remove(live)
        self.followed = self.followed and bool(self.subscribers or self.turns)
        if live.grace is not None:
            live.grace.cancel()
        live.stages.ended.set()
        live.stages.released.set()

    def before(self, live: LiveTurn) -> LiveTurn | None:
        """The turn that must end before this one begins."""
        place = self.turns.index(live)
        return self.turns[place - 1] if place else None

    def cancel(self, live: LiveTurn, cause: Cause, *, seen_off: int | None, now: float) -> bool:
        """Fixes the cut and withdraws what waits beyond it; False where the end had been decided before."""
        handed = max([live.delivery.handed, *(one.handed(live.turn.ids.turn_id) for one in self.subscribers)])
        if self.others.watched:  # what was published reached other replicas, and their connections
            handed = live.delivery.published_off
        cut = live.turn.cancel(cause, handed=handed, seen_off=seen_off, now=now)
        if cut is None:
            return False
        for subscriber in self.subscribers:
            subscriber.withdraw(live.turn.ids.turn_id, cut.chars)
        return True

    def attach(self, subscriber: Subscriber) -> None:
        """Gives a connection all events from now on."""
        if not subscriber.closed:
            self.keep_turns()
            self.subscribers.add(subscriber)
            self._attached.setdefault(subscriber, set()).add(self)

    def keep_turns(self) -> None:
        """Somebody came back: no turn's grace runs any more."""
        for live in self.turns:
            if live.grace is not None:
                live.grace.cancel()
                live.grace = None

    def ack(self, seq: int) -> None:
        """A reader has all events up to `seq`. Nothing where it says more than was told, or no turn runs here."""
        live = self.live
        if live is not None and live.record.accepted_seq <= seq <= self.published_seq:
            live.turn.ack(seq)

    def stand_at(self, seq: int) -> None:
        """Whoever is attached knows all events up to `seq`, and is told those behind it."""
        self.followed = True
        self.published_seq = seq

    def enter_epoch(self, epoch: str) -> None:
        """Whoever is attached is told that seqs count anew; news that the one before was deleted are no news any more."""
        if epoch != self.epoch:
            self.deletion.known = self.epoch
        self.epoch = epoch

    def leave(self, subscriber: Subscriber) -> None:
        """Detaches a connection; what it was handed counts on."""
        for live in self.turns:
            live.delivery.handed = max(live.delivery.handed, subscriber.handed(live.turn.ids.turn_id))
            live.delivery.followers.discard(subscriber)
        self.subscribers.discard(subscriber)
        self.followed = self.followed and bool(self.subscribers or self.turns)

    def publish(self, event: Event) -> None:
        """Gives an event to every attached connection."""
        for subscriber in self.subscribers:
            subscriber.publish(event)

    def publish_delta(self, live: LiveTurn, delta: Delta) -> None:
        """Gives text of a running turn."""
        self.publish(delta)
        self.published_seq = delta.seq
        live.delivery.published_off = delta.off + len(delta.text)

    def publish_status(self, live: LiveTurn, status: Status) -> None:
        """Tells where a turn stands; whoever is attached later is told too, while there is no text."""
        live.delivery.status = status
        self.publish(status)

    def publish_removed(self, removed: Removed) -> None:
        """Tells that an exchange left the history."""
        self.seq = self.published_seq = removed.seq
        self.publish(removed)
        self.version += 1

    def take_over(self, events: Sequence[Journalled]) -> None:
        """Gives what was journalled, but not by a turn of this replica, as far as it is news here."""
        for event in events:
            if event.seq <= self.published_seq:
                continue
            match event:
                case Accepted():
                    self._publish_accepted_elsewhere(event)
                case Delta():
                    self.publish(event)
                    self.stand_at(event.seq)
                case Done():
                    self.publish_done(event)
                case Removed():
                    self.publish_removed(event)
        self.forget()

    def publish_deleted(self, epoch: str) -> None:
        """Tells, once, that all of it is gone: to whoever asked for it with the ref of that."""
        if self.deletion.tell(epoch, Deleted(conversation_id=self.conversation_id), self.subscribers):
            self.forget()
            self.followed = False
            self.others.forget()

    def _publish_accepted_elsewhere(self, event: Accepted) -> None:
        mine = self.others.sent.pop(event.client_msg_id, None)
        for subscriber in self.subscribers:
            is_sender = mine is not None and subscriber is mine.sender
            ref = mine.send.ref if mine is not None and is_sender else None
            subscriber.publish(msgspec.structs.replace(event, ref=ref, content=None) if is_sender else event)
        self.stand_at(event.seq)

    def publish_done(self, done: Done) -> None:
        """Gives the end of a turn; it covers the seqs of deltas that no one was given."""
        if (live := self.turn(done.turn_id)) is not None:
            live.record = msgspec.structs.replace(live.record, done=done)
            live.stages.ended.set()
        self.others.tell_end(done)
        first = self.published_seq + 1
        self.publish(msgspec.structs.replace(done, first_seq=first) if first < done.seq else done)
        self.published_seq = max(done.seq, self.published_seq)  # more was told where its owner lost the turn
        self.version += 1

    def publish_accepted(self, live: LiveTurn, event: Accepted) -> None:
        """Gives `accepted`: to the sender with its ref, to all others with the content."""
        for subscriber in self.subscribers - {live.sender}:
            subscriber.publish(event)
        if live.sender in self.subscribers:
            live.sender.publish(msgspec.structs.replace(event, ref=live.send.ref, content=None))
        live.delivery.followers = set(self.subscribers)
        self.newest_reply = live.record.reply_id
        self.seq = event.seq
        self.epoch = event.epoch
        self.stand_at(event.seq)
        self.version += 1
