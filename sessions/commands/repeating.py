"""Answers a repeated message with its turn, as far as that is known by now."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sessions.commands.resuming import steady
from sessions.conversation.conversation import Conversation
from sessions.conversation.following import follow_up_to
from sessions.conversation.requests import accepted_event
from sessions.errors import Conflict, StoreDown
from sessions.events import Journalled, Text
from sessions.records import MessageRecord, TurnRecord
from sessions.replicas.watching import Watching
from sessions.running.ending import reply_of
from sessions.store.history.history import History
from sessions.store.history.rebuilding import told_again
from sessions.store.history.replay import covered, merged
from sessions.store.history.transactions import Duplicate, Since
from sessions.turn.live_turn import LiveTurn, Subscriber
from sessions.turn.sends import Send

_REFUSED = "This message was refused because the store did not answer; send it again in a moment."


class Repeater:
    """Answers duplicates. `unsettled`: turns of which it is not known whether the store accepted them."""

    def __init__(self, *, history: History, watching: Watching, unsettled: set[str]) -> None:
        self._history = history
        self._watching = watching
        self._unsettled = unsettled

    async def answers(self, conversation: Conversation, arrival: LiveTurn) -> bool:
        """Answer a `client_msg_id` that has a turn, live or ended; False if none is known yet. Raises Refused, Duplicate."""
        while (live := conversation.twin(arrival)) is not None:
            if await live.stages.accepted:
                _repeat_live(conversation, live, arrival)
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

    async def known(self, conversation: Conversation, send: Send) -> TurnRecord:
        """Return the turn that a message began. Raises StoreDown if it was withdrawn meanwhile, as a refused one is."""
        if (record := await self._history.turn_of(conversation.keys, send.client_msg_id)) is None:
            raise StoreDown(_REFUSED)
        return record

    async def repeat(self, conversation: Conversation, arrival: LiveTurn, record: TurnRecord) -> None:
        """Answer with a turn that does not run here: `accepted`, and if it has ended its text and `done`. Raises Refused."""
        refuse_other_content(record, arrival.send)
        if record.turn_id in self._unsettled or _is_taken_back(conversation, record):
            raise StoreDown(_REFUSED)
        # who wrote it may have died, or still wait, before it was durable enough
        await self._history.confirm(conversation.keys, term=self._history.term)
        if record.done is None:
            await self._watching.begin(conversation)
            since = await steady(self._history, conversation, record.accepted_seq)
            if since.running is not None and since.running.turn_id == record.turn_id:
                _repeat_elsewhere(conversation, record, since, arrival)
                return
            record = await self.known(conversation, arrival.send)
        await self._repeat_ended(conversation, arrival, record)

    async def _repeat_ended(self, conversation: Conversation, arrival: LiveTurn, record: TurnRecord) -> None:
        await self._watching.try_to_begin(conversation)
        if (meta := await self._history.load(conversation.keys)) is not None:
            await follow_up_to(self._history, conversation, meta.epoch, meta.seq)
        reply = await self._history.message(conversation.keys, record.reply_id)
        if record.continues is not None and await self._history.is_removed(conversation.keys, record.turn_id):
            reply = None
        event = accepted_event(conversation, record, arrival.send, meta.epoch if meta else "", duplicate=True)
        arrival.sender.publish(event)
        conversation.attach(arrival.sender)
        if (done := record.done) is not None:
            # an adopted conversation may have got another id
            kept = msgspec.structs.replace(done, conversation_id=conversation.conversation_id)
            kept = kept if reply is not None else msgspec.structs.replace(kept, removed=True)
            _repeat_end(arrival.sender, msgspec.structs.replace(record, done=kept), reply)


def _is_taken_back(conversation: Conversation, record: TurnRecord) -> bool:
    """Return whether it was queued here and refused: its removal is not written yet."""
    runs_here = conversation.live is not None and conversation.live.journal is not None
    return record.done is None and runs_here and conversation.turn(record.turn_id) is None


def refuse_other_content(record: TurnRecord, send: Send) -> None:
    """Raise Conflict if the same id came with another text, or for another place."""
    if record.digest != send.digest:
        raise Conflict("`client_msg_id` was used before, for another message.")


def _repeat_live(conversation: Conversation, live: LiveTurn, arrival: LiveTurn) -> None:
    """Answer a duplicate of a running turn. A connection that does not follow it yet gets its text so far as one delta."""
    refuse_other_content(live.record, arrival.send)
    reader = arrival.sender
    event = accepted_event(
        conversation, live.record, arrival.send, conversation.published.epoch, duplicate=True
    )
    if (interpretation := live.exchange.interpretation) is not None:
        event = msgspec.structs.replace(event, content=interpretation.source.text)
    reader.publish(event)
    conversation.attach(reader)
    if live.record.done is not None:  # published, but not saved yet
        _repeat_end(reader, live.record, reply_of(live, live.record.done))
        return
    if reader in live.delivery.followers:
        return
    live.delivery.followers.add(reader)
    if live.wait is not None:
        reader.publish(live.wait)
    after, until = live.record.accepted_seq, conversation.published.seq
    told = [*live.turn.pieces.told_behind(after, until=until), *live.calls_told(after, until=until)]
    _repeat(reader, sorted(told, key=lambda event: event.seq), after=after, until=until)


def _repeat_elsewhere(
    conversation: Conversation, record: TurnRecord, since: Since, arrival: LiveTurn
) -> None:
    """Answer a duplicate of a turn that runs on another replica, as far as the journal has it."""
    reader = arrival.sender
    reader.publish(accepted_event(conversation, record, arrival.send, since.epoch, duplicate=True))
    conversation.attach(reader)
    if not arrival.intake.was_attached:
        told = [event for event in since.events if event.turn_id == record.turn_id]
        _repeat(reader, merged(told), after=record.accepted_seq, until=since.seq)


def _repeat(reader: Subscriber, told: Sequence[Journalled], *, after: int, until: int) -> None:
    """Replay a running turn; its later events, after `until`, follow."""
    events = covered(told, after)
    if events and isinstance(events[-1], Text):
        events[-1] = msgspec.structs.replace(events[-1], seq=until)
    for event in events:
        reader.publish(event)


def _repeat_end(reader: Subscriber, record: TurnRecord, reply: MessageRecord | None) -> None:
    """Replay an ended turn: its text as one delta, and its end."""
    for event in told_again(record, reply):
        reader.publish(event)
