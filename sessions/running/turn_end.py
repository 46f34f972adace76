"""Publishes, stores and logs a turn's end, and gives up turns that this replica lost."""

from __future__ import annotations

from time import monotonic

import msgspec
import structlog

from sessions.conversation.catch_up import gap_before
from sessions.conversation.conversation import Conversation
from sessions.errors import StoreDown
from sessions.events import Done, Failure, Journalled, Reason
from sessions.observer import Observer
from sessions.records import Client, MessageRecord, Owner, TurnRecord, digest, status_of
from sessions.store.history.codec import now_ms
from sessions.store.history.history import History
from sessions.store.ownership import Ownership
from sessions.turn.message_request import GenerationConfig, ProvidedReply
from sessions.turn.tool_calls import cancelled
from sessions.turn.turn import Turn, WaitingTurn
from sessions.turn.turn_state import TurnMessageIds

_log = structlog.get_logger("midstream.turn")


class EndPublisher:
    """Tells attached connections, the observer and the log that a turn ended."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def publish(self, conversation: Conversation, live: Turn, done: Done) -> None:
        """Call it once for each turn."""
        conversation.publish_done(done)
        report_end(self._observer, done, client_of(conversation.owner, live.send.client_id))


def client_of(owner: Owner, client_id: str) -> Client:
    """Return the client that began a turn. `client_id`: empty if it is the owner's own."""
    return Client(owner.principal, client_id or owner.client_id)


def report_end(observer: Observer, done: Done, client: Client) -> None:
    """Tell the observer and the log, once for each turn."""
    observer.ended(done, client)
    _log_end(done)


def reply_of(live: Turn, done: Done, written: str = "") -> MessageRecord:
    """Return the reply as it is stored. `written`: all of it as the model wrote it, if it has more than text and was not cut."""
    base = live.tool_round.base
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
        calls=live.tool_round.calls.records,
    )


def with_calls(live: Turn, end: Done, *, may_call: bool) -> Done:
    """Return the end of a turn with its open calls. If no turn follows, the published ones are cancelled.

    `may_call`: the limit of calling turns is not reached, and the store is not full.
    """
    calls, cut = live.tool_round.calls, live.turn.cut
    if end.reason is Reason.TOOLS and may_call:
        return msgspec.structs.replace(end, open=tuple(call.call_id for call in calls.open))
    if cut is not None:
        calls.keep(-1 if cut.is_rollback else cut.kept.chars)
    for call in calls.open:
        calls.put(cancelled(call))
    reason = Reason.STOP if end.reason is Reason.TOOLS else end.reason
    return msgspec.structs.replace(end, reason=reason)


def with_precision(live: Turn, end: Done) -> Done:
    """Return the end of a turn; if it was cut while it was spoken, with the precision of the cut."""
    if live.delivery.playback is None or end.cancel is None:
        return end
    cancel = msgspec.structs.replace(end.cancel, precision=live.delivery.playback.precision)
    return msgspec.structs.replace(end, cancel=cancel)


def following_of(live: Turn) -> WaitingTurn:
    """Return the turn that waits for the calls of an ended one."""
    names = TurnMessageIds.new()
    return WaitingTurn(
        turn_id=names.turn_id,
        reply_id=names.reply_id,
        follows=live.record.turn_id,
        message_id=live.record.reply_id,
        parent_id=live.record.message_id,
        round=live.tool_round.round + 1,
        model=live.record.model,
        digest=live.record.digest,
        send=msgspec.structs.replace(live.send, content="", ref=None),
        generation=live.tool_round.generation,
        then=None if live.tool_round.generation.given is None else GenerationConfig(given=ProvidedReply()),
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


class OwnershipLossHandler:
    """Gives up lost turns. Their ends are published as the store has them, so that they match the history."""

    def __init__(self, *, history: History, ownership: Ownership, end_publisher: EndPublisher) -> None:
        self._history = history
        self._ownership = ownership
        self._end_publisher = end_publisher

    async def give_up(self, conversation: Conversation, live: Turn) -> None:
        """Stop a turn, and publish its end unless that was done. If the store has none, a reaper will close it."""
        turn_id = live.record.turn_id
        _log.warning("turn lost", turn_id=turn_id)
        if live.engine.stream is not None:
            live.engine.stream.cancel()
        try:
            record = await self._history.turn(conversation.keys, turn_id)
            if record is None or record.done is not None:
                await self._ownership.discard(turn_id)
            published_differs = record is None or _store_is_behind(conversation, live, record)
            if published_differs:
                await self._history.renew(conversation.keys, conversation.published.epoch)
            if live.record.done is None:
                await self._publish(conversation, live, record, anew=published_differs)
        except StoreDown:
            _log.warning("end of lost turn not readable", turn_id=turn_id)

    async def _publish(
        self, conversation: Conversation, live: Turn, record: TurnRecord | None, *, anew: bool
    ) -> None:
        if record is None:
            self._end_publisher.publish(conversation, live, _local_end(conversation, live))
        elif record.done is not None and anew:
            await self._publish_stored(conversation, live, record, record.done)
        elif record.done is not None:
            conversation.take_over(await self._before(conversation, record.done))
            self._end_publisher.publish(conversation, live, record.done)

    async def _publish_stored(
        self, conversation: Conversation, live: Turn, record: TurnRecord, done: Done
    ) -> None:
        """In a new epoch, publish a gap, and the turn's kept text right before its end."""
        since = await self._history.since(conversation.keys, done.seq)
        if since is None:  # it was deleted in the meantime
            self._end_publisher.publish(conversation, live, _local_end(conversation, live))
            return
        reply = await self._history.message(conversation.keys, record.reply_id)
        conversation.enter_epoch(since.epoch)
        conversation.advance_to(done.seq - 1)
        for event in gap_before(done, since, reply):
            conversation.publish(event)
        self._end_publisher.publish(conversation, live, done)

    async def _before(self, conversation: Conversation, done: Done) -> list[Journalled]:
        """Count what the store took of a turn without confirming it."""
        if done.seq <= conversation.published.seq + 1:
            return []
        events = await self._history.journal(conversation.keys, after_seq=conversation.published.seq)
        return [event for event in events if event.seq < done.seq]


def _local_end(conversation: Conversation, live: Turn) -> Done:
    """Return the end of a turn that the store does not know."""
    done = live.delivery.end
    if done is None:
        seq = conversation.next_seq()
        done = live.record.signed(live.turn.end(Reason.INTERRUPTED, seq=seq, now=monotonic(), error=_GONE))
    text = live.published_text  # later text was neither published nor stored
    return msgspec.structs.replace(done, chars=len(text), text_sha256=digest(text), saved=False)


def _store_is_behind(conversation: Conversation, live: Turn, record: TurnRecord) -> bool:
    """Return whether published events are missing in the store, or withdrawn text is in it."""
    done, cut = record.done, live.turn.cut
    if done is None or done.seq <= conversation.published.seq:
        return True
    return cut is not None and cut.chars < min(done.chars, live.delivery.published_off)
