"""Resumes a reader: it gets the events that it missed, each once and in order, and then the live ones.

If events are missing (another epoch, or no longer kept), it gets a gap with a snapshot.
"""

from __future__ import annotations

import msgspec

from sessions.conversation.catch_up import catch_up_to, gap
from sessions.conversation.conversation import Conversation, accepted_event
from sessions.errors import NotFound
from sessions.events import Event, Journalled, Resumed
from sessions.running import runner
from sessions.store.history import History, Since
from sessions.store.journal import READ_BYTES, covered, is_too_long, replayed
from sessions.turn.turn import Subscriber, Turn


class ReaderPosition(msgspec.Struct, frozen=True):
    """A reader's position: the last seq that it saw, and its epoch."""

    epoch: str
    seq: int


async def resume(
    history: History,
    conversation: Conversation,
    reader: Subscriber,
    position: ReaderPosition,
    *,
    ref: str | None,
) -> None:
    """Send a reader what it missed, and attach it. Raises NotFound, StoreDown."""
    since = await read_consistent(history, conversation, position.seq, most_bytes=READ_BYTES)
    if is_gap := _is_gap(conversation, since, position):
        await _renew_if_lost(history, conversation, since, position)
        since = await _current_state(history, conversation, since)
    live = conversation.live
    published_events = (
        gap(conversation, since, ref=ref)
        if is_gap
        else _replayed_events(conversation, since, reader, position, ref)
    )
    conversation.attach(reader)
    for turn in conversation.turns:
        turn.followers.add(reader)
    for event in published_events:
        reader.publish(event, sent=None if live is None else live.sent_of(event))
    if live is not None and live.wait is not None:
        reader.publish(live.wait)


async def _current_state(history: History, conversation: Conversation, since: Since) -> Since:
    """Return the conversation's state, with the running turn's text if it runs elsewhere: a local turn's is known here."""
    while True:
        live, running = conversation.live, since.running
        after_seq = since.seq if live is not None or running is None else running.accepted_seq
        since = await read_consistent(history, conversation, after_seq)
        if conversation.live is live:
            return since


async def read_consistent(
    history: History, conversation: Conversation, after_seq: int, *, most_bytes: int | None = None
) -> Since:
    """Return the journal after a seq, up to `most_bytes`, when no turn here begins or ends and all events are published."""
    while True:
        version = conversation.known.version
        if (live := conversation.live) is not None and live.turn.is_over:
            await runner.ended(live)
        since = await history.since(conversation.keys, after_seq, most_bytes=most_bytes)
        if since is None:
            raise NotFound(f'There is no conversation "{conversation.conversation_id}".')
        await catch_up_to(history, conversation, since.epoch, since.seq)
        if conversation.known.version == version and _is_consistent(conversation, since):
            return since


def _is_consistent(conversation: Conversation, since: Since) -> bool:
    if conversation.live is not None:
        return not conversation.live.turn.is_over
    return conversation.published.seq == since.seq


def _is_gap(conversation: Conversation, since: Since, position: ReaderPosition) -> bool:
    is_ahead = position.seq > max(since.seq, conversation.published.seq)
    is_kept = since.first <= position.seq + 1 and not (since.is_too_long or is_too_long(since.events))
    return position.epoch != since.epoch or is_ahead or not is_kept


async def _renew_if_lost(
    history: History, conversation: Conversation, since: Since, position: ReaderPosition
) -> None:
    """Begin a new epoch if the reader saw more than the store has, and no running turn may be ahead of the store."""
    is_ahead = position.epoch == since.epoch and position.seq > since.seq
    if is_ahead and since.running is None and not conversation.turns:
        await history.renew(conversation.keys, since.epoch)


def _replayed_events(
    conversation: Conversation, since: Since, reader: Subscriber, position: ReaderPosition, ref: str | None
) -> list[Event]:
    journalled, live = since.events, conversation.live
    if live is not None:  # events that are not published yet will reach this reader, too
        journalled = [event for event in journalled if event.seq <= conversation.published.seq]
    events = replayed(journalled, {})
    if live is not None:
        events += _from_memory(conversation, live, since, position.seq)
    return [
        Resumed(
            conversation_id=conversation.conversation_id,
            ref=ref,
            epoch=since.epoch,
            replayed=sum(map(reader.understands, events)),
            live=_running(since, live),
        ),
        *events,
    ]


def _from_memory(conversation: Conversation, live: Turn, since: Since, after_seq: int) -> list[Journalled]:
    """Return what the running turn has published since the store was read."""
    after, until = max(since.seq, after_seq), conversation.published.seq
    published_events = live.published_after(after, until=until)
    if live.record.follows and after < live.record.accepted_seq <= until:  # the store may not have it yet
        published_events.append(accepted_event(conversation, live.record, live.send, since.epoch))
    return covered(sorted(published_events, key=lambda event: event.seq), after)


def _running(since: Since, live: Turn | None) -> str | None:
    if live is not None:
        return None if live.waits else live.record.turn_id
    return since.running.turn_id if since.running is not None else None
