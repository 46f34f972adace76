"""The step loop's heart: requests in, outputs out, one engine step at a time.

Owns each request from its submission to its one end. Knows no processes, no sockets and no tokenizer.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from engine.cache.pages import PagePool
from engine.execution.executor import Executor, Failure, Held, Launched, Outcome, OutOfMemory
from engine.messages import EngineStatistics, ErrorCode, Finished, FinishReason, Output
from engine.model.loaded_model import LoadedModel
from engine.prompts.jobs import Looked
from engine.sampling.sampler import Chooser
from engine.scheduling.active_request import ActiveRequest
from engine.scheduling.admission import refusal, room_for, scheduled
from engine.scheduling.counters import Counters
from engine.scheduling.deadlines import Deadlines
from engine.scheduling.ending import NO_TEXT, End, last_outputs
from engine.scheduling.looking import Asks, Blind, Looking
from engine.scheduling.pace import PrefillPace
from engine.scheduling.plan import Plan, Segment
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.sight import Sight
from engine.text.prepared import DuplicateRequest, PreparedRequest
from engine.text.reply_logprobs import Scored

STEP_TARGET_S = 0.06
"""How long a step with prefill may take, about: what a cancel or another reply waits. Alone it may take longer (`pace.ALONE`)."""

WAITING_TOLD_EVERY_S = 0.25
"""How often those that wait are told of a new place in the queue, at most."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Flight:
    """A step that was launched: what it runs, for whom, since when."""

    plan: Plan
    active: list[ActiveRequest]
    launched: Launched
    began: float


