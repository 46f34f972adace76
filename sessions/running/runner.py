"""Runs an accepted turn to its end, which is stored before it is published.

Its text is journalled before it is published. If the store is slower than `PATIENCE_S`, the end is published as not saved, and
written when the store is back.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from time import monotonic

import msgspec
import structlog

from engine.messages import Request
from sessions.conversation.conversation import Conversation
from sessions.errors import OwnershipLost, StoreDown, StoreFault
from sessions.events import Cause, Done, Failure, Reason
from sessions.observer import Observer
from sessions.running.generation import Generation
from sessions.running.registration import TurnRegistrar, subject_of
from sessions.running.token_latency import TokenLatency
from sessions.running.turn_end import (
    EndPublisher,
    OwnershipLossHandler,
    following_of,
    reply_of,
    with_calls,
    with_precision,
)
from sessions.store.history.journal import PATIENCE_S, TurnJournal
from sessions.store.history.transactions import Ending, Follow
from sessions.store.storage import Storage
from sessions.titles.title_generator import TitleGenerator
from sessions.translation.translator import Translator
from sessions.turn.generator import Generator, Outcome
from sessions.turn.policy import ToolLimits
from sessions.turn.turn import Turn

SAVE_AGAIN_S = 1.0
SAVED_WITHIN_S = 3.0
JOURNAL_RESTARTS = 2
"""Attempts to write an end with a new journal, if a working store refuses it."""

_log = structlog.get_logger("midstream.turn")


class TurnRunner:
    """Runs turns. One `run` per turn; it raises only if it is cancelled."""

    def __init__(
        self,
        storage: Storage,
        *,
        generator: Generator,
        interpreter: Translator,
        observer: Observer,
        tools: ToolLimits,
        titler: TitleGenerator | None = None,
    ) -> None:
        """`titler`: writes titles of new conversations; None: nobody does."""
        self._generator = generator
        self._interpreter = interpreter
        self._journal = storage.journal
        self._history = storage.history
        self._ownership = storage.ownership
        self._compaction = storage.compaction
        self._ledger = storage.ledger
        self._observer = observer
        self._tools = tools
        self._titler = titler
        self._registrar = TurnRegistrar(ownership=self._ownership, index=storage.index, ledger=storage.ledger)
        self._end_publisher = EndPublisher(observer)
        self._ownership_loss = OwnershipLossHandler(
            history=self._history, ownership=self._ownership, end_publisher=self._end_publisher
        )

    def stop_titles(self) -> None:
        """Write no more titles."""
        if self._titler is not None:
            self._titler.stop()

    def ready(self, conversation: Conversation, live: Turn) -> None:
        """Prepare a turn: messages accepted from here on can use its journal."""
        live.journal = TurnJournal(
            self._journal,
            keys=conversation.keys.pair(),
            turn_id=live.turn.ids.turn_id,
            wrote=partial(self._ledger.journalled, subject_of(conversation, live.send)),
        )
        live.milestones.ready.set()

    async def run(self, conversation: Conversation, live: Turn, request: Request) -> bool:
        """Run an accepted, prepared turn until its end is published and saved; return False if it was lost.

        With open calls it has a turn `following`, which the store lists as running.
        """
        journal = live.journal
        if journal is None:
            raise RuntimeError("The turn was not made ready.")
        run = Generation(
            conversation, live, journal, TokenLatency(self._observer, live.turn), self._tools.wait_s
        )
        self._observer.began(run.turn_id, request.model, live.turn.accepted_at or monotonic())
        try:
            await self._end(run, await self._after_playback(live, await self._outcome(run, request)))
            is_generated = live.tool_round.interpretation is None and live.tool_round.generation.given is None
            if self._titler is not None and is_generated:
                self._titler.consider(conversation, live, request)
        except OwnershipLost:
            await self._drop_following(run)
            await self._ownership_loss.give_up(conversation, live)
            return False
        except Exception:  # noqa: BLE001 - a task's boundary: the reaper closes what could not be ended here
            _log.exception("turn not ended", turn_id=run.turn_id)
        finally:
            if live.delivery.playback is not None:
                live.delivery.playback.stop()
            journal.drop()
            conversation.forget()
            conversation.release(live)
        return True

    async def _outcome(self, run: Generation, request: Request) -> Outcome:
        if run.live.failure is not None:
            return Outcome(Reason.ERROR, run.live.failure)
        if (given := run.live.tool_round.generation.given) is not None:
            await run.take(given)
            return Outcome(Reason.TOOLS if given.calls else Reason.STOP)
        if run.live.record.fallback:
            run.publish("fallback", model=request.model)
        if run.live.tool_round.interpretation is not None:
            return await self._interpreter.outcome(run, request)
        return await self._generator.outcome(run, request)

    @staticmethod
    async def _after_playback(live: Turn, outcome: Outcome) -> Outcome:
        """Wait until a spoken reply was played, or where it was cut, until it is known what was heard."""
        if (playback := live.delivery.playback) is None:
            return outcome
        if not live.turn.is_over:
            await playback.over()
        if live.turn.cut is not None and not live.turn.cut.is_rollback:
            await playback.settled()
            live.turn.shorten(playback.heard)
        return outcome

    async def _end(self, run: Generation, outcome: Outcome) -> None:
        live, conversation = run.live, run.conversation
        async with conversation.locks.ordering:
            seq = conversation.next_seq()
            end = live.turn.end(outcome.reason, seq=seq, now=monotonic(), error=outcome.error)
            may_call = live.tool_round.round < self._tools.max_rounds and not self._ledger.memory.is_full
            end = with_calls(live, end, may_call=may_call)
            done = live.delivery.end = live.record.signed(with_precision(live, end))
            ending = _ending(live, done, outcome.written, self._follow(run, done))
            try:
                saved = await self._save_in_time(run, ending)
            except StoreFault as fault:
                self._end_publisher.publish(conversation, live, _given_up(done, fault))
                await self._give_up(run)
                return
            published = done if saved else msgspec.structs.replace(done, saved=False)
            self._end_publisher.publish(conversation, live, published)
        if not saved:
            await self._save_late(run, ending)

    @staticmethod
    def _follow(run: Generation, done: Done) -> Follow | None:
        """Return the turn that follows one with open calls; it has its place here at once."""
        if done.reason is not Reason.TOOLS:
            return None
        following = following_of(run.live)
        waiting = Turn.waiting(following, run.live.tool_round.calls, run.live.sender)
        run.conversation.follow(run.live, waiting)
        return Follow(following.turn_id, following.reply_id, following.encoded())

    async def _give_up(self, run: Generation) -> None:
        """Handle an end that can't be stored."""
        await self._drop_following(run)
        await self._ownership.discard(run.turn_id)

    async def _drop_following(self, run: Generation) -> None:
        """Drop the wait for calls of a turn that was lost, or whose end can't be stored."""
        tool_round = run.live.tool_round
        if (following := tool_round.following) is not None:
            tool_round.following = None
            run.conversation.release(following)
            with suppress(StoreDown):  # the reaper finds its row, which then has no effect
                await self._ownership.discard(following.record.turn_id)

    async def _save_in_time(self, run: Generation, ending: Ending) -> bool:
        """Return whether the end is stored. Raises StoreFault if it never will be."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._save(run, ending)
        except StoreFault:
            raise
        except (StoreDown, TimeoutError) as trouble:
            _log.warning(
                "turn end not saved yet",
                turn_id=run.turn_id,
                reason=type(trouble.__cause__ or trouble).__name__,
            )
            return False
        return True

    async def _save_late(self, run: Generation, ending: Ending) -> None:
        while True:
            await asyncio.sleep(SAVE_AGAIN_S)
            try:
                await self._save(run, ending)
            except StoreFault:  # logged there: the end can't be stored
                await self._give_up(run)
                return
            except StoreDown:
                continue
            return

    async def _save(self, run: Generation, ending: Ending) -> None:
        """Raise StoreDown, OwnershipLost, or StoreFault once a new journal did not help."""
        keys = run.conversation.keys
        try:
            if ending.follow is not None:
                await self._registrar.register(run.conversation, ending.follow.turn_id)
            await run.journal.write_rest()
            # listed early, to save a round trip: it is read only after the window anyway
            finished, _ = await asyncio.gather(
                self._history.finish(keys, ending, group=run.live.send.group),
                self._schedule(run),
                return_exceptions=True,
            )
            if finished is not None:
                raise finished
        except StoreFault as fault:
            await self._restart_journal(run, ending, fault)
        await self._ownership.discard(run.turn_id)

    async def _schedule(self, run: Generation) -> None:
        """List the conversation for compaction. A failure here does not make the end unsaved."""
        try:
            await self._compaction.schedule(run.conversation.keys)
        except StoreDown as trouble:  # its next turn lists it again; until then its journal takes space
            reason = type(trouble.__cause__ or trouble).__name__
            _log.warning("compaction not scheduled", turn_id=run.turn_id, reason=reason)

    async def _restart_journal(self, run: Generation, ending: Ending, fault: StoreFault) -> None:
        run.journal.drop()
        for _ in range(JOURNAL_RESTARTS):
            try:
                await self._history.finish(
                    run.conversation.keys, ending, repairs=True, group=run.live.send.group
                )
            except StoreFault as still:
                fault = still
            else:
                _log.warning("journal restarted", turn_id=run.turn_id, incident=fault.incident)
                return
        raise fault


def _given_up(done: Done, fault: StoreFault) -> Done:
    """Return the end of a turn that can't be stored; a cancel stays a cancel."""
    if done.cancel is None:
        done = msgspec.structs.replace(done, reason=Reason.ERROR)
    error = Failure(code=fault.code, message=str(fault))
    return msgspec.structs.replace(done, saved=False, error=error, open=())


