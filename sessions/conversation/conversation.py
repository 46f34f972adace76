"""Conversations while connections are attached or a turn runs, their registry, and the replica's tasks.

All decisions of a conversation are synchronous.

It knows the order of events: attached connections, successive turns, the next seq. It writes nothing.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import msgspec
import structlog

from sessions.errors import Busy, InternalError, NotFound, Refused
from sessions.events import (
    Accepted,
    Cause,
    Deleted,
    Delta,
    Done,
    Event,
    Journalled,
    Reasoning,
    Removed,
    SourceText,
    Status,
    Text,
    ToolCall,
    ToolState,
    attachments_of,
)
from sessions.records import MessageRecord, Meta, Owner, TurnRecord
from sessions.store.codec import Keys
from sessions.store.ownership import RunningTurn
from sessions.turn.message_request import MessageRequest
from sessions.turn.turn import NullSubscriber, SentOffsets, Subscriber, Turn

MAX_RECENT_CALLS = 256
"""Ids of calls that are remembered; older ones are looked up in the store."""
Attached = dict[Subscriber, set["Conversation"]]
T = TypeVar("T")
_log = structlog.get_logger("midstream.sessions")


class StoredState:
    """The store's state, as far as known here. `version`: the number of noted changes; `seq`: the last assigned one.

    `newest_reply`: the reply of the turn accepted last; the next queued message follows it. `beginning`: the facts that the
    conversation begins with once a message is written; until a change, the same for each message that is refused.
    """

    def __init__(self) -> None:
        self.beginning: Meta | None = None
        self.seq = 0
        self.version = 0
        self.newest_reply = ""


class PublishedState:
    """What attached connections got: all events up to `seq`, of the `epoch`, if `followed`.

    `calls`: the ids of the newest calls.
    """

    def __init__(self) -> None:
        self.calls: deque[str] = deque(maxlen=MAX_RECENT_CALLS)
        self.epoch = ""
        self.seq = 0
        self.followed = False


class PeerState:
    """What is known of a conversation's other replicas. It may be outdated; the store knows better."""

    def __init__(self) -> None:
        self.announced_seq = 0  # the newest event that one of them announced
        self.watching = False  # the store sends this replica their events: connections are attached here
        self.watched = False  # they have connections attached
        self.news = 0  # how often the store reported `watched` unasked
        self.sent: dict[str, Turn] = {}  # messages that one of them is accepting, by client_msg_id
        self._cancels: list[Callable[[Done], None]] = []

    def note_announced(self, seq: int) -> None:
        """Note an event that one of them announced."""
        self.announced_seq = max(self.announced_seq, seq)

    def note_watched(self, *, watched: bool) -> None:
        """Note the store's report whether they have connections attached."""
        self.watched = watched
        self.news += 1

    def entered(self, *, watched: bool, watching: bool, news: int) -> None:
        """Note the store's answer to a write, made when `news` reports had arrived.

        Reports that arrived since then count as newer than the answer.
        """
        self.watched = watched or (self.news != news and self.watched)
        self.watching = self.watching or watching

    @contextmanager
    def cancelling(self, ends: Callable[[Done], None]) -> Iterator[None]:
        """While one of them is asked to cancel, pass ends that arrive to `ends`, before anybody else gets them."""
        self._cancels.append(ends)
        try:
            yield
        finally:
            self._cancels.remove(ends)

    def note_turn_end(self, done: Done) -> None:
        """Note that a turn has ended, on any replica."""
        for ends in [*self._cancels]:
            ends(done)

    def forget(self) -> None:
        """Note that the conversation was deleted, with all that the store had of it."""
        self.announced_seq = 0
        self.watching = self.watched = False


class PendingResumes:
    """Connections being resumed in a conversation; their other requests wait."""

    def __init__(self) -> None:
        self._resumed: dict[Subscriber, asyncio.Event] = {}

    @contextmanager
    def resuming(self, subscriber: Subscriber) -> Iterator[None]:
        """Mark a connection as being resumed while the context lasts."""
        wait = self._resumed[subscriber] = asyncio.Event()
        try:
            yield
        finally:
            wait.set()
            if self._resumed.get(subscriber) is wait:
                del self._resumed[subscriber]

    async def wait(self, subscriber: Subscriber) -> None:
        """Wait until a connection is resumed, or gave up; returns at once if it is not being resumed."""
        while (wait := self._resumed.get(subscriber)) is not None:
            await wait.wait()


