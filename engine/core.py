"""The step loop's heart: requests in, outputs out, one engine step at a time.

Owns each request from its submission to its one end. Knows no processes, no sockets and no tokenizer.
"""

from __future__ import annotations

import heapq
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from engine.active_request import ActiveRequest
from engine.executor import Executor, Failure, Outcome
from engine.loaded_model import LoadedModel
from engine.messages import EngineStatistics, FinishReason, Output
from engine.pace import PrefillPace
from engine.prepared import DuplicateRequest, PreparedRequest, objection
from engine.scheduler import Plan, Scheduler, Sequence

STEP_TARGET_S = 0.075
"""How long a step with prefill may take, about: what a cancel or another reply waits at most."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Counters:
    steps: int = 0
    generated_tokens: int = 0
    prompt_tokens: int = 0
    cancels: int = 0
    steps_after_cancel: int = 0
    step_seconds: float = 0.0


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
        self._scheduler = Scheduler(slots)
        self._executor = Executor(model, slots=slots)
        self._pace = PrefillPace(step_target_s)
        self._active: dict[str, ActiveRequest] = {}
        self._refused: list[Output] = []
        self._cancelled: list[ActiveRequest] = []
        self._deadlines: list[tuple[float, int, ActiveRequest]] = []
        self._counters = _Counters()

    @property
    def busy(self) -> bool:
        """Whether `step` has something to do."""
        return bool(self._active or self._refused)

    def statistics(self) -> EngineStatistics:
        """Return facts for metrics."""
        counters = self._counters
        return EngineStatistics(
            running=self._scheduler.running,
            queued=self._scheduler.queued,
            steps=counters.steps,
            generated_tokens=counters.generated_tokens,
            prompt_tokens=counters.prompt_tokens,
            cancels=counters.cancels,
            steps_after_cancel=counters.steps_after_cancel,
            step_seconds=counters.step_seconds,
        )

    def submit(self, request: PreparedRequest) -> None:
        """Queue a request. One that can't be served gets its end, an error, from the next step.

        Raises DuplicateRequest where a request of that id is still served.
        """
        if request.request_id in self._active:
            raise DuplicateRequest(f"a request with the id {request.request_id!r} is still being served")
        active = ActiveRequest(request, Sequence(request.request_id, len(request.prompt)))
        window, vocabulary = self._model.context_tokens, self._model.vocabulary
        error = objection(request, context_tokens=window, vocabulary=vocabulary)
        if error is not None:
            self._refused.append(active.finished(FinishReason.ERROR, error))
            return
        self._active[request.request_id] = active
        self._scheduler.add(active.sequence)
        if request.sampling.max_time_s is not None:
            deadline = self._clock() + request.sampling.max_time_s
            heapq.heappush(self._deadlines, (deadline, id(active), active))

    def cancel(self, request_id: str) -> None:
        """End a request, wherever it is: its end comes from the next step. Unknown and ended ids are ignored."""
        active = self._active.get(request_id)
        if active is None or active.steps_at_cancel is not None:
            return
        active.steps_at_cancel = active.sequence.steps
        self._cancelled.append(active)

    def step(self) -> list[Output]:
        """Run one engine step and return its outputs, in order; nothing when idle.

        Ends that need no step (cancels, timeouts, refusals) are returned at once, before anything else runs.
        """
        ends = self._ends_without_a_step()
        if ends:
            return ends
        plan = self._scheduler.schedule(self._pace.budget)
        if not plan.segments:
            return []
        began = self._clock()
        outputs = self._run(plan)
        self._observe(plan, self._clock() - began)
        return outputs

    def _ends_without_a_step(self) -> list[Output]:
        ends, self._refused = self._refused, []
        cancelled, self._cancelled = self._cancelled, []
        for active in cancelled:
            ends += self._end(active, FinishReason.CANCELLED)
        now = self._clock()
        while self._deadlines and self._deadlines[0][0] <= now:
            active = heapq.heappop(self._deadlines)[2]
            if self._active.get(active.request.request_id) is active:
                ends += self._guarded(active, partial(self._end, active, FinishReason.TIMEOUT))
        return ends

    def _run(self, plan: Plan) -> list[Output]:
        outputs: list[Output] = [self._active[s.request_id].started() for s in plan.started]
        for segment in plan.prefills:
            if segment.start == 0:
                request = self._active[segment.sequence.request_id].request
                self._executor.join(segment.slot, request.sampling, request.prompt)
        active = [self._active[segment.sequence.request_id] for segment in plan.segments]
        spans = [one.span(segment) for one, segment in zip(active, plan.segments, strict=True)]
        outcomes = self._executor.run(spans)
        self._scheduler.complete(plan)
        for one, outcome in zip(active, outcomes, strict=True):
            outputs += self._guarded(one, partial(self._take, one, outcome))
        return outputs

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
            return []
        if isinstance(outcome, Failure):
            return self._end(active, FinishReason.ERROR, outcome.message)
        active.last_token = outcome
        active.sequence.generated += 1
        self._counters.generated_tokens += 1
        if outcome in self._model.eos_ids:
            return self._end(active, FinishReason.STOP)
        return self._tell(active, outcome)

    def _tell(self, active: ActiveRequest, token: int) -> list[Output]:
        sequence = active.sequence
        step = active.request.reply.push(token)
        active.unsent += 1
        outputs = active.chunk(step.text)
        if step.stopped:
            return outputs + self._end(active, FinishReason.STOP, flush=False)
        full = sequence.prompt_tokens + sequence.generated >= self._model.context_tokens
        if full or sequence.generated >= active.request.sampling.max_new_tokens:
            return outputs + self._end(active, FinishReason.LENGTH)
        return outputs

    def _end(
        self, active: ActiveRequest, reason: FinishReason, error: str | None = None, *, flush: bool = True
    ) -> list[Output]:
        """Forget a request. Returns its last outputs; text that was held back is dropped at a cancel."""
        cancelled = reason is FinishReason.CANCELLED
        held_back = active.request.reply.flush() if flush and not cancelled else ""
        del self._active[active.request.request_id]
        self._scheduler.remove(active.sequence)
        if cancelled:
            self._counters.cancels += 1
            self._counters.steps_after_cancel += active.steps_after or 0
        return [*active.chunk(held_back), active.finished(reason, error)]

    def _observe(self, plan: Plan, seconds: float) -> None:
        prefilled = plan.prefill_tokens
        self._pace.observe(prefill_tokens=prefilled, decoding=bool(plan.decodes), seconds=seconds)
        self._counters.steps += 1
        self._counters.prompt_tokens += prefilled
        self._counters.step_seconds += seconds
