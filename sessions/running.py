"""Runs an accepted turn to its one end: engine stream → turn → journal → attached connections.

Deltas are in the journal before they are sent. When the store is slower than `PATIENCE_S` the turn goes on from
memory, its seqs reserved, and what is missing is written with its end.
"""

from __future__ import annotations

import asyncio
import secrets
from time import monotonic

import msgspec
import structlog

from engine.door import Engine
from engine.errors import EngineLost, EngineUnavailable
from engine.messages import Chunk, Finished, FinishReason, Request, Started
from sessions.conversation import Conversation, LiveTurn
from sessions.errors import OwnershipLost, StoreDown
from sessions.events import Cause, Done, Failure, Reason, Status, encode
from sessions.history import Ending, History, now_ms
from sessions.journal import Entry, Journal
from sessions.observer import Observer
from sessions.ownership import Ownership
from sessions.records import MessageRecord, status_of
from sessions.turn import EngineCount

PATIENCE_S = 0.25
CONFIRM_S = 2.0
SAVE_AGAIN_S = 1.0

_log = structlog.get_logger("midstream.turn")


class Outcome(msgspec.Struct, frozen=True):
    """How the engine's part of a turn ended."""

    reason: Reason
    error: Failure | None = None


_REASONS = {
    FinishReason.STOP: Reason.STOP,
    FinishReason.LENGTH: Reason.LENGTH,
    FinishReason.CANCELLED: Reason.CANCELLED,
    FinishReason.TIMEOUT: Reason.TIMEOUT,
    FinishReason.ERROR: Reason.ERROR,
}


class Runner:
    """Runs turns. One `run` per turn; it never raises but when it is cancelled itself."""

    def __init__(
        self, *, engine: Engine, journal: Journal, history: History, ownership: Ownership, observer: Observer
    ) -> None:
        self._engine = engine
        self._journal = journal
        self._history = history
        self._ownership = ownership
        self._observer = observer

    async def run(self, conversation: Conversation, live: LiveTurn, request: Request) -> None:
        """Runs an accepted turn until its end is published and saved."""
        try:
            outcome = await self._generate(conversation, live, request)
        except (EngineLost, EngineUnavailable) as loss:
            outcome = Outcome(Reason.INTERRUPTED, Failure(code="engine_unavailable", message=str(loss)))
        except OwnershipLost:
            await self._give_up(conversation, live)
            return
        except Exception:  # noqa: BLE001 - a task's boundary: it ends this turn alone
            incident = secrets.token_hex(4)
            _log.exception("turn failed", turn_id=request.request_id, incident=incident)
            outcome = Outcome(
                Reason.ERROR, Failure(code="internal", message=f"An internal error, number {incident}.")
            )
        await self._end(conversation, live, outcome)

    async def _generate(self, conversation: Conversation, live: LiveTurn, request: Request) -> Outcome:
        try:
            return await self._attempt(conversation, live, request)
        except EngineLost:
            if live.turn.off or live.turn.is_over:
                raise
        conversation.publish(
            Status(conversation_id=conversation.conversation_id, turn_id=request.request_id, state="retrying")
        )
        return await self._attempt(
            conversation, live, msgspec.structs.replace(request, request_id=f"{request.request_id}.1")
        )

    async def _attempt(self, conversation: Conversation, live: LiveTurn, request: Request) -> Outcome:
        if live.turn.is_over:
            live.turn.count = EngineCount(generated_tokens=0, steps_after=0)
            return Outcome(Reason.CANCELLED)
        stream = live.stream = self._engine.generate(request)
        pace = _Pace(self._observer, live.turn.accepted_at or monotonic())
        while True:
            match await self._next(live):
                case Started() as started:
                    live.turn.start(
                        prompt_tokens=started.prompt_tokens,
                        cached_tokens=started.cached_tokens,
                        now=monotonic(),
                    )
                case Chunk() as chunk:
                    await self._delta(conversation, live, chunk, pace)
                case Finished() as finished:
                    return _outcome(live, finished)
                case None:
                    stream.cancel()
                    return Outcome(Reason.CANCELLED)

    async def _next(self, live: LiveTurn) -> Started | Chunk | Finished | None:
        """The stream's next output; None where the engine does not confirm a cancel in time."""
        try:
            async with asyncio.timeout_at(live.confirm_by) as live.waiting:
                return await anext(live.stream)  # type: ignore[arg-type]
        except TimeoutError:
            return None
        finally:
            live.waiting = None

    async def _delta(self, conversation: Conversation, live: LiveTurn, chunk: Chunk, pace: _Pace) -> None:
        if live.turn.is_over:
            return
        delta = live.turn.extend(
            chunk.text, tokens=chunk.tokens, seq=conversation.next_seq(), now=monotonic()
        )
        conversation.unwritten.append(Entry(delta.seq, encode(delta)))
        if not live.unsaved:
            await self._write(conversation, live)
        if not live.turn.is_over:  # a cancel may have come while the store wrote
            conversation.publish_delta(live, delta)
            pace.delta(monotonic())

    async def _write(self, conversation: Conversation, live: LiveTurn) -> None:
        entries = list(conversation.unwritten)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._journal.append(conversation.keys.pair(), live.turn.ids.turn_id, entries)
        except (StoreDown, TimeoutError):
            live.unsaved = True
            conversation.publish(
                Status(
                    conversation_id=conversation.conversation_id,
                    turn_id=live.turn.ids.turn_id,
                    state="unsaved",
                )
            )
        else:
            del conversation.unwritten[: len(entries)]

    async def _end(self, conversation: Conversation, live: LiveTurn, outcome: Outcome) -> None:
        done = live.turn.end(
            outcome.reason, seq=conversation.next_seq(), now=monotonic(), error=outcome.error
        )
        ending = _ending(live, done)
        try:
            saved = await self._save_in_time(conversation, live, ending)
            conversation.publish_done(done if saved else msgspec.structs.replace(done, saved=False))
            self._observer.ended(done)
            _log_end(done)
            if not saved:
                await self._save_late(conversation, live, ending)
        except OwnershipLost:
            await self._give_up(conversation, live)
            return
        conversation.forget()
        conversation.release(live)

    async def _save_in_time(self, conversation: Conversation, live: LiveTurn, ending: Ending) -> bool:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._save(conversation, live, ending)
        except (StoreDown, TimeoutError):
            return False
        return True

    async def _save_late(self, conversation: Conversation, live: LiveTurn, ending: Ending) -> None:
        while True:
            await asyncio.sleep(SAVE_AGAIN_S)
            try:
                await self._save(conversation, live, ending)
            except StoreDown:
                continue
            return

    async def _save(self, conversation: Conversation, live: LiveTurn, ending: Ending) -> None:
        turn_id = live.turn.ids.turn_id
        if conversation.unwritten:
            entries = list(conversation.unwritten)
            await self._journal.append(conversation.keys.pair(), turn_id, entries)
            del conversation.unwritten[: len(entries)]
        await self._history.finish(conversation.keys, ending)
        await self._ownership.discard(turn_id)

    async def _give_up(self, conversation: Conversation, live: LiveTurn) -> None:
        """The turn was closed by another replica, or deleted: its end is told as the store has it."""
        _log.warning("turn lost to another replica", turn_id=live.turn.ids.turn_id)
        if live.stream is not None:
            live.stream.cancel()
        conversation.unwritten.clear()
        try:
            await self._ownership.discard(live.turn.ids.turn_id)
            record = await self._history.turn(conversation.keys, live.turn.ids.turn_id)
            if record is not None and record.done is not None:
                conversation.publish_done(record.done)
        except StoreDown:
            _log.warning("the store does not tell the end of a lost turn", turn_id=live.turn.ids.turn_id)
        conversation.forget()
        conversation.release(live)