class Core:
    """Serves up to `max_batch` requests at once with one model; more wait in a queue, first come, first served.

    Not thread-safe: `submit`, `cancel` and `step` are called from one thread, `cancel` between steps.
    """

    def __init__(
        self,
        model: LoadedModel,
        *,
        max_batch: int | None = None,
        step_target_s: float = STEP_TARGET_S,
        clock: Callable[[], float] = time.monotonic,
        ask: Asks | None = None,
    ) -> None:
        """Take a model. `max_batch`: the one it was loaded for, where none is named. `clock` gives seconds.

        `ask`: who is asked for the points of images and tells them by `show`; None only where the model takes none.
        """
        slots = max_batch or model.max_batch
        self._model = model
        self._clock = clock
        self._scheduler = Scheduler(slots, PagePool(model.kv.pages, model.kv.page_size))
        self._executor = Executor(model, slots=slots)
        self._pace = PrefillPace(step_target_s)
        self._flights: deque[_Flight] = deque()
        self._pending_text: list[tuple[ActiveRequest, int]] = []
        self._active: dict[str, ActiveRequest] = {}
        self._leaving: list[End | Finished] = []
        self._deadlines: Deadlines[ActiveRequest] = Deadlines()
        self._counters = Counters()
        self._looking = Looking(model.sees, ask, clock)

    @property
    def busy(self) -> bool:
        """Whether `step` has something to do."""
        return bool(self._leaving or (self._active and not self._looking.rests))

    @property
    def made_at(self) -> float:
        """When the tokens were there whose text the last step gave, by this core's clock."""
        return self._counters.made_at

    def statistics(self) -> EngineStatistics:
        """Return facts for metrics."""
        return self._counters.statistics(self._scheduler, self._model.kv.bytes_per_token)

    def submit(self, request: PreparedRequest) -> None:
        """Queue a request. One that can't be served gets its end, an error, from the next step.

        Raises DuplicateRequest where a request of that id is still served.
        """
        if request.request_id in self._active:
            raise DuplicateRequest(f"a request with the id {request.request_id!r} is still being served")
        own, room = scheduled(request, self._model), room_for(request, self._model)
        active = ActiveRequest(request, own, self._chooser(request), room)
        if (refused := refusal(active, self._model)) is not None:
            self._leaving.append(refused)
            return
        if request.shown and self._model.sees is not None:
            active.sight = Sight(request.shown, self._model.sees)
        self._looking.rests = False
        self._active[request.request_id] = active
        self._scheduler.add(active.request)
        if request.sampling.max_time_s is not None:
            self._deadlines.add(active.request.arrival, self._clock() + request.sampling.max_time_s, active)

    def _chooser(self, request: PreparedRequest) -> Chooser:
        guide = self._executor.guide(request.grammar, request.sampling) if request.grammar else None
        return Chooser.of(request.sampling, guide)

    def cancel(self, request_id: str) -> None:
        """End a request, wherever it is: its end comes from the next step. Unknown and ended ids are ignored."""
        active = self._active.get(request_id)
        if active is None or active.steps_at_cancel is not None:
            return
        active.steps_at_cancel = active.request.steps
        self._leaving.append(End(active, FinishReason.CANCELLED))

    def show(self, looked: Looked) -> None:
        """Take the points of an image that was asked for, or why there are none. It may come when nobody waits for it."""
        self._looking.rests = False
        self._end_blind(self._looking.show(looked))

    def _end_blind(self, blind: Blind | None) -> None:
        if blind is not None:
            self._leaving.append(End(blind.active, FinishReason.ERROR, blind.why, ErrorCode.BAD_PARAMS))

    def step(self) -> list[Output]:
        """Run one engine step and return its outputs, in order; nothing when idle.

        Where the device computes meanwhile they are those of the step before: its text is made, and leaves, while the
        device is busy with this one. Where tokens are fed on the device, too, this one is launched before they are
        fetched, so that the device never waits. Ends that need no step (cancels, timeouts, refusals) are returned at once, before
        anything else runs. Raises RuntimeError where memory turns out to be held by nobody.
        """
        ends = self._ends_without_a_step()
        if not self._active:
            self._scheduler.pool.check_idle()
        if ends:
            self._looking.rests = False
            return ends
        if self._runs_ahead():
            outputs = [*self._launch(), *self._collect(), *self._emit_texts()]
        elif self._executor.computes_meanwhile:
            outputs = [*self._collect(), *self._launch(), *self._emit_texts()]
        else:
            outputs = [*self._launch(), *self._collect()]
        if not self._active:
            self._scheduler.pool.check_idle()
        return outputs

    def _runs_ahead(self) -> bool:
        """Whether a step is under way that the next one need not wait for."""
        return (
            self._executor.feeds
            and len(self._flights) == 1
            and self._scheduler.may_run_ahead
            and not any(active.waits for active in self._active.values())
        )

    def _ends_without_a_step(self) -> list[Output]:
        leaving, self._leaving = self._leaving, []
        leaving += (End(active, FinishReason.TIMEOUT) for active in self._deadlines.due(self._clock()))
        return [output for end in leaving for output in (self._end(end) if isinstance(end, End) else [end])]

    def _admit(self, plan: Plan) -> list[Output]:
        """Begin those that were admitted. Raises OutOfMemory."""
        outputs: list[Output] = []
        for request in plan.admitted:
            active = self._active[request.request_id]
            self._looking.begin(active)
            self._executor.join(request.slot or 0, active.chooser, active.tokens, made=request.generated)
            if not request.generated:
                outputs.append(active.started())
        return outputs

    def _launch(self) -> list[Output]:
        """Plan a step for those that are served, and let the device begin."""
        if not self._active:
            return []
        shares = self._look()
        began = self._clock()
        plan = self._scheduler.schedule(self._pace.budget_beside(self._scheduler.decoding) // shares)
        if not (plan.segments or plan.admitted):  # all that run have their last token on its way, or look
            self._looking.rests = self._looking.waits and not self._flights
            return self._emit_queued(began)
        self._counters.count(plan)
        active = [self._active[segment.request.request_id] for segment in plan.segments]
        try:
            outputs = [*self._admit(plan), *self._emit_queued(began)]
        except OutOfMemory:
            return self._admit_later(plan)
        if not plan.segments:
            return outputs
        try:
            launched = self._compute(plan, active)
        except OutOfMemory:
            return outputs + self._make_memory(active)
        self._flights.append(_Flight(plan, active, launched, began))
        if self._executor.feeds:
            self._scheduler.complete(plan, launched.accepted, coming=True)
        return outputs

    def _look(self) -> int:
        """Look at images for a part of a step. Returns in how many parts what is left to prompts is to be shared."""
        if not self._looking.computes:
            return 1
        self._executor.take_all_threads()
        share = 2 if self._scheduler.decoding else 1
        self._end_blind(self._looking.work(self._pace.target_s / share))
        return share

    def _compute(self, plan: Plan, active: list[ActiveRequest]) -> Launched:
        """Copy the pages that a step writes and others hold, then compute it. Raises OutOfMemory."""
        copies = self._scheduler.pool.copies
        if copies:
            self._executor.copy(copies)
            copies.clear()
        return self._executor.launch(
            [one.span(segment) for one, segment in zip(active, plan.segments, strict=True)]
        )

    def _collect(self) -> list[Output]:
        """Take what a launched step gave. Whoever left meanwhile gets nothing of it."""
        if not self._flights:
            return []
        flight = self._flights.popleft()
        try:
            outcomes = self._executor.fetch(flight.launched)
        except OutOfMemory:
            self._give_up(flight)
            return self._make_memory(flight.active)
        self._counters.made_at = self._clock()
        if not self._executor.feeds:
            self._scheduler.complete(flight.plan, flight.launched.accepted)
        outputs: list[Output] = []
        for one, segment, outcome in zip(flight.active, flight.plan.segments, outcomes, strict=True):
            if self._serves(one):
                outputs += self._take(one, segment, outcome)
        self._executor.look_ahead()
        if not self._executor.computes_meanwhile:
            outputs += self._emit_texts()
        self._observe(flight)
        return outputs

    def _give_up(self, flight: _Flight) -> None:
        """Take back a step whose tokens can't be had, and the one behind it, which counted on them."""
        if self._executor.feeds:
            for one in reversed((flight, *self._flights)):
                self._scheduler.undo(one.plan)
            self._flights.clear()

    def _serves(self, active: ActiveRequest) -> bool:
        """Whether a request has not ended, even if another one has its id by now."""
        return self._active.get(active.request.request_id) is active

    def _make_memory(self, active: list[ActiveRequest]) -> list[Output]:
        """After a step for which the device had too little: preempt a reply, else end those of the step."""
        outputs = self._emit_texts()
        if self._scheduler.make_memory():
            log.warning("a step ran out of memory; the newest reply is computed again later")
        else:
            why = "The device has too little memory for this request."
            for one in filter(self._serves, active):
                outputs += self._end(End(one, FinishReason.ERROR, why))
        return outputs

    def _emit_queued(self, now: float) -> list[Output]:
        if not self._scheduler.queued or now - self._counters.told_waiting_at < WAITING_TOLD_EVERY_S:
            return []
        self._counters.told_waiting_at = now
        waiting = enumerate(self._scheduler.waiting(), start=1)
        return [output for place, one in waiting for output in self._active[one.request_id].queued(place)]

    def _admit_later(self, plan: Plan) -> list[Output]:
        """Undo a plan whose newcomers found no memory to begin in: nothing of it was computed."""
        newcomers = [self._active[request.request_id] for request in plan.admitted]
        for one in newcomers:
            one.request.started = bool(one.request.generated)
            self._scheduler.preempt(one.request)
        return self._make_memory(newcomers)

    def _take(self, active: ActiveRequest, segment: Segment, outcome: Outcome) -> list[Output]:
        match outcome:
            case None:
                return active.prefilling()
            case Held.LATE:
                self._scheduler.repeat(active.request)
                return []
            case Held.COMPLETE:
                return self._end(End(active, FinishReason.STOP))
            case Failure(error, code, sound):
                return self._end(End(active, FinishReason.ERROR, error, code, keep=sound))
            case int() | Scored():
                told = self._tell_accepted(active, segment)
                return [*told, *self._take_token(active, segment, outcome)] if self._serves(active) else told
            case _:
                assert_never(outcome)

    def _tell_accepted(self, active: ActiveRequest, segment: Segment) -> list[Output]:
        """Tell what was right of a draft that was computed with a segment."""
        accepted = active.accepted if segment.drafted else ()
        serving = (token for token in accepted if self._serves(active))
        return [output for token in serving for output in self._emit(active, token, last=False)]

    def _take_token(self, active: ActiveRequest, segment: Segment, outcome: int | Scored) -> list[Output]:
        request, guide = active.request, active.chooser.guide
        if guide is not None and active.is_long_enough:
            # It was when its last token came. A grammar that was complete by then would have ended it as such.
            return self._end(End(active, FinishReason.LENGTH))
        token = outcome.token if isinstance(outcome, Scored) else outcome
        is_first = request.generated == request.accepted
        self._scheduler.take(segment, token)
        if is_first:
            self._scheduler.share(request)
        self._counters.generated_tokens += 1
        if self._ends_with(active, token):
            return self._end(End(active, FinishReason.STOP))
        if isinstance(outcome, Scored):
            active.score(outcome)
        if guide is not None:
            self._executor.advance(guide, token)
        elif active.is_long_enough:
            if self._model.translates is not None and self._model.translates.forced_end:
                return self._end(End(active, FinishReason.LENGTH))
            return self._emit(active, token, last=True)
        elif active.is_far_enough:
            return self._emit(active, token, last=True)
        self._pending_text.append((active, token))
        return []

    def _ends_with(self, active: ActiveRequest, token: int) -> bool:
        """Whether a token ends a reply. Where there is a grammar an end comes only where it may, and ends it always."""
        if active.chooser.guide is not None:
            return token in active.chooser.guide.ends
        return token in self._model.eos_ids and not active.prepared.sampling.ignore_eos

    def _emit_texts(self) -> list[Output]:
        """Make text of the tokens that came last, but for those that ended their replies."""
        pending, self._pending_text = self._pending_text, []
        return [output for active, token in pending for output in self._emit(active, token, last=False)]

    def _emit(self, active: ActiveRequest, token: int, *, last: bool) -> list[Output]:
        try:
            step = active.prepared.reply.push(token)
            active.unsent += 1
            outputs = active.tell(step.pieces)
        except Exception:
            # The one broad catch of a request's text: no bystander may notice.
            log.exception("the text of request %s could not be made", active.prepared.named)
            return self._end(End(active, FinishReason.ERROR, NO_TEXT, flush=False))
        if step.stopped:
            return outputs + self._end(End(active, FinishReason.STOP, flush=False))
        return outputs + self._end(End(active, FinishReason.LENGTH)) if last else outputs

    def _end(self, end: End) -> list[Output]:
        """Forget a request. Returns its last outputs; text that was held back is dropped at a cancel.

        Nothing that fails here keeps its end from being told: neither its text nor what is kept of it.
        """
        active, last = end.active, last_outputs(end)
        if not self._serves(active):
            return []
        del self._active[active.prepared.request_id]
        self._deadlines.remove(active.request.arrival)
        self._looking.forget(active)
        self._leave(active, keep=end.keep)
        if active.chooser.guide is not None:
            active.chooser.guide.close()
        if not self._active:
            # Until somebody had waited for it, idle time would count as its own.
            self._flights.clear()
        if end.reason is FinishReason.CANCELLED:
            self._counters.cancelled(active.steps_after or 0)
        return last

    def _leave(self, active: ActiveRequest, *, keep: bool) -> None:
        try:
            self._scheduler.remove(active.request, keep=keep)
        except Exception:
            # Its pages are released all the same; only a later turn computes more.
            log.exception("what request %s computed could not be kept", active.prepared.named)

    def _observe(self, flight: _Flight) -> None:
        """Learn from how long a step took, since its launch or since the one before it was done."""
        plan, seconds = flight.plan, self._counters.took(flight.began, self._clock())
        self._pace.observe(prefill_tokens=plan.prefill_tokens, decoding=bool(plan.decodes), seconds=seconds)