async def ended(live: Turn) -> None:
    """Wait until the turn has ended and is stored. Raises StoreDown if its end can't be saved for some time."""
    await live.milestones.ended.wait()
    try:
        async with asyncio.timeout(SAVED_WITHIN_S):
            await live.milestones.released.wait()
    except TimeoutError:
        raise StoreDown("The end of the previous reply is not saved: the store does not answer.") from None


def cancel(conversation: Conversation, live: Turn, cause: Cause, *, seen_off: int | None = None) -> bool:
    """Decide a turn's end and ask the engine to stop; False if the end was decided before."""
    if not conversation.cancel(live, cause, seen_off=seen_off, now=monotonic()):
        return False
    live.engine.stop()
    return True


def _ending(live: Turn, done: Done, written: str, follow: Follow | None) -> Ending:
    turn = msgspec.structs.replace(
        live.record, done=done, text_seq=live.turn.text_seq, reasoning_seq=live.turn.reasoning_seq
    )
    if (interpretation := live.tool_round.interpretation) is not None:
        turn = msgspec.structs.replace(turn, interprets=interpretation.state(chars=done.chars))
    is_whole = live.turn.cut is None and not live.tool_round.has_more
    return Ending(
        reply=reply_of(live, done, written if is_whole else ""),
        turn=turn,
        follow=follow,
        stays=live.record.leaves_reply_unchanged(done, live.tool_round.calls.records),
    )
