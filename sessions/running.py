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

from engine.door import Engine, Stream
from engine.errors import EngineBusy, EngineLost, EngineUnavailable
from engine.messages import Chunk, Finished, FinishReason, Prefilling, Queued, Request, Retried, Started
from sessions.conversation import Conversation
from sessions.ending import EndTeller, reply_of
from sessions.errors import Overloaded, OwnershipLost, StoreDown
from sessions.events import Cause, Done, Failure, Reason, encode
from sessions.filtered_reply import Released
from sessions.filters import NO_FILTERS, Filters
from sessions.history import History
from sessions.journal import Entry, Journal
from sessions.live_turn import LiveTurn
from sessions.losing import Losing
from sessions.observer import Observer
from sessions.ownership import Ownership
from sessions.prompting import retry_after_ms
from sessions.run import Pace, Run
from sessions.transactions import Ending
from sessions.turn import EngineCount, Turn
from sessions.turn_journal import PATIENCE_S, TurnJournal

CONFIRM_S = 2.0
SHED_AGAIN_MS = 1000
"""When to come again to an upstream that has too much to do and does not say for how long."""
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
        self,
        *,
        engine: Engine,
        journal: Journal,
        history: History,
        ownership: Ownership,
        observer: Observer,
        filters: Filters = NO_FILTERS,
    ) -> None:
        self._engine = engine
        self._journal = journal
        self._history = history
        self._ownership = ownership
        self._observer = observer
        self._filters = filters
        self._teller = EndTeller(observer)
        self._losing = Losing(history=history, ownership=ownership, teller=self._teller)

    def ready(self, conversation: Conversation, live: LiveTurn) -> None:
        """What is accepted from here on while the turn runs can use its journal."""
        live.journal = TurnJournal(
            self._journal, keys=conversation.keys.pair(), turn_id=live.turn.ids.turn_id
        )
        live.ready.set()

    async def run(self, conversation: Conversation, live: LiveTurn, request: Request) -> bool:
        """Runs an accepted turn, which is `ready`, until its end is published and saved; False where it was lost."""
        journal = live.journal
        if journal is None:
            raise RuntimeError("The turn was not made ready.")
        pace = Pace(self._observer, live.turn.accepted_at or monotonic())
        run = Run(conversation, live, request, journal, pace)
        try:
            await self._end(run, await self._outcome(run))
        except OwnershipLost:
            await self._losing.give_up(conversation, live)
            return False
        except Exception:  # noqa: BLE001 - a task's boundary: the reaper closes what could not be ended here
            _log.exception("turn not ended", turn_id=run.turn_id)
        finally:
            journal.drop()
            conversation.forget()
            conversation.release(live)
        return True

    async def _outcome(self, run: Run) -> Outcome:
        try:
            return await self._generate(run)
        except (EngineLost, EngineUnavailable) as loss:
            return Outcome(Reason.INTERRUPTED, failure_of(loss))
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
        if live.failure is not None:
            return Outcome(Reason.ERROR, live.failure)
        if live.turn.is_over:
            live.turn.count = EngineCount(generated_tokens=0, steps_after=0)
            return Outcome(Reason.CANCELLED)
        stream = live.stream = self._engine.generate(request)
        outcome = await live.in_time(self._follow(run, stream))
        if outcome is None:  # the engine does not confirm in time that it has stopped
            return Outcome(Reason.CANCELLED if live.turn.is_over else Reason.FILTERED)
        return outcome

    async def _follow(self, run: Run, stream: Stream) -> Outcome:
        live, reply, filtered = run.live, self._filters.reply(), False
        while True:
            match await anext(stream):
                case Chunk() as chunk:
                    filtered = filtered or await self._release(run, reply.feed(chunk.text, chunk.tokens))
                case Queued() | Retried() | Prefilling() as report:
                    run.report(report)
                case Started() as started:
                    live.status = None
                    live.turn.start(
                        prompt_tokens=started.prompt_tokens,
                        cached_tokens=started.cached_tokens,
                        now=monotonic(),
                    )
                case Finished() as finished:
                    outcome = outcome_of(live.turn, finished)
                    filtered = filtered or await self._release(run, reply.finish())
                    return Outcome(Reason.FILTERED) if filtered else outcome

    async def _release(self, run: Run, released: Released) -> bool:
        """Tells what a filter lets through; whether it ends the reply there."""
        if released.text:
            await self._delta(run, released)
        if released.filtered:
            run.live.expect_confirmation(asyncio.get_running_loop().time() + CONFIRM_S)
        return released.filtered

    async def _delta(self, run: Run, chunk: Released) -> None:
        turn, conversation = run.live.turn, run.conversation
        async with conversation.ordering:
            if turn.is_over:
                return
            seq = conversation.next_seq()
            delta = turn.extend(chunk.text, tokens=chunk.tokens, seq=seq, now=monotonic())
            saved = await run.journal.write(Entry(delta.seq, encode(delta)))
            if not saved and not run.live.unsaved:
                run.tell("unsaved")
            run.live.unsaved = not saved
            conversation.watched = conversation.watched or run.journal.watched
            if not turn.is_over:  # a cancel may have come while the store wrote
                conversation.publish_delta(run.live, delta)
                run.pace.delta(monotonic())

    async def _end(self, run: Run, outcome: Outcome) -> None:
        live, conversation = run.live, run.conversation
        async with conversation.ordering:
            seq = conversation.next_seq()
            done = live.end = live.turn.end(outcome.reason, seq=seq, now=monotonic(), error=outcome.error)
            ending = _ending(live, done)
            saved = await self._save_in_time(run, ending)
            self._teller.tell(conversation, done if saved else msgspec.structs.replace(done, saved=False))
        if not saved:
            await self._save_late(run, ending)

    async def _save_in_time(self, run: Run, ending: Ending) -> bool:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._save(run, ending)
        except (StoreDown, TimeoutError) as trouble:
            _log.warning(
                "end not saved so far",
                turn_id=run.turn_id,
                reason=type(trouble.__cause__ or trouble).__name__,
            )
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


def outcome_of(turn: Turn, finished: Finished) -> Outcome:
    """How the engine ended a turn, which takes its counts."""
    turn.count = EngineCount(
        prompt_tokens=finished.prompt_tokens,
        cached_tokens=finished.cached_tokens,
        generated_tokens=finished.generated_tokens,
        steps_after=finished.steps_after,
    )
    error = None
    if finished.error is not None:
        error = Failure(code=finished.error_code.value, message=finished.error)
    return Outcome(_REASONS[finished.reason], error)


def failure_of(loss: EngineLost | EngineUnavailable) -> Failure:
    """An upstream that sheds load has not failed: its client shall come again."""
    if not isinstance(loss, EngineBusy):
        return Failure(code="engine_unavailable", message=str(loss), retry_after_ms=retry_after_ms(loss))
    after_ms = retry_after_ms(loss) or SHED_AGAIN_MS
    return Failure(code=Overloaded.code, message=str(loss), retry_after_ms=after_ms)


def _ending(live: LiveTurn, done: Done) -> Ending:
    return Ending(reply=reply_of(live, done), turn=msgspec.structs.replace(live.record, done=done))
