"""Runs an accepted turn to its one end, which is in the store before it is told.

Where it stands is told, and its text is journalled before it is told. When the store is slower than `PATIENCE_S` the end is
told as not saved, and written when the store is back.
"""

from __future__ import annotations

import asyncio
from time import monotonic

import msgspec
import structlog

from engine.messages import Called, Prefilling, Queued, Request, Retried, Started
from sessions.conversation.conversation import Conversation
from sessions.errors import OwnershipLost, StoreDown, StoreFault
from sessions.events import Cause, Delta, Done, Failure, Reason, Status, StatusState
from sessions.filters.filtered_reply import Released
from sessions.observer import Observer
from sessions.running.ending import EndTeller, Losing, reply_of
from sessions.store.history.coding import encode_turn
from sessions.store.history.transactions import Ending
from sessions.store.storage import Storage
from sessions.turn.engine_wait import EngineWait
from sessions.turn.generating import Generator, Outcome
from sessions.turn.live_turn import LiveTurn
from sessions.turn.pace import Pace
from sessions.turn.turn import Turn
from sessions.turn.turn_journal import PATIENCE_S, TurnJournal

PROGRESS_DIGITS = 3


class Run(msgspec.Struct, frozen=True):
    """A turn under way, with what it needs on its way; the `Listener` of its reply."""

    conversation: Conversation
    live: LiveTurn
    journal: TurnJournal
    pace: Pace

    @property
    def turn_id(self) -> str:
        """The turn's id."""
        return self.live.turn.ids.turn_id

    @property
    def turn(self) -> Turn:
        """The turn itself."""
        return self.live.turn

    @property
    def engine(self) -> EngineWait:
        """Its wait for the engine."""
        return self.live.engine

    def report(self, report: Queued | Retried | Prefilling | Started) -> None:
        """Passes on what the engine says of the wait, unless the turn's end is decided."""
        if isinstance(report, Started):
            self.live.delivery.status = None
        elif self.turn.is_over:
            return
        elif isinstance(report, Queued):
            self.tell("queued", queue_position=report.position)
        elif isinstance(report, Retried):
            self.tell("fallback" if report.elsewhere else "retrying")
        else:
            self.tell("prefill", progress=round(report.progress, PROGRESS_DIGITS))

    def retry(self) -> None:
        """Tells that the engine is asked once more."""
        self.tell("retrying")

    def fall_back(self, model: str) -> None:
        """Tells that another model answers than the one that was asked for; the store learns it with the next text."""
        self.live.choose(model)
        self.tell("fallback", model=model)

    async def hear(self, released: Released) -> None:
        """Journals text and tells it, unless the turn's end is decided meanwhile. Raises OwnershipLost."""
        conversation, turn = self.conversation, self.live.turn
        async with conversation.locks.ordering:
            if turn.is_over:
                return
            seq = conversation.next_seq()
            delta = turn.extend(released.text, tokens=released.tokens, seq=seq, now=monotonic())
            try:
                self._note(saved=await self.journal.write(delta, self._news_of_fallback()))
            except StoreFault:
                self._publish(delta)  # it is kept with the turn's end
                raise
            self._publish(delta)

    async def think(self, released: Released) -> None:
        """No door tells what a model thinks yet."""

    async def call(self, called: Called) -> None:
        """No door offers tools yet."""

    def _news_of_fallback(self) -> bytes:
        """What the store is to know beside the text: should this replica die, it says who wrote that."""
        record, delivery = self.live.record, self.live.delivery
        if record.fallback == delivery.fallback:
            return b""
        delivery.fallback = record.fallback
        return msgspec.json.encode({"set": [f"turn:{record.turn_id}", encode_turn(record).decode()]})

    def _publish(self, delta: Delta) -> None:
        if not self.turn.is_over:  # a cancel may have come while the store wrote
            self.conversation.publish_delta(self.live, delta)
            self.pace.delta(monotonic())

    def _note(self, *, saved: bool) -> None:
        if not saved and not self.live.delivery.unsaved:
            self.tell("unsaved")
        self.live.delivery.unsaved = not saved
        others = self.conversation.others
        others.watched = others.watched or self.journal.watched

    def tell(
        self,
        state: StatusState,
        *,
        queue_position: int | None = None,
        progress: float | None = None,
        model: str | None = None,
    ) -> None:
        """Tells attached connections where the turn stands."""
        status = Status(
            conversation_id=self.conversation.conversation_id,
            turn_id=self.turn_id,
            state=state,
            queue_position=queue_position,
            progress=progress,
            model=model,
        )
        self.conversation.publish_status(self.live, status)


SAVE_AGAIN_S = 1.0
SAVED_WITHIN_S = 3.0
MENDS = 2
"""How often an end that the store refuses though it is well is written with a new journal, before it is given up."""

_log = structlog.get_logger("midstream.turn")