class DeletionNotice:
    """The deletion of one conversation. `known`: the epoch whose deletion was published."""

    def __init__(self) -> None:
        self.known = ""
        self._requesters: list[tuple[Subscriber, str | None]] = []

    @contextmanager
    def requested_by(self, subscriber: Subscriber, ref: str | None) -> Iterator[None]:
        """Note a requester, which is notified with its ref, even if another one was faster."""
        self._requesters.append(requester := (subscriber, ref))
        try:
            yield
        except NotFound:
            if requester in self._requesters:
                raise
        finally:
            if requester in self._requesters:
                self._requesters.remove(requester)

    def publish(self, epoch: str, event: Deleted, attached: set[Subscriber]) -> bool:
        """Notify attached connections and requesters; False if that was done before."""
        if epoch == self.known:
            return False
        self.known = epoch
        requesters, self._requesters = self._requesters, []
        others = attached - {subscriber for subscriber, _ in requesters}
        for subscriber, ref in [*requesters, *((other, None) for other in others)]:
            subscriber.publish(event if ref is None else msgspec.structs.replace(event, ref=ref))
        return True


class Conversation:
    """The live part of a conversation. `attached`: the attached connections of all conversations."""

    def __init__(self, owner: Owner, conversation_id: str, *, attached: Attached) -> None:
        self.owner = owner
        self.conversation_id = conversation_id
        self.keys = Keys.of(owner, conversation_id)
        self.accepting: list[Turn] = []
        self.turns: list[Turn] = []
        self.subscribers: set[Subscriber] = set()
        self._attached = attached
        self.users = 0
        self.known = StoredState()
        self.published = PublishedState()
        self.claim_lock = asyncio.Lock()  # guards the order of arrivals
        self.order_lock = asyncio.Lock()  # guards a seq from memory, from reservation to publication
        self.write_lock = (
            asyncio.Lock()
        )  # guards what takes a seq, except the running turn's events; and the list of watchers
        self.others = PeerState()
        self.deletion = DeletionNotice()
        self.resumes = PendingResumes()

    @property
    def idle(self) -> bool:
        """Whether the conversation is not needed here."""
        return self.is_unused and not self.turns and not self.accepting and not self.others.watching

    @property
    def is_unused(self) -> bool:
        """Whether no connection is attached here or about to be."""
        return not self.subscribers and not self.users

    @property
    def is_attended(self) -> bool:
        """Whether a connection is attached on any replica, as far as known."""
        return bool(self.subscribers) or self.others.watched

    @property
    def live(self) -> Turn | None:
        """The turn that runs here or waits for calls, once it is in the history."""
        return next((live for live in self.turns if live.is_in_history), None)

    def note_change(self) -> None:
        """Note a change in the store: what is being read of it is read again."""
        self.known.beginning = None
        self.known.version += 1

    def next_seq(self) -> int:
        """Reserve the next seq."""
        self.known.seq += 1
        return self.known.seq

    def earlier_duplicate(self, arrival: Turn) -> Turn | None:
        """Return the live turn of the same `client_msg_id` that came earlier, and began its exchange."""
        earlier = [*self.turns, *self.accepting[: self.accepting.index(arrival)]]
        begun = (live for live in earlier if live.tool_round.awaited is None)
        same = arrival.send.client_msg_id
        return next((live for live in begun if live.send.client_msg_id == same), None)

    def turn(self, turn_id: str | None) -> Turn | None:
        """Return a live turn by its id."""
        return next((live for live in self.turns if live.turn.ids.turn_id == turn_id), None)

    def calling(self, call_id: str) -> Turn | None:
        """Return the newest turn here with this call, or waiting for it."""
        return next((live for live in reversed(self.turns) if live.tool_round.has(call_id)), None)

    def has_published(self, call_id: str) -> bool:
        """Return whether a call was published recently, or waits here."""
        return call_id in self.published.calls or self.calling(call_id) is not None

    def follow(self, live: Turn, following: Turn) -> None:
        """Add a turn that waits for another one's calls, right behind it; queued turns follow its reply."""
        live.tool_round.following = following
        self.turns.insert(self.turns.index(live) + 1, following)
        called, reply = live.record.reply_id, following.record.reply_id
        for queued in self.turns:
            if queued is not following and queued.record.parent_id == called:
                queued.record = msgspec.structs.replace(queued.record, parent_id=reply)
        if self.known.newest_reply == called:
            self.known.newest_reply = reply

    def continue_turn(self, live: Turn, *, seq: int, watched: bool) -> None:
        """Add a turn that waited on a dead replica, before all others. Attached connections know all events up to `seq`."""
        self.turns.insert(0, live)
        self.known.seq = seq
        self.known.newest_reply = live.record.reply_id
        self.note_change()
        self.others.watched = watched

    def blocking(self) -> list[Turn]:
        """Return the turns that make a new one wait or be refused: those whose end is not decided."""
        return [live for live in self.turns if not live.turn.is_over]

    def claim(self, live: Turn) -> list[Turn]:
        """Add a turn behind those that are ending; return the ones that it interrupts. Raises Busy."""
        blocking = self.blocking()
        if blocking and live.send.on_busy == "reject":
            raise Busy(
                "A reply is being written in this conversation. Cancel it, or send with another on_busy."
            )
        self.accepting.remove(live)
        self.turns.append(live)
        return [] if live.send.ends is None else blocking

    def release(self, live: Turn) -> None:
        """Remove a turn that has ended, or was never accepted."""
        for turns in (self.turns, self.accepting):
            if live in turns:
                turns.remove(live)
        self.published.followed = self.published.followed and bool(self.subscribers or self.turns)
        if live.grace is not None:
            live.grace.cancel()
        live.ended.set()
        live.released.set()

    def before(self, live: Turn) -> Turn | None:
        """Return the turn that must end before this one begins."""
        place = self.turns.index(live)
        return self.turns[place - 1] if place else None

    def cancel(self, live: Turn, cause: Cause, *, seen_off: int | None, now: float) -> bool:
        """Decide the cut and withdraw waiting text beyond it; False if the end was decided before."""
        turn_id = live.turn.ids.turn_id
        sent_off, reasoning_off = live.sent.text, live.sent.reasoning
        if self.others.watched:  # published text has reached other replicas and their connections
            sent_off, reasoning_off = live.published_off, live.published_reasoning_off
        seen_off = live.seen(seen_off)
        cut = live.turn.cancel(
            cause, sent_off=sent_off, seen_off=seen_off, now=now, reasoning_off=reasoning_off
        )
        if cut is None:
            return False
        if live.player is not None:
            live.player.stop()
        for subscriber in self.subscribers:
            subscriber.withdraw(turn_id, cut.kept.chars, cut.kept.reasoning)
        return True

    def attach(self, subscriber: Subscriber) -> None:
        """Attach a connection to all events from now on."""
        if not subscriber.closed:
            self.cancel_grace()
            self.subscribers.add(subscriber)
            self._attached.setdefault(subscriber, set()).add(self)

    def cancel_grace(self) -> None:
        """Stop all grace periods: somebody came back."""
        for live in self.turns:
            if live.grace is not None:
                live.grace.cancel()
                live.grace = None

    def ack(self, seq: int) -> None:
        """Note that a reader has all events up to `seq`. Ignored if that was not published, or no turn runs here."""
        live = self.live
        if live is not None and not live.waits and live.record.accepted_seq <= seq <= self.published.seq:
            live.turn.ack(seq)

    def advance_to(self, seq: int) -> None:
        """Note that attached connections know all events up to `seq`, and get the later ones."""
        self.published.followed = True
        self.published.seq = seq

    def enter_epoch(self, epoch: str) -> None:
        """Note a new epoch; a deletion of the one before is no longer news."""
        if epoch != self.published.epoch:
            self.deletion.known = self.published.epoch
        self.published.epoch = epoch

    def leave(self, subscriber: Subscriber) -> None:
        """Detach a connection; what it was sent still counts."""
        for live in self.turns:
            live.followers.discard(subscriber)
            if live.sender is subscriber and subscriber.closed:
                live.sender = NullSubscriber()  # a running reply keeps no reference to a closed connection
        self.subscribers.discard(subscriber)
        self.published.followed = self.published.followed and bool(self.subscribers or self.turns)

    def publish(self, event: Event, made_at: float | None = None, sent: SentOffsets | None = None) -> None:
        """Send an event to every attached connection. `made_at`, `sent`: see `Subscriber`."""
        if isinstance(event, ToolCall):
            self.published.calls.append(event.call_id)
        for subscriber in self.subscribers:
            subscriber.publish(event, made_at, sent)

    def publish_text(self, live: Turn, text: Text) -> None:
        """Publish text or reasoning of a running turn."""
        stream = live.engine.stream
        made_at = (
            None if stream is None or live.engine.paced else stream.made_at
        )  # late on purpose if it is paced
        self.publish(text, made_at, live.sent)
        self.published.seq = text.seq
        if isinstance(text, Delta):
            live.published_off = text.off + len(text.text)
            if live.player is not None:
                live.player.feed(text)
        else:
            live.published_reasoning_off = text.off + len(text.text)

    def publish_control(self, event: ToolCall | ToolState | SourceText) -> None:
        """Publish a call, a call's new state, or a growth of the source of a running turn."""
        self.publish(event)
        self.published.seq = event.seq
        self.note_change()

    def publish_status(self, live: Turn, status: Status) -> None:
        """Publish a turn's status; later connections get it, too, while there is no text."""
        live.status = status
        self.publish(status)

    def publish_removed(self, removed: Removed) -> None:
        """Publish that an exchange was removed from the history."""
        self.known.seq = self.published.seq = removed.seq
        self.publish(removed)
        self.note_change()

    def take_over(self, events: Sequence[Journalled]) -> None:
        """Publish events that no turn of this replica journalled, as far as they are new here."""
        for event in events:
            if event.seq <= self.published.seq:
                continue
            match event:
                case Accepted():
                    self._publish_accepted_elsewhere(event)
                case Delta() | Reasoning() | SourceText() | ToolCall() | ToolState():
                    self.publish(event)
                    self.advance_to(event.seq)
                case Done():
                    self.publish_done(event)
                case Removed():
                    self.publish_removed(event)
        self.note_change()

    def publish_deleted(self, epoch: str) -> None:
        """Publish once that the conversation is gone; its requesters get their ref."""
        if self.deletion.publish(epoch, Deleted(conversation_id=self.conversation_id), self.subscribers):
            self.note_change()
            self.published.followed = False
            self.others.forget()

    def _publish_accepted_elsewhere(self, event: Accepted) -> None:
        mine = self.others.sent.pop(event.client_msg_id, None)
        for subscriber in self.subscribers:
            is_sender = mine is not None and subscriber is mine.sender
            ref = mine.send.ref if mine is not None and is_sender else None
            subscriber.publish(msgspec.structs.replace(event, ref=ref, content=None) if is_sender else event)
        self.advance_to(event.seq)

    def publish_done(self, done: Done) -> None:
        """Publish the end of a turn; it covers the seqs of deltas that nobody was sent."""
        if (live := self.turn(done.turn_id)) is not None:
            live.record = msgspec.structs.replace(live.record, done=done)
            live.ended.set()
        self.others.note_turn_end(done)
        first = self.published.seq + 1
        self.publish(msgspec.structs.replace(done, first_seq=first) if first < done.seq else done)
        self.published.seq = done.seq
        self.note_change()

    def publish_accepted(self, live: Turn, event: Accepted) -> None:
        """Publish `accepted`: to the sender with its ref, to all others with the content."""
        for subscriber in self.subscribers - {live.sender}:
            subscriber.publish(event)
        if live.sender in self.subscribers:
            live.sender.publish(msgspec.structs.replace(event, ref=live.send.ref, content=None))
        live.followers = set(self.subscribers)
        if live.tool_round.awaited is None:  # otherwise it had its place before
            self.known.newest_reply = live.record.reply_id
        self.known.seq = event.seq
        self.published.epoch = event.epoch
        self.advance_to(event.seq)
        self.note_change()


