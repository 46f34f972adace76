"""The step loop's heart: requests in, outputs out, one engine step at a time.

Owns each request from its submission to its one end. Knows no processes, no sockets and no tokenizer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from engine.cache.pool import KVPool
from engine.cache.prefix_index import BLOCK
from engine.cache.slot_batch import Span
from engine.execution.executor import Executor, Failure, Launched, Outcome, OutOfMemory
from engine.messages import EngineStatistics, FinishReason, Output
from engine.model.loaded_model import LoadedModel
from engine.sampling.sampler import Chooser
from engine.scheduling.active_request import ActiveRequest
from engine.scheduling.counters import Counters
from engine.scheduling.deadlines import Deadlines
from engine.scheduling.pace import PrefillPace
from engine.scheduling.scheduler import Parking, Plan, Scheduler, Segment, Sequence
from engine.text.prepared import DuplicateRequest, PreparedRequest, objection
from engine.text.reply_logprobs import Scored

STEP_TARGET_S = 0.06
"""How long a step with prefill may take, about: what a cancel or another reply waits at most."""

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
    ) -> None:
        """Take a model. `max_batch`: the one it was loaded for, where none is named. `clock` gives seconds."""
        slots = max_batch or model.max_batch
        self._model = model
        self._clock = clock
        self._pool = KVPool(model.kv.tokens, parked=model.kv.parked_tokens)
        self._scheduler = Scheduler(slots, self._pool)
        self._executor = Executor(model, slots=slots)
        self._pace = PrefillPace(step_target_s)
        self._flight: _Flight | None = None
        self._untold: list[tuple[ActiveRequest, int]] = []
        self._active: dict[str, ActiveRequest] = {}
        self._refused: list[Output] = []
        self._cancelled: list[ActiveRequest] = []
        self._deadlines: Deadlines[ActiveRequest] = Deadlines()
        self._counters = Counters()
        self._told_waiting_at = -WAITING_TOLD_EVERY_S

    @property
    def busy(self) -> bool:
        """Whether `step` has something to do."""
        return bool(self._active or self._refused)

    def statistics(self) -> EngineStatistics:
        """Return facts for metrics."""
        return self._counters.statistics(self._scheduler, self._model.kv.bytes_per_token)

    def submit(self, request: PreparedRequest) -> None:
        """Queue a request. One that can't be served gets its end, an error, from the next step.

        Raises DuplicateRequest where a request of that id is still served.
        """
        if request.request_id in self._active:
            raise DuplicateRequest(f"a request with the id {request.request_id!r} is still being served")
        active = ActiveRequest(request, _sequence(request), Chooser.of(request.sampling))
        window, vocabulary = self._model.context_tokens, self._model.vocabulary
        error = objection(request, context_tokens=window, vocabulary=vocabulary)
        if error is not None:
            self._refused.append(active.finished(FinishReason.ERROR, error))
            return
        self._active[request.request_id] = active
        self._scheduler.add(active.sequence)
        if request.sampling.max_time_s is not None:
            self._deadlines.add(active.sequence.arrival, self._clock() + request.sampling.max_time_s, active)

    def cancel(self, request_id: str) -> None:
        """End a request, wherever it is: its end comes from the next step. Unknown and ended ids are ignored."""
        active = self._active.get(request_id)
        if active is None or active.steps_at_cancel is not None:
            return
        active.steps_at_cancel = active.sequence.steps
        self._cancelled.append(active)

    def step(self) -> list[Output]:
        """Run one engine step and return its outputs, in order; nothing when idle.

        Where the device computes meanwhile they are those of the step before: its text is made, and leaves, while the
        device is busy with this one. Ends that need no step (cancels, timeouts, refusals) are returned at once, before
        anything else runs. Raises RuntimeError where memory turns out to be held by nobody.
        """
        ends = self._ends_without_a_step()
        if not self._active:
            self._pool.check_idle()
        if ends:
            return ends
        if self._executor.computes_meanwhile:
            outputs = [*self._land(), *self._launch(), *self._tell_texts()]
        else:
            outputs = [*self._launch(), *self._land()]
        if not self._active:
            self._pool.check_idle()
        return outputs

    def _ends_without_a_step(self) -> list[Output]:
        ends, self._refused = self._refused, []
        cancelled, self._cancelled = self._cancelled, []
        for active in cancelled:
            ends += self._guarded(active, partial(self._end, active, FinishReason.CANCELLED))
        for active in self._deadlines.due(self._clock()):
            ends += self._guarded(active, partial(self._end, active, FinishReason.TIMEOUT))
        return ends

    def _admit(self, plan: Plan) -> list[Output]:
        """Fill the slots of those that were let in, then let go what was dropped for them. Raises OutOfMemory."""
        self._leave_slots()
        outputs: list[Output] = []
        for admission in plan.admitted:
            sequence = admission.sequence
            active = self._active[sequence.request_id]
            if admission.state is not None:
                self._executor.restore(admission.slot, admission.state, sequence.computed)
                self._counters.cached_tokens += sequence.computed
            self._executor.join(admission.slot, active.chooser, sequence.tokens)
            if not sequence.generated:
                outputs.append(active.started())
        self._let_go()
        return outputs

    def _launch(self) -> list[Output]:
        """Plan a step for those that are served, and let the device begin."""
        if not self._active:
            return []
        began = self._clock()
        plan = self._scheduler.schedule(self._pace.budget)
        self._counters.count(plan)
        active = [self._active[segment.sequence.request_id] for segment in plan.segments]
        try:
            outputs = [*self._admit(plan), *self._tell_waiting(began)]
        except OutOfMemory:
            return self._admit_later(plan)
        try:
            launched = self._executor.launch([_span(segment) for segment in plan.segments])
        except OutOfMemory:
            return outputs + self._make_memory(active)
        self._flight = _Flight(plan, active, launched, began)
        return outputs

    def _land(self) -> list[Output]:
        """Take what a launched step gave. Whoever left meanwhile gets nothing of it."""
        flight, self._flight = self._flight, None
        if flight is None:
            return []
        try:
            outcomes = self._executor.fetch(flight.launched)
        except OutOfMemory:
            return self._make_memory(flight.active)
        self._scheduler.complete(flight.plan)
        outputs: list[Output] = []
        for one, outcome in zip(flight.active, outcomes, strict=True):
            if self._serves(one):
                outputs += self._guarded(one, partial(self._take, one, outcome))
        if not self._executor.computes_meanwhile:
            outputs += self._tell_texts()
        self._observe(flight.plan, self._clock() - flight.began)
        return outputs

    def _abandon(self) -> None:
        """Let a launched step go that nobody waits for: until somebody did, idle time would count as its own."""
        if self._flight is not None:
            self._executor.abandon(self._flight.launched)
            self._flight = None

    def _serves(self, active: ActiveRequest) -> bool:
        """Whether a request has not ended, even if another one has its id by now."""
        return self._active.get(active.request.request_id) is active

    def _make_memory(self, active: list[ActiveRequest]) -> list[Output]:
        """After a step for which the device had too little: give up kept states, else put a reply back, else end it."""
        outputs = self._tell_texts()
        freed = self._pool.drop_all()
        self._let_go()
        if freed:
            log.warning("a step ran out of memory; %d kept tokens were given up", freed)
        elif self._scheduler.make_memory():
            log.warning("a step ran out of memory; the newest reply is computed again later")
        else:
            why = "The device has too little memory for this request."
            for one in filter(self._serves, active):
                outputs += self._guarded(one, partial(self._end, one, FinishReason.ERROR, why))
        return outputs

    def _tell_waiting(self, now: float) -> list[Output]:
        if not self._scheduler.queued or now - self._told_waiting_at < WAITING_TOLD_EVERY_S:
            return []
        self._told_waiting_at = now
        waiting = enumerate(self._scheduler.waiting(), start=1)
        return [output for place, one in waiting for output in self._active[one.request_id].queued(place)]

    def _admit_later(self, plan: Plan) -> list[Output]:
        """Undo a plan whose newcomers found no memory to begin in: nothing of it was computed."""
        newcomers = [self._active[admission.sequence.request_id] for admission in plan.admitted]
        for one in newcomers:
            one.sequence.started = bool(one.sequence.generated)
            self._scheduler.put_back(one.sequence)
        freed = self._pool.drop_all()
        self._let_go()
        if freed or any(admission.state is not None for admission in plan.admitted):
            log.warning("there was no memory to take up what was kept; it is computed again")
            return []
        return self._make_memory(newcomers)

    def _leave_slots(self) -> None:
        for slot, tokens in self._scheduler.take_vacated():
            self._executor.leave(slot, tokens)

    def _park(self, parking: Parking) -> None:
        try:
            self._executor.park(parking.slot, parking.state, parking.tokens)
        except OutOfMemory:
            log.warning("there was no memory to keep %d tokens", parking.tokens)
            self._pool.drop(parking.state)
        self._let_go()

    def _let_go(self) -> None:
        for state in self._pool.take_dropped():
            self._executor.drop(state)

    def _guarded(self, active: ActiveRequest, act: Callable[[], list[Output]]) -> list[Output]:
        """Do what makes a request's text. A failure of that is the request's own end."""
        try:
            return act()
        except Exception:
            # The one broad catch of a request: no bystander may notice.
            log.exception("the text of request %s could not be made", active.request.request_id)
            return self._end(active, FinishReason.ERROR, "The reply's text could not be made.", flush=False)

    def _take(self, active: ActiveRequest, outcome: Outcome) -> list[Output]:
        if outcome is None:
            return active.prefilling()
        if isinstance(outcome, Failure):
            return self._end(active, FinishReason.ERROR, outcome.message, keep=False)
        if not active.sequence.generated and (parking := self._scheduler.share(active.sequence)):
            self._park(parking)
        token = outcome.token if isinstance(outcome, Scored) else outcome
        active.sequence.tokens.append(token)
        self._counters.generated_tokens += 1
        if token in self._model.eos_ids:
            return self._end(active, FinishReason.STOP)
        if isinstance(outcome, Scored):
            active.score(outcome)
        if self._is_long_enough(active):
            return self._tell(active, token, last=True)
        self._untold.append((active, token))
        return []

    def _is_long_enough(self, active: ActiveRequest) -> bool:
        sequence = active.sequence
        full = len(sequence.tokens) >= self._model.context_tokens
        return full or sequence.generated >= active.request.sampling.max_new_tokens

    def _tell_texts(self) -> list[Output]:
        """Make text of the tokens that came last, but for those that ended their replies."""
        untold, self._untold = self._untold, []
        outputs: list[Output] = []
        for active, token in untold:
            outputs += self._guarded(active, partial(self._tell, active, token, last=False))
        return outputs

    def _tell(self, active: ActiveRequest, token: int, *, last: bool) -> list[Output]:
        step = active.request.reply.push(token)
        active.unsent += 1
        outputs = active.chunk(step.text)
        if step.stopped:
            return outputs + self._end(active, FinishReason.STOP, flush=False)
        return outputs + self._end(active, FinishReason.LENGTH) if last else outputs

    def _end(
        self,
        active: ActiveRequest,
        reason: FinishReason,
        error: str | None = None,
        *,
        flush: bool = True,
        keep: bool = True,
    ) -> list[Output]:
        """Forget a request. Returns its last outputs; text that was held back is dropped at a cancel.

        What was computed is kept for a later turn, unless `keep` says that it is no good.
        """
        cancelled = reason is FinishReason.CANCELLED
        held_back = active.request.reply.flush() if flush else ""
        if not self._serves(active):
            return []
        del self._active[active.request.request_id]
        self._deadlines.remove(active.sequence.arrival)
        self._leave(active.sequence, keep=keep)
        if not self._active:
            self._abandon()
        if cancelled:
            self._counters.cancels += 1
            self._counters.steps_after_cancel += active.steps_after or 0
        return [*active.chunk("" if cancelled else held_back), active.finished(reason, error)]

    def _leave(self, sequence: Sequence, *, keep: bool) -> None:
        unseen = sequence.slot is not None and not self._executor.is_sound(sequence.slot)
        # Nobody saw yet whether what was computed holds numbers; what was taken from a kept state does.
        sound = 0 if not keep else sequence.taken if unseen else None
        parking = self._scheduler.remove(sequence, sound=sound)
        if parking is not None:
            self._park(parking)
        self._leave_slots()

    def _observe(self, plan: Plan, seconds: float) -> None:
        prefilled = plan.prefill_tokens
        self._pace.observe(prefill_tokens=prefilled, decoding=bool(plan.decodes), seconds=seconds)
        self._counters.step_seconds += seconds


def _sequence(request: PreparedRequest) -> Sequence:
    return Sequence(
        request.request_id,
        list(request.prompt),
        salt=request.cache_salt,
        client=request.client,
        priority=request.priority,
        shared_tokens=request.shared_tokens if request.shared_tokens >= BLOCK else 0,
    )


def _span(segment: Segment) -> Span:
    tokens = segment.sequence.tokens[segment.start : segment.start + segment.count]
    return Span(segment.slot, segment.start, tokens, segment.samples)
