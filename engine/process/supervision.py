"""Supervision of an engine: heartbeat, restarts, and status. Knows no process."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from math import ceil

import msgspec

from engine.api import EngineState, EngineStatus
from engine.errors import EngineUnavailable, ModelNotUsable
from engine.messages import ModelFacts

STEP_TIMEOUT_S = 300.0
"""A step takes some 60 ms; the first ones of a kind may compile for minutes."""


class HeartbeatOptions(msgspec.Struct, frozen=True, kw_only=True):
    """A ready process that sends nothing, pongs included, for `misses` intervals in a row is stalled.

    So is one that answers while one step takes longer than `step_timeout_s`: its device hangs.
    """

    interval_s: float = 5.0
    misses: int = 12
    step_timeout_s: float = STEP_TIMEOUT_S


class Heartbeat:
    """Counts intervals of silence, and those without progress of the step loop, of one process.

    Intervals are counted, not seconds: if the gateway itself stalled, only one is missed.
    """

    def __init__(self, options: HeartbeatOptions) -> None:
        """Take the bounds."""
        self._options = options
        self._most_standing = ceil(options.step_timeout_s / options.interval_s)
        self._silent = 0
        self._standing = 0
        self._turns: int | None = None

    def message_received(self) -> None:
        """Note any message of the process."""
        self._silent = 0

    def answered(self, *, busy: bool, turns: int) -> None:
        """Note a pong, with the step loop's progress."""
        stands = busy and turns == self._turns
        self._standing = self._standing + 1 if stands else 0
        self._turns = turns

    def beat(self) -> str | None:
        """Note the end of an interval; return why the process counts as stalled, or None."""
        self._silent += 1
        if self._silent > self._options.misses:
            return "The engine's process was stalled: it answered nothing."
        if self._standing > self._most_standing:
            return f"A step of the engine did not end within {self._options.step_timeout_s:g} s."
        return None


class RestartPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """After the first death in `window_s` the wait is `first_delay_s`; it doubles with each further one.

    `deaths` within `window_s` are too many. `jitter`: the largest share by which a wait is shortened at random.
    """

    first_delay_s: float = 0.2
    longest_delay_s: float = 30.0
    deaths: int = 5
    window_s: float = 600.0
    jitter: float = 0.25


class RestartLedger:
    """Remembers the deaths of one engine."""

    def __init__(self, policy: RestartPolicy, chance: Callable[[], float]) -> None:
        """Take the policy, and a source of numbers from 0 to 1."""
        self._policy = policy
        self._chance = chance
        self._deaths: deque[float] = deque()

    def died(self, now: float) -> float | None:
        """Note a death at `now`, in seconds; return how long to wait, or None if there were too many."""
        policy = self._policy
        self._deaths.append(now)
        while self._deaths[0] <= now - policy.window_s:
            self._deaths.popleft()
        if len(self._deaths) >= policy.deaths:
            return None
        delay = min(policy.first_delay_s * 2.0 ** (len(self._deaths) - 1), policy.longest_delay_s)
        return delay * (1.0 - policy.jitter * self._chance())


class _Blame(Enum):
    ENGINE = auto()
    MODEL = auto()


class Lifecycle:
    """Records an engine's state, for callers that ask or wait. All but `ready` is synchronous."""

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        """`on_change` is called whenever another state was entered, and must not raise."""
        self._on_change = on_change
        self.status = EngineStatus(EngineState.LOADING, "starting")
        self.facts: ModelFacts | None = None
        self._blame = _Blame.ENGINE
        self._settled = asyncio.Event()

    def loading(self, stage: str, progress: float, message: str | None = None) -> None:
        """Note the progress of a start, the first one or a later one. `message`: replaces the last one, if given."""
        old = self.status
        self.status = EngineStatus(old.state, stage, progress, message or old.message, old.restarts)

    def loaded(self, facts: ModelFacts) -> None:
        """Note that requests are served from now on."""
        self.facts = facts
        self.status = EngineStatus(EngineState.READY, "ready", 1.0, None, self.status.restarts)
        self._settled.set()
        self._on_change()

    def stalled(self, why: str) -> None:
        """Note that a process no longer serves and is being ended; its death is noted separately."""
        self._restarting(why, self.status.restarts)

    def died(self, why: str) -> None:
        """Note a death that is followed by a restart."""
        self._restarting(why, self.status.restarts + 1)

    def failed(self, why: str) -> None:
        """Note that the engine has failed for good."""
        self._end(EngineState.FAILED, why)

    def not_usable(self, why: str) -> None:
        """Note that the model can't be served."""
        self._blame = _Blame.MODEL
        self._end(EngineState.FAILED, why)

    def stopped(self) -> None:
        """Note that the engine was told to stop, unless it had failed before."""
        if not self.status.state.is_final:
            self._end(EngineState.STOPPED, "The engine is stopped.")

    def refuse_when_over(self) -> None:
        """Raise ModelNotUsable or EngineUnavailable if no request will be served any more."""
        if self.status.state.is_final:
            refusal = ModelNotUsable if self._blame is _Blame.MODEL else EngineUnavailable
            raise refusal(self.status.message)

    async def ready(self, timeout_s: float | None = None) -> ModelFacts:
        """Wait until requests are served; see `Engine.ready`."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.status.state is not EngineState.READY:
                    self.refuse_when_over()
                    await self._settled.wait()
        except TimeoutError:
            raise EngineUnavailable(f"The engine is not ready yet: {self.status.stage}.") from None
        assert self.facts is not None  # noqa: S101 - READY implies it
        return self.facts

    def _restarting(self, why: str, restarts: int) -> None:
        state = EngineState.LOADING if self.facts is None else EngineState.RESTARTING
        self.status = EngineStatus(state, "restarting", 0.0, why, restarts)
        self._settled.clear()
        self._on_change()

    def _end(self, state: EngineState, why: str) -> None:
        self.status = EngineStatus(state, state.value, 0.0, why, self.status.restarts)
        self._settled.set()
        self._on_change()