def accepted_event(
    conversation: Conversation,
    record: TurnRecord,
    send: MessageRequest,
    epoch: str,
    *,
    duplicate: bool = False,
) -> Accepted:
    """Return a turn's `accepted`; that of a `duplicate` has a `ref`, since it goes to one connection."""
    event = record.accepted(conversation.conversation_id, epoch)
    return msgspec.structs.replace(event, ref=send.ref, duplicate=True) if duplicate else event


def with_content(event: Accepted, message: MessageRecord) -> Accepted:
    """Return the event with the message's content and attachments, which are new to readers."""
    return msgspec.structs.replace(
        event, content=message.content, attachments=attachments_of(message.images) if message.images else ()
    )


class ConversationRegistry:
    """Opens a conversation on demand, and drops it when it is not needed."""

    def __init__(self) -> None:
        self._live: dict[tuple[Owner, str], Conversation] = {}
        self._by_key: dict[str, Conversation] = {}
        self._attached: Attached = {}

    def __len__(self) -> int:
        return len(self._live)

    def get(self, owner: Owner, conversation_id: str) -> Conversation | None:
        """Return a live conversation, or None."""
        return self._live.get((owner, conversation_id))

    def open(self, owner: Owner, conversation_id: str) -> Conversation:
        """Return a conversation, live from here on; the caller uses it, or calls `drop_if_idle`."""
        key = (owner, conversation_id)
        if key not in self._live:
            self._live[key] = new = Conversation(owner, conversation_id, attached=self._attached)
            self._by_key[new.keys.conversation] = new
        return self._live[key]

    def by_key(self, key: str) -> Conversation | None:
        """Return a live conversation by its key in the store."""
        return self._by_key.get(key)

    def runs(self, turn: RunningTurn) -> bool:
        """Return whether a turn runs here."""
        conversation = self.get(turn.owner, turn.conversation_id)
        return conversation is not None and conversation.turn(turn.turn_id) is not None

    def __iter__(self) -> Iterator[Conversation]:
        return iter([*self._live.values()])

    def with_turns(self) -> list[Conversation]:
        """The conversations with turns here."""
        return [conversation for conversation in self._live.values() if conversation.turns]

    def unsaved(self) -> int:
        """Return the number of turns here with published text or ends that the store does not have."""
        return sum(live.is_unsaved for one in self._live.values() for live in one.turns)

    @contextmanager
    def using(self, owner: Owner, conversation_id: str) -> Iterator[Conversation]:
        """Yield a conversation that stays live while the context lasts."""
        with self.held(conversation := self.open(owner, conversation_id)):
            yield conversation

    @contextmanager
    def held(self, conversation: Conversation) -> Iterator[None]:
        """Keep a conversation live while the context lasts."""
        self.hold(conversation)
        try:
            yield
        finally:
            self.release(conversation)

    def hold(self, conversation: Conversation) -> None:
        """Keep a conversation live; calls are counted."""
        conversation.users += 1

    def release(self, conversation: Conversation) -> None:
        """Undo one `hold`."""
        conversation.users -= 1
        self.drop_if_idle(conversation)

    def drop_if_idle(self, conversation: Conversation) -> None:
        """Drop a conversation that is not needed any more."""
        if conversation.idle and self.by_key(conversation.keys.conversation) is conversation:
            del self._live[conversation.owner, conversation.conversation_id]
            del self._by_key[conversation.keys.conversation]

    def attached(self, subscriber: Subscriber) -> list[Conversation]:
        """Return the conversations that a connection is attached to."""
        return list(self._attached.get(subscriber, ()))

    def detach(self, subscriber: Subscriber) -> list[Conversation]:
        """Detach a connection from all conversations; return them, for `drop_if_idle`."""
        conversations = list(self._attached.pop(subscriber, ()))
        for conversation in conversations:
            conversation.leave(subscriber)
        return conversations

    def readers(self) -> set[Subscriber]:
        """Return the connections that expect the end of an `unfinished` turn."""
        return {
            subscriber
            for conversation, live in self.unfinished()
            for subscriber in (live.sender, *conversation.subscribers)
        }

    def unfinished(self) -> list[tuple[Conversation, Turn]]:
        """Return the turns, and messages being accepted, whose end is not published yet.

        Turns that wait for calls count only if a tool runs here for them.
        """
        return [
            (conversation, live)
            for conversation in self._live.values()
            for live in (*conversation.turns, *conversation.accepting)
            if not (live.ended.is_set() or (live.waits and live.tool_round.idle.is_set()))
        ]


