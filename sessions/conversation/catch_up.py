"""Brings attached connections up to the store's state of a conversation, to which other replicas write, too.

If events are missing, they get a gap and a snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sessions.conversation.conversation import Conversation
from sessions.events import Delta, Done, Event, Gap, Journalled, Reasoning, Snapshot
from sessions.records import CallRecord, MessageRecord
from sessions.store.codec import Keys
from sessions.store.history import History, Since
from sessions.turn.tool_calls import calls_of

_ALL = 2**53
"""A seq that no event has."""


async def catch_up_to(history: History, conversation: Conversation, epoch: str, seq: int) -> None:
    """Publish the events up to `seq`, the last one in the store, as far as they are new.

    If the journal no longer has them, or the store lost published ones, a gap is published. Does nothing if a turn runs here:
    then this replica writes all events. Raises StoreDown.
    """
    async with conversation.write_lock:  # the writer publishes what is written here
        if conversation.live is not None:
            return
        if not conversation.published.followed:
            conversation.advance_to(seq)
            conversation.published.epoch = epoch
            seq = max(seq, conversation.others.announced_seq)
        if conversation.published.epoch != epoch or await _store_lost_data(history, conversation, seq):
            await _publish_gap(history, conversation)
        while conversation.published.seq < seq and await _fill(history, conversation):
            pass


async def with_running_turn(history: History, keys: Keys) -> Since | None:
    """Return the facts of a conversation with all events of the running turn; None if there is no conversation."""
    since = await history.since(keys, _ALL)
    if since is None or since.running is None:
        return since
    return await history.since(keys, since.running.accepted_seq)


def gap(conversation: Conversation, since: Since, *, ref: str | None = None) -> list[Event]:
    """Return a gap and a snapshot. `since`: read from the running turn's `accepted` on."""
    live, conversation_id = conversation.live, conversation.conversation_id
    if live is None:
        turn_id = since.running.turn_id if since.running is not None else None
        reply = partial_reply(since.events, turn_id, since.base)
        calls = reply.calls or since.awaited
    else:
        turn_id = None if live.waits else live.record.turn_id
        reply = PartialReply(live.published_text, live.published_reasoning, live.tool_round.calls.records)
        calls = live.shown_calls
    snapshot = Snapshot(
        conversation_id=conversation_id,
        epoch=since.epoch,
        seq=since.seq if live is None else conversation.published.seq,
        turn_id=turn_id,
        text=reply.text,
        reasoning=reply.reasoning,
        calls=tuple(call.shown() for call in calls),
    )
    return _gap(since, snapshot, ref)


def _gap(since: Since, snapshot: Snapshot, ref: str | None = None) -> list[Event]:
    gap_event = Gap(conversation_id=snapshot.conversation_id, ref=ref, epoch=since.epoch, min_seq=since.first)
    return [gap_event, snapshot]


def gap_before(done: Done, since: Since, reply: MessageRecord | None) -> list[Event]:
    """Return a gap and a snapshot right before a turn's end. `reply`: the stored one, if any."""
    snapshot = Snapshot(
        conversation_id=done.conversation_id,
        epoch=since.epoch,
        seq=done.seq - 1,
        turn_id=done.turn_id,
        text=reply.content if reply is not None else "",
        reasoning=reply.reasoning if reply is not None else "",
        calls=tuple(call.shown() for call in reply.calls) if reply is not None else (),
    )
    return _gap(since, snapshot)


class PartialReply(msgspec.Struct, frozen=True):
    """A running reply, as far as it is known."""

    text: str
    reasoning: str
    calls: tuple[CallRecord, ...]


def partial_reply(
    events: Sequence[Journalled], turn_id: str | None, base: MessageRecord | None = None
) -> PartialReply:
    """Return a reply that runs elsewhere, from its events. `base`: the reply that it continues."""
    own = [event for event in events if getattr(event, "turn_id", None) == turn_id]
    text = "".join(event.text for event in own if isinstance(event, Delta))
    reasoning = "".join(event.text for event in own if isinstance(event, Reasoning))
    if base is not None:
        text, reasoning = base.content + text, base.reasoning + reasoning
    return PartialReply(text, reasoning, calls_of(own))


async def _fill(history: History, conversation: Conversation) -> bool:
    """Publish the journal's events. False if some are missing: then a gap and a snapshot are published."""
    since = await history.since(conversation.keys, conversation.published.seq)
    if since is not None and since.events and since.first <= conversation.published.seq + 1:
        conversation.take_over(since.events)
        return True
    await _publish_gap(history, conversation)
    return False


async def _store_lost_data(history: History, conversation: Conversation, seq: int) -> bool:
    """Return whether published events are missing in the store: then a new epoch begins."""
    published_seq = conversation.published.seq
    if published_seq <= seq:
        return False
    meta = await history.load(conversation.keys)
    if meta is None or meta.seq >= published_seq:  # events came here faster than the store's answer
        return False
    await history.renew(conversation.keys, meta.epoch)
    return True


async def _publish_gap(history: History, conversation: Conversation) -> None:
    since = await with_running_turn(history, conversation.keys)
    if since is None:  # it was deleted and the message about it is on its way, or the store lost all of it
        conversation.publish_deleted(conversation.published.epoch)
        return
    conversation.advance_to(since.seq)
    conversation.others.announced_seq = since.seq
    conversation.enter_epoch(since.epoch)
    conversation.note_change()
    for event in gap(conversation, since):
        conversation.publish(event)
