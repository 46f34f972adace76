"""Publishes, stores and logs a turn's end, and gives up turns that this replica lost."""

from __future__ import annotations

from time import monotonic

import msgspec
import structlog

from sessions.conversation.conversation import Conversation
from sessions.conversation.following import gap_before
from sessions.errors import StoreDown
from sessions.events import Done, Failure, Journalled, Reason
from sessions.observer import Observer
from sessions.records import Client, MessageRecord, Owner, TurnRecord, digest, status_of
from sessions.store.history.history import History
from sessions.store.history.keys import now_ms
from sessions.store.ownership import Ownership
from sessions.turn.calls import cancelled
from sessions.turn.live_turn import Following, LiveTurn
from sessions.turn.sends import Generation, Given
from sessions.turn.turn import Names

_log = structlog.get_logger("midstream.turn")


class EndTeller:
    """Tells attached connections, the observer and the log that a turn ended."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def tell(self, conversation: Conversation, live: LiveTurn, done: Done) -> None:
        """Call it once for each turn."""
        conversation.publish_done(done)
        note_end(self._observer, done, sender_of(conversation.owner, live.send.client_id))


def sender_of(owner: Owner, client_id: str) -> Client:
    """Return the client that began a turn; a replica of version 0.1.0 forwards messages without it."""
    return Client(owner.principal, client_id or owner.client_id)


def note_end(observer: Observer, done: Done, client: Client) -> None:
    """Tell the observer and the log, once for each turn."""
    observer.ended(done, client)
    _log_end(done)


def reply_of(live: LiveTurn, done: Done, written: str = "") -> MessageRecord:
    """Return the reply as it is stored. `written`: all of it as the model wrote it, if it has more than text and was not cut."""
    base = live.exchange.base
    return MessageRecord(
        message_id=live.record.reply_id,
        parent_id=live.record.message_id,
        turn_id=live.record.turn_id,
        role="assistant",
        content=live.turn.text,
        status=status_of(done.reason),
        created_at=now_ms() if base is None else base.created_at,
        usage=done.usage,
        model=done.model,
        reasoning=live.turn.reasoning,
        written=written,
        calls=live.exchange.calls.records,
    )


def with_calls(live: LiveTurn, end: Done, *, may_call: bool) -> Done:
    """Return the end of a turn with its open calls. If no turn follows, the published ones are cancelled.

    `may_call`: the limit of calling turns is not reached, and the store is not full.
    """
    calls, cut = live.exchange.calls, live.turn.cut
    if end.reason is Reason.TOOLS and may_call:
        return msgspec.structs.replace(end, open=tuple(call.call_id for call in calls.open))
    if cut is not None:
        calls.keep(-1 if cut.is_rollback else cut.kept.chars)
    for call in calls.open:
        calls.put(cancelled(call))
    reason = Reason.STOP if end.reason is Reason.TOOLS else end.reason
    return msgspec.structs.replace(end, reason=reason)


def with_precision(live: LiveTurn, end: Done) -> Done:
    """Return the end of a turn; if it was cut while it was spoken, with the precision of the cut."""
    if live.delivery.playback is None or end.cancel is None:
        return end
    cancel = msgspec.structs.replace(end.cancel, precision=live.delivery.playback.precision)
    return msgspec.structs.replace(end, cancel=cancel)


def following_of(live: LiveTurn) -> Following:
    """Return the turn that waits for the calls of an ended one."""
    names = Names.new()
    return Following(
        turn_id=names.turn_id,
        reply_id=names.reply_id,
        follows=live.record.turn_id,
        message_id=live.record.reply_id,
        parent_id=live.record.message_id,
        round=live.exchange.round + 1,
        model=live.record.model,
        digest=live.record.digest,
        send=msgspec.structs.replace(live.send, content="", ref=None),
        generation=live.exchange.generation,
        then=None if live.exchange.generation.given is None else Generation(given=Given()),
    )


def _log_end(done: Done) -> None:
    _log.info(
        "turn ended",
        conversation_id=done.conversation_id,
        turn_id=done.turn_id,
        reason=done.reason.value,
        model=done.model,
        requested_model=done.requested_model,
        cause=done.cancel.cause.value if done.cancel else None,
        steps_after=done.cancel.steps_after if done.cancel else None,
        generated_tokens=done.usage.generated_tokens,
        wasted_tokens=done.usage.wasted_tokens,
        first_token_ms=done.timing.first_token_ms,
        total_ms=done.timing.total_ms,
        open_calls=len(done.open),
        error=done.error.code if done.error else None,
    )


_GONE = Failure(code="internal", message="The store no longer has this reply.")


class Losing:
    """Gives up lost turns. Their ends are published as the store has them, so that they match the history."""

    def __init__(self, *, history: History, ownership: Ownership, teller: EndTeller) -> None:
        self._history = history
        self._ownership = ownership
        self._teller = teller

    async def give_up(self, conversation: Conversation, live: LiveTurn) -> None:
        """Stop a turn, and publish its end unless that was done. If the store has none, a reaper will close it."""
        turn_id = live.record.turn_id
        _log.warning("turn lost", turn_id=turn_id)
        if live.engine.stream is not None:
            live.engine.stream.cancel()
        try:
            record = await self._history.turn(conversation.keys, turn_id)
            if record is None or record.done is not None:
                await self._ownership.discard(turn_id)
            was_told_otherwise = record is None or _is_less_than_told(conversation, live, record)
            if was_told_otherwise:
                await self._history.renew(conversation.keys, conversation.published.epoch)
            if live.record.done is None:
                await self._tell(conversation, live, record, anew=was_told_otherwise)
        except StoreDown:
            _log.warning("the store does not give the end of a lost turn", turn_id=turn_id)

    async def _tell(
        self, conversation: Conversation, live: LiveTurn, record: TurnRecord | None, *, anew: bool
    ) -> None:
        if record is None:
            self._teller.tell(conversation, live, _end_of_its_own(conversation, live))
        elif record.done is not None and anew:
            await self._tell_as_kept(conversation, live, record, record.done)
        elif record.done is not None:
            conversation.take_over(await self._before(conversation, record.done))
            self._teller.tell(conversation, live, record.done)

    async def _tell_as_kept(
        self, conversation: Conversation, live: LiveTurn, record: TurnRecord, done: Done
    ) -> None:
        """In a new epoch, publish a gap, and the turn's kept text right before its end."""
        since = await self._history.since(conversation.keys, done.seq)
        if since is None:  # it was deleted in the meantime
            self._teller.tell(conversation, live, _end_of_its_own(conversation, live))
            return
        reply = await self._history.message(conversation.keys, record.reply_id)
        conversation.enter_epoch(since.epoch)
        conversation.stand_at(done.seq - 1)
        for event in gap_before(done, since, reply):
            conversation.publish(event)
        self._teller.tell(conversation, live, done)

    async def _before(self, conversation: Conversation, done: Done) -> list[Journalled]:
        """Count what the store took of a turn without confirming it."""
        if done.seq <= conversation.published.seq + 1:
            return []
        events = await self._history.journal(conversation.keys, after_seq=conversation.published.seq)
        return [event for event in events if event.seq < done.seq]


def _end_of_its_own(conversation: Conversation, live: LiveTurn) -> Done:
    """Return the end of a turn that the store does not know."""
    done = live.delivery.end
    if done is None:
        seq = conversation.next_seq()
        done = live.record.signed(live.turn.end(Reason.INTERRUPTED, seq=seq, now=monotonic(), error=_GONE))
    text = live.published_text  # later text was neither published nor stored
    return msgspec.structs.replace(done, chars=len(text), text_sha256=digest(text), saved=False)


def _is_less_than_told(conversation: Conversation, live: LiveTurn, record: TurnRecord) -> bool:
    """Return whether published events are missing in the store, or withdrawn text is in it."""
    done, cut = record.done, live.turn.cut
    if done is None or done.seq <= conversation.published.seq:
        return True
    return cut is not None and cut.chars < min(done.chars, live.delivery.published_off)