class BackgroundTasks:
    """The tasks of a replica, in one group that ends with it. Created before the replica runs, usable while it does."""

    def __init__(self) -> None:
        self._group: asyncio.TaskGroup | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Accept tasks while the context lasts; leaving it waits for them."""
        async with asyncio.TaskGroup() as self._group:
            yield

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a task in the background."""
        if self._group is None:
            work.close()
            raise RuntimeError("The replica does not run.")
        return self._group.create_task(work)


class ShieldedChanges:
    """Changes of conversations that are completed even if the requester leaves."""

    def __init__(self, *, directory: ConversationRegistry, tasks: BackgroundTasks) -> None:
        self._directory = directory
        self._tasks = tasks

    def begin(
        self, conversation: Conversation, change: Coroutine[None, None, None]
    ) -> asyncio.Task[Refused | None]:
        """Begin a change, and keep the conversation live until it is done."""
        self._directory.hold(conversation)
        changing = self._tasks.begin(refusal_of(change))
        changing.add_done_callback(lambda _: self._directory.release(conversation))
        return changing

    async def complete(self, conversation: Conversation, change: Coroutine[None, None, None]) -> None:
        """Wait until a change is done. Raises Refused."""
        if (refusal := await asyncio.shield(self.begin(conversation, change))) is not None:
            raise refusal


def incident() -> InternalError:
    """Log the exception being handled; the requester gets only its number."""
    number = secrets.token_hex(4)
    _log.exception("request failed", incident=number)
    return InternalError(incident=number)


async def refusal_of(work: Awaitable[object]) -> Refused | None:
    """Run `work`; return the refusal, which for a defect has the number of a log entry."""
    try:
        await work
    except Refused as refusal:
        return refusal
    except Exception:  # noqa: BLE001 - see above
        return incident()
    return None
