"""Answers a repeated message with its turn, as far as that is known by now."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sessions.commands.resumption import read_consistent
from sessions.conversation.catch_up import catch_up_to
from sessions.conversation.conversation import Conversation
from sessions.conversation.engine_requests import accepted_event
from sessions.errors import Conflict, StoreDown
from sessions.events import Journalled, Text
from sessions.records import MessageRecord, TurnRecord
from sessions.replicas.subscriptions import Subscriptions
from sessions.running.turn_end import reply_of
from sessions.store.history.history import History
from sessions.store.history.rebuild import rebuilt_turn
from sessions.store.history.replay import covered, merged
from sessions.store.history.transactions import Duplicate, Since
from sessions.turn.message_request import MessageRequest
from sessions.turn.turn import Subscriber, Turn

_REFUSED = "This message was refused because the store did not answer; send it again in a moment."


class DuplicateHandler:
    """Answers duplicates. `unsettled`: turns of which it is not known whether the store accepted them."""

    def __init__(self, *, history: History, watching: Subscriptions, unsettled: set[str]) -> None:
        self._history = history
        self._watching = watching
        self._unsettled = unsettled

    async def answers(self, conversation: Conversation, arrival: Turn) -> bool:
        """Answer a `client_msg_id` that has a turn, live or ended; False if none is known yet. Raises Refused, Duplicate."""
        while (live := conversation.earlier_duplicate(arrival)) is not None:
            if await live.milestones.accepted:
                _replay_local(conversation, live, arrival)
                return True
        if not conversation.blocking():
            return False  # the atomic write decides
        record = await self._history.turn_of(conversation.keys, arrival.send.client_msg_id)
        if record is None:
            return False
        if record.done is None:
            raise Duplicate(record)
        await self.repeat(conversation, arrival, record)
        return True

    async def known(self, conversation: Conversation, send: MessageRequest) -> TurnRecord:
        """Return the turn that a message began. Raises StoreDown if it was withdrawn meanwhile, as a refused one is."""
        if (record := await self._history.turn_of(conversation.keys, send.client_msg_id)) is None:
            raise StoreDown(_REFUSED)
        return record

    async def repeat(self, conversation: Conversation, arrival: Turn, record: TurnRecord) -> None:
        """Answer with a turn that does not run here: `accepted`, and if it has ended its text and `done`. Raises Refused."""
        refuse_other_content(record, arrival.send)
        if record.turn_id in self._unsettled or _is_withdrawn(conversation, record):
            raise StoreDown(_REFUSED)
        # who wrote it may have died, or still wait, before it was durable enough
        await self._history.confirm(conversation.keys, term=self._history.term)
        if record.done is None:
            await self._watching.begin(conversation)
            since = await read_consistent(self._history, conversation, record.accepted_seq)
            if since.running is not None and since.running.turn_id == record.turn_id:
                _replay_remote(conversation, record, since, arrival)
                return
            record = await self.known(conversation, arrival.send)
        await self._repeat_ended(conversation, arrival, record)

    async def _repeat_ended(self, conversation: Conversation, arrival: Turn, record: TurnRecord) -> None:
        await self._watching.try_to_begin(conversation)
        if (meta := await self._history.load(conversation.keys)) is not None:
            await catch_up_to(self._history, conversation, meta.epoch, meta.seq)
        reply = await self._history.message(conversation.keys, record.reply_id)
        if record.continues is not None and await self._history.is_removed(conversation.keys, record.turn_id):
            reply = None
        event = accepted_event(conversation, record, arrival.send, meta.epoch if meta else "", duplicate=True)
        arrival.sender.publish(event)
        conversation.attach(arrival.sender)
        if (done := record.done) is not None:
            kept = done if reply is not None else msgspec.structs.replace(done, removed=True)
            _replay_ended(arrival.sender, msgspec.structs.replace(record, done=kept), reply)


def _is_withdrawn(conversation: Conversation, record: TurnRecord) -> bool:
    """Return whether it was queued here and refused: its removal is not written yet."""
    runs_here = conversation.live is not None and conversation.live.journal is not None
    return record.done is None and runs_here and conversation.turn(record.turn_id) is None


def refuse_other_content(record: TurnRecord, send: MessageRequest) -> None:
    """Raise Conflict if the same id came with another text, or for another place."""
    if record.digest != send.digest:
        raise Conflict("`client_msg_id` was used before, for another message.")


def _replay_local(conversation: Conversation, live: Turn, arrival: Turn) -> None:
    """Answer a duplicate of a running turn. A connection that does not follow it yet gets its text so far as one delta."""
    refuse_other_content(live.record, arrival.send)
    reader = arrival.sender
    event = accepted_event(
        conversation, live.record, arrival.send, conversation.published.epoch, duplicate=True
    )
    if (interpretation := live.tool_round.interpretation) is not None:
        event = msgspec.structs.replace(event, content=interpretation.source.text)
    reader.publish(event)
    conversation.attach(reader)
    if live.record.done is not None:  # published, but not saved yet
        _replay_ended(reader, live.record, reply_of(live, live.record.done))
        return
    if reader in live.delivery.followers:
        return
    live.delivery.followers.add(reader)
    if live.wait is not None:
        reader.publish(live.wait)
    after, until = live.record.accepted_seq, conversation.published.seq
    published_events = [
        *live.turn.pieces.merged_after(after, until=until),
        *live.call_events(after, until=until),
    ]
    _replay(reader, sorted(published_events, key=lambda event: event.seq), after=after, until=until)


def _replay_remote(conversation: Conversation, record: TurnRecord, since: Since, arrival: Turn) -> None:
    """Answer a duplicate of a turn that runs on another replica, as far as the journal has it."""
    reader = arrival.sender
    reader.publish(accepted_event(conversation, record, arrival.send, since.epoch, duplicate=True))
    conversation.attach(reader)
    if not arrival.acceptance.was_attached:
        published_events = [event for event in since.events if event.turn_id == record.turn_id]
        _replay(reader, merged(published_events), after=record.accepted_seq, until=since.seq)


def _replay(reader: Subscriber, published_events: Sequence[Journalled], *, after: int, until: int) -> None:
    """Replay a running turn; its later events, after `until`, follow."""
    events = covered(published_events, after)
    if events and isinstance(events[-1], Text):
        events[-1] = msgspec.structs.replace(events[-1], seq=until)
    for event in events:
        reader.publish(event)


def _replay_ended(reader: Subscriber, record: TurnRecord, reply: MessageRecord | None) -> None:
    """Replay an ended turn: its text as one delta, and its end."""
    for event in rebuilt_turn(record, reply):
        reader.publish(event)