class _Pace:
    """Times the deltas of one turn for the observer."""

    def __init__(self, observer: Observer, accepted_at: float) -> None:
        self._accepted_at = accepted_at
        self._last: float | None = None
        self._observer = observer

    def delta(self, now: float) -> None:
        if self._last is None:
            self._observer.first_token(now - self._accepted_at)
        else:
            self._observer.gap(now - self._last)
        self._last = now


def cancel(
    conversation: Conversation,
    live: LiveTurn,
    cause: Cause,
    *,
    seen_off: int | None = None,
    rollback: bool = False,
) -> bool:
    """Decides a turn's end and asks the engine for it; False where the end had been decided before."""
    if not conversation.cancel(live, cause, seen_off=seen_off, rollback=rollback, now=monotonic()):
        return False
    live.expect_confirmation(asyncio.get_running_loop().time() + CONFIRM_S)
    return True


def _outcome(live: LiveTurn, finished: Finished) -> Outcome:
    live.turn.count = EngineCount(
        prompt_tokens=finished.prompt_tokens,
        cached_tokens=finished.cached_tokens,
        generated_tokens=finished.generated_tokens,
        steps_after=finished.steps_after,
    )
    error = None if finished.error is None else Failure(code="internal", message=finished.error)
    return Outcome(_REASONS[finished.reason], error)


def _ending(live: LiveTurn, done: Done) -> Ending:
    reply = MessageRecord(
        message_id=live.record.reply_id,
        parent_id=live.record.message_id,
        turn_id=live.record.turn_id,
        role="assistant",
        content=live.turn.text,
        status=status_of(done.reason),
        created_at=now_ms(),
        usage=done.usage,
    )
    return Ending(reply=reply, turn=msgspec.structs.replace(live.record, done=done))


def _log_end(done: Done) -> None:
    _log.info(
        "turn ended",
        conversation_id=done.conversation_id,
        turn_id=done.turn_id,
        reason=done.reason.value,
        cause=done.cancel.cause.value if done.cancel else None,
        steps_after=done.cancel.steps_after if done.cancel else None,
        generated_tokens=done.usage.generated_tokens,
        wasted_tokens=done.usage.wasted_tokens,
        first_token_ms=done.timing.first_token_ms,
        total_ms=done.timing.total_ms,
        error=done.error.code if done.error else None,
    )
