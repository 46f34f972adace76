"""Runs an accepted turn to its one end: engine stream → turn → journal → attached connections.

Deltas are in the journal before they are sent. When the store is slower than `PATIENCE_S` the turn goes on from
memory, its seqs reserved, and what is missing is written when the store is back.
"""

from __future__ import annotations

import asyncio
import secrets
from time import monotonic

import msgspec
import structlog

from engine.door import Engine
from engine.errors import EngineLost, EngineUnavailable
from engine.messages import Chunk, Finished, FinishReason, Prefilling, Queued, Request, Started
from sessions.conversation import Conversation, LiveTurn
from sessions.errors import OwnershipLost, StoreDown
from sessions.events import Cause, Done, Failure, Reason, encode
from sessions.history import Ending, History, now_ms
from sessions.journal import Entry, Journal
from sessions.observer import Observer
from sessions.ownership import Ownership
from sessions.records import MessageRecord, status_of
from sessions.run import Pace, Run
from sessions.turn import EngineCount
from sessions.turn_journal import PATIENCE_S, TurnJournal

CONFIRM_S = 2.0
SAVE_AGAIN_S = 1.0
SAVED_WITHIN_S = 3.0

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
        journal = TurnJournal(self._journal, keys=conversation.keys.pair(), turn_id=live.turn.ids.turn_id)
        pace = Pace(self._observer, live.turn.accepted_at or monotonic())
        run = Run(conversation, live, request, journal, pace)
        try:
            await self._end(run, await self._outcome(run))
        except OwnershipLost:
            await self._give_up(run)
        except Exception:  # noqa: BLE001 - a task's boundary: the reaper closes what could not be ended here
            _log.exception("turn not ended", turn_id=run.turn_id)
        finally:
            journal.drop()
            conversation.forget()
            conversation.release(live)

    async def _outcome(self, run: Run) -> Outcome:
        try:
            return await self._generate(run)
        except (EngineLost, EngineUnavailable) as loss:
            return Outcome(Reason.INTERRUPTED, Failure(code="engine_unavailable", message=str(loss)))
        except OwnershipLost:
            raise
        except Exception:  # noqa: BLE001 - a task's boundary: it ends this turn alone
            if run.live.stream is not None:
                run.live.stream.cancel()
            incident = secrets.token_hex(4)
            _log.exception("turn failed", turn_id=run.turn_id, incident=incident)
            failure = Failure(code="internal", message=f"An internal error, number {incident}.")
            return Outcome(Reason.ERROR, failure)

    async def _generate(self, run: Run) -> Outcome:
        try:
            return await self._attempt(run, run.request)
        except EngineLost:
            if run.live.turn.off or run.live.turn.is_over:
                raise
        run.tell("retrying")
        again = f"{run.request.request_id}.1"
        return await self._attempt(run, msgspec.structs.replace(run.request, request_id=again))

    async def _attempt(self, run: Run, request: Request) -> Outcome:
        live = run.live
        if live.turn.is_over:
            live.turn.count = EngineCount(generated_tokens=0, steps_after=0)
            return Outcome(Reason.CANCELLED)
        stream = live.stream = self._engine.generate(request)
        while True:
            match await live.in_time(anext(stream)):
                case Queued() | Prefilling() as report:
                    run.report(report)
                case Started() as started:
                    live.status = None
                    live.turn.start(
                        prompt_tokens=started.prompt_tokens,
                        cached_tokens=started.cached_tokens,
                        now=monotonic(),
                    )
                case Chunk() as chunk:
                    await self._delta(run, chunk)
                case Finished() as finished:
                    return _outcome(live, finished)
                case None:
                    return Outcome(Reason.CANCELLED)

    async def _delta(self, run: Run, chunk: Chunk) -> None:
        turn, conversation = run.live.turn, run.conversation
        if turn.is_over:
            return
        delta = turn.extend(chunk.text, tokens=chunk.tokens, seq=conversation.next_seq(), now=monotonic())
        saved = await run.journal.write(Entry(delta.seq, encode(delta)))
        if not saved and not run.live.unsaved:
            run.tell("unsaved")
        run.live.unsaved = not saved
        if not turn.is_over:  # a cancel may have come while the store wrote
            conversation.publish_delta(run.live, delta)
            run.pace.delta(monotonic())

    async def _end(self, run: Run, outcome: Outcome) -> None:
        live, seq = run.live, run.conversation.next_seq()
        done = live.turn.end(outcome.reason, seq=seq, now=monotonic(), error=outcome.error)
        ending = _ending(live, done)
        saved = await self._save_in_time(run, ending)
        self._tell_end(run, done if saved else msgspec.structs.replace(done, saved=False))
        if not saved:
            await self._save_late(run, ending)

    def _tell_end(self, run: Run, done: Done) -> None:
        run.conversation.publish_done(done)
        self._observer.ended(done)
        _log_end(done)

    async def _save_in_time(self, run: Run, ending: Ending) -> bool:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._save(run, ending)
        except (StoreDown, TimeoutError) as trouble:
            _log.warning("end not saved so far", turn_id=run.turn_id, reason=repr(trouble.__cause__))
            return False
        return True

    async def _save_late(self, run: Run, ending: Ending) -> None:
        while True:
            await asyncio.sleep(SAVE_AGAIN_S)
            try:
                await self._save(run, ending)
            except StoreDown:
                continue
            return

    async def _save(self, run: Run, ending: Ending) -> None:
        await run.journal.write_rest()
        await self._history.finish(run.conversation.keys, ending)
        await self._ownership.discard(run.turn_id)

    async def _give_up(self, run: Run) -> None:
        """Another replica closed the turn, or deleted its conversation: its end is told as the store has it."""
        _log.warning("turn lost to another replica", turn_id=run.turn_id)
        if run.live.stream is not None:
            run.live.stream.cancel()
        try:
            await self._ownership.discard(run.turn_id)
            record = await self._history.turn(run.conversation.keys, run.turn_id)
        except StoreDown:
            _log.warning("the store does not tell the end of a lost turn", turn_id=run.turn_id)
            return
        if run.live.record.done is None and record is not None and record.done is not None:
            self._tell_end(run, record.done)


async def ended(live: LiveTurn) -> None:
    """Returns once the turn is over and in the store. Raises StoreDown where its end can't be saved for some time."""
    await live.ended.wait()
    try:
        async with asyncio.timeout(SAVED_WITHIN_S):
            await live.released.wait()
    except TimeoutError:
        raise StoreDown("The end of the reply before is not saved: the store does not answer.") from None


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
