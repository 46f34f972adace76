"""Counts what a core has done since its start. The numbers are for metrics, and decide nothing."""

from __future__ import annotations

from dataclasses import dataclass

from engine.messages import EngineStatistics
from engine.scheduling.plan import StepPlan
from engine.scheduling.scheduler import Scheduler


@dataclass(slots=True)
class Counters:
    """The numbers, which only rise. `step_seconds`: the time of all steps. `done_at`: when the last step was done.

    `made_at`: when its tokens were fetched. `queue_reported_at`: when waiting requests were last sent their places.
    """

    steps: int = 0
    prefill_steps: int = 0
    generated_tokens: int = 0
    cached_tokens: int = 0
    prompt_tokens: int = 0
    cancels: int = 0
    steps_after_cancel: int = 0
    step_seconds: float = 0.0
    done_at: float = 0.0
    made_at: float = 0.0
    queue_reported_at: float = float("-inf")

    def took(self, began: float, now: float) -> float:
        """Return how long a step took that is done now, since its launch or since the step before was done."""
        seconds = now - max(began, self.done_at)
        self.done_at = now
        self.step_seconds += seconds
        return seconds

    def cancelled(self, steps_after: int) -> None:
        """Count a cancel, and the steps that were started for its request after it."""
        self.cancels += 1
        self.steps_after_cancel += steps_after

    def count(self, plan: StepPlan) -> None:
        """Count a step that begins."""
        self.steps += 1
        self.cached_tokens += sum(max(0, request.computed - request.padding) for request in plan.admitted)
        self.prefill_steps += bool(plan.prefills)
        self.prompt_tokens += sum(
            segment.count - segment.padding for segment in plan.prefills
        )  # drafts are none

    def statistics(self, scheduler: Scheduler, bytes_per_token: int) -> EngineStatistics:
        """Return all numbers, with what the scheduler and its pool hold now."""
        pool = scheduler.pool
        page_bytes = pool.size * bytes_per_token
        return EngineStatistics(
            running=scheduler.running,
            queued=scheduler.queued,
            steps=self.steps,
            prefill_steps=self.prefill_steps,
            generated_tokens=self.generated_tokens,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            preemptions=scheduler.preemptions,
            cancels=self.cancels,
            steps_after_cancel=self.steps_after_cancel,
            step_seconds=self.step_seconds,
            kv_used_bytes=pool.used * page_bytes,
            kv_parked_bytes=pool.cached * page_bytes,
            kv_total_bytes=pool.total * page_bytes,
        )
