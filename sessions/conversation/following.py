"""Brings a conversation's attached connections up to what the store has of it: other replicas write there too.

Where that leaves a hole they are told so, and where the conversation stands.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sessions.conversation.conversation import Conversation
from sessions.events import Delta, Done, Event, Gap, Journalled, Reasoning, Snapshot
from sessions.records import CallRecord, MessageRecord
from sessions.store.history.history import History
from sessions.store.history.keys import Keys
from sessions.store.history.transactions import Since
from sessions.turn.calls import calls_of

_ALL = 2**53
"""A seq that no event has."""


async def follow_up_to(history: History, conversation: Conversation, epoch: str, seq: int) -> None:
    """Tells attached connections the events up to `seq`, the last that the store had, as far as they are news.

    Where the journal does not have them any more, or the store lost some that were told, they are told of a gap.
    Nothing where a turn runs here: then this replica writes all events. Raises StoreDown.
    """
    async with conversation.locks.writing:  # what is written here is told by its writer
        if conversation.live is not None:
            return
        if not conversation.published.followed:
            conversation.stand_at(seq)
            conversation.published.epoch = epoch
            seq = max(seq, conversation.others.heard_seq)
        if conversation.published.epoch != epoch or await _store_lost_data(history, conversation, seq):
            await _tell_gap(history, conversation)
        while conversation.published.seq < seq and await _fill(history, conversation):
            pass


async def with_running_turn(history: History, keys: Keys) -> Since | None:
    """The facts of a conversation with all events of the running turn; None where there is no conversation."""
    since = await history.since(keys, _ALL)
    if since is None or since.running is None:
        return since
    return await history.since(keys, since.running.accepted_seq)


def gap(conversation: Conversation, since: Since, *, ref: str | None = None) -> list[Event]:
    """That there is a hole, and where the conversation stands. `since` is behind the running turn's `accepted`."""
    live, place = conversation.live, conversation.conversation_id
    if live is None:
        turn_id = since.running.turn_id if since.running is not None else None
        reply = reply_so_far(since.events, turn_id, since.base)
        calls = reply.calls or since.awaited
    else:
        turn_id = None if live.waits else live.record.turn_id
        reply = ReplySoFar(live.published_text, live.published_reasoning, live.exchange.calls.records)
        calls = live.shown_calls
    snapshot = Snapshot(
        conversation_id=place,
        epoch=since.epoch,
        seq=since.seq if live is None else conversation.published.seq,
        turn_id=turn_id,
        text=reply.text,
        reasoning=reply.reasoning,
        calls=tuple(call.shown() for call in calls),
    )
    return [Gap(conversation_id=place, ref=ref, epoch=since.epoch, min_seq=since.first), snapshot]


def gap_before(done: Done, since: Since, reply: MessageRecord | None) -> list[Event]:
    """That there is a hole, and how the conversation stood right before a turn's end. `reply`: as it is kept, if it is."""
    snapshot = Snapshot(
        conversation_id=done.conversation_id,
        epoch=since.epoch,
        seq=done.seq - 1,
        turn_id=done.turn_id,
        text=reply.content if reply is not None else "",
        reasoning=reply.reasoning if reply is not None else "",
        calls=tuple(call.shown() for call in reply.calls) if reply is not None else (),
    )
    return [
        Gap(conversation_id=done.conversation_id, ref=None, epoch=since.epoch, min_seq=since.first),
        snapshot,
    ]


class ReplySoFar(msgspec.Struct, frozen=True):
    """What a running reply has, as far as that is known."""

    text: str
    reasoning: str
    calls: tuple[CallRecord, ...]


def reply_so_far(
    events: Sequence[Journalled], turn_id: str | None, base: MessageRecord | None = None
) -> ReplySoFar:
    """What a turn that runs elsewhere has, by its events. `base`: the reply that it goes on with."""
    own = [event for event in events if getattr(event, "turn_id", None) == turn_id]
    text = "".join(event.text for event in own if isinstance(event, Delta))
    reasoning = "".join(event.text for event in own if isinstance(event, Reasoning))
    if base is not None:
        text, reasoning = base.content + text, base.reasoning + reasoning
    return ReplySoFar(text, reasoning, calls_of(own))


async def _fill(history: History, conversation: Conversation) -> bool:
    """Tells what the journal has. False where it has a hole: that is told, and the conversation stands behind it."""
    since = await history.since(conversation.keys, conversation.published.seq)
    if since is not None and since.events and since.first <= conversation.published.seq + 1:
        conversation.take_over(since.events)
        return True
    await _tell_gap(history, conversation)
    return False


async def _store_lost_data(history: History, conversation: Conversation, seq: int) -> bool:
    """Whether events were told that the store does not have any more: then a new epoch begins."""
    told = conversation.published.seq
    if told <= seq:
        return False
    meta = await history.load(conversation.keys)
    if meta is None or meta.seq >= told:  # its events came here faster than its answer
        return False
    await history.renew(conversation.keys, meta.epoch)
    return True


async def _tell_gap(history: History, conversation: Conversation) -> None:
    since = await with_running_turn(history, conversation.keys)
    if since is None:  # it was deleted, and the news of that are on their way, or the store lost all of it
        conversation.publish_deleted(conversation.published.epoch)
        return
    conversation.stand_at(since.seq)
    conversation.others.heard_seq = since.seq
    conversation.enter_epoch(since.epoch)
    conversation.forget()
    for event in gap(conversation, since):
        conversation.publish(event)