class Runner:
    """Runs turns. One `run` per turn; it never raises but when it is cancelled itself."""

    def __init__(
        self,
        storage: Storage,
        *,
        generator: Generator,
        observer: Observer,
    ) -> None:
        self._generator = generator
        self._journal = storage.journal
        self._history = storage.history
        self._ownership = storage.ownership
        self._compaction = storage.compaction
        self._observer = observer
        self._teller = EndTeller(observer)
        self._losing = Losing(history=self._history, ownership=self._ownership, teller=self._teller)

    def ready(self, conversation: Conversation, live: LiveTurn) -> None:
        """What is accepted from here on while the turn runs can use its journal."""
        live.journal = TurnJournal(
            self._journal, keys=conversation.keys.pair(), turn_id=live.turn.ids.turn_id
        )
        live.stages.ready.set()

    async def run(self, conversation: Conversation, live: LiveTurn, request: Request) -> bool:
        """Runs an accepted turn, which is `ready`, until its end is published and saved; False where it was lost."""
        journal = live.journal
        if journal is None:
            raise RuntimeError("The turn was not made ready.")
        run = Run(conversation, live, journal, Pace(self._observer, live.turn))
        try:
            await self._end(run, await self._outcome(run, request))
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

    async def _outcome(self, run: Run, request: Request) -> Outcome:
        if run.live.failure is not None:
            return Outcome(Reason.ERROR, run.live.failure)
        if run.live.record.fallback:
            run.tell("fallback", model=request.model)
        return await self._generator.outcome(run, request)

    async def _end(self, run: Run, outcome: Outcome) -> None:
        live, conversation = run.live, run.conversation
        async with conversation.locks.ordering:
            seq = conversation.next_seq()
            end = live.turn.end(outcome.reason, seq=seq, now=monotonic(), error=outcome.error)
            done = live.end = live.record.signed(end)
            ending = _ending(live, done)
            try:
                saved = await self._save_in_time(run, ending)
            except StoreFault as fault:
                self._teller.tell(conversation, live, _given_up(done, fault))
                await self._ownership.discard(run.turn_id)
                return
            told = done if saved else msgspec.structs.replace(done, saved=False)
            self._teller.tell(conversation, live, told)
        if not saved:
            await self._save_late(run, ending)

    async def _save_in_time(self, run: Run, ending: Ending) -> bool:
        """Whether the end is in the store. Raises StoreFault where it never will be."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._save(run, ending)
        except StoreFault:
            raise
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
            except StoreFault:  # told there: the end can't be kept
                await self._ownership.discard(run.turn_id)
                return
            except StoreDown:
                continue
            return

    async def _save(self, run: Run, ending: Ending) -> None:
        """Raises StoreDown, OwnershipLost; StoreFault once a new journal did not help."""
        keys = run.conversation.keys
        try:
            await run.journal.write_rest()
            # At once, for the time of one: what is listed too early is looked at when the window is over all the same.
            finished, _ = await asyncio.gather(
                self._history.finish(keys, ending), self._schedule(run), return_exceptions=True
            )
            if finished is not None:
                raise finished
        except StoreFault as fault:
            await self._mend(run, ending, fault)
        await self._ownership.discard(run.turn_id)

    async def _schedule(self, run: Run) -> None:
        """Lists the conversation for compaction. What fails here is no fault of the journal's, nor is the end unsaved by it."""
        try:
            await self._compaction.schedule(run.conversation.keys)
        except StoreDown as trouble:  # its next turn lists it again; until then its journal takes room
            reason = type(trouble.__cause__ or trouble).__name__
            _log.warning("not listed for compaction", turn_id=run.turn_id, reason=reason)

    async def _mend(self, run: Run, ending: Ending, fault: StoreFault) -> None:
        run.journal.drop()
        for _ in range(MENDS):
            try:
                await self._history.finish(run.conversation.keys, ending, mends=True)
            except StoreFault as still:
                fault = still
            else:
                _log.warning("journal begun anew", turn_id=run.turn_id, incident=fault.incident)
                return
        raise fault


def _given_up(done: Done, fault: StoreFault) -> Done:
    """The end of a turn that the store can't keep; a cancel stays one."""
    if done.cancel is None:
        done = msgspec.structs.replace(done, reason=Reason.ERROR)
    return msgspec.structs.replace(done, saved=False, error=Failure(code=fault.code, message=str(fault)))


async def ended(live: LiveTurn) -> None:
    """Returns once the turn is over and in the store. Raises StoreDown where its end can't be saved for some time."""
    await live.stages.ended.wait()
    try:
        async with asyncio.timeout(SAVED_WITHIN_S):
            await live.stages.released.wait()
    except TimeoutError:
        raise StoreDown("The end of the reply before is not saved: the store does not answer.") from None


def cancel(conversation: Conversation, live: LiveTurn, cause: Cause, *, seen_off: int | None = None) -> bool:
    """Decides a turn's end and asks the engine for it; False where the end had been decided before."""
    if not conversation.cancel(live, cause, seen_off=seen_off, now=monotonic()):
        return False
    live.engine.stop()
    return True


def _ending(live: LiveTurn, done: Done) -> Ending:
    turn = msgspec.structs.replace(live.record, done=done, text_seq=live.turn.text_seq)
    return Ending(reply=reply_of(live, done), turn=turn)
