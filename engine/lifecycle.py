"""An engine's status over its life, and the wait for it to be ready. Every engine here keeps one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum, auto

from engine.door import EngineState, EngineStatus
from engine.errors import EngineUnavailable, ModelNotUsable
from engine.messages import ModelFacts


class _Blame(Enum):
    ENGINE = auto()
    MODEL = auto()


class Lifecycle:
    """Told of what happens to an engine; tells those who ask, or wait. All but `ready` is synchronous."""

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        """Take what is called, and must not raise, whenever another state was entered."""
        self._on_change = on_change
        self.status = EngineStatus(EngineState.LOADING, "starting")
        self.facts: ModelFacts | None = None
        self._blame = _Blame.ENGINE
        self._settled = asyncio.Event()

    def loading(self, stage: str, progress: float, message: str | None = None) -> None:
        """Note the progress of a start, the first one or a later one, and what there is to say, where that is new."""
        old = self.status
        self.status = EngineStatus(old.state, stage, progress, message or old.message, old.restarts)

    def loaded(self, facts: ModelFacts) -> None:
        """Note that requests are served from now on."""
        self.facts = facts
        self.status = EngineStatus(EngineState.READY, "ready", 1.0, None, self.status.restarts)
        self._settled.set()
        self._on_change()

    def died(self, why: str) -> None:
        """Note a death that is followed by a restart."""
        state = EngineState.LOADING if self.facts is None else EngineState.RESTARTING
        self.status = EngineStatus(state, "restarting", 0.0, why, self.status.restarts + 1)
        self._settled.clear()
        self._on_change()

    def failed(self, why: str) -> None:
        """Note that nobody tries any more."""
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
        """Raise ModelNotUsable or EngineUnavailable where no request will be served any more."""
        if self.status.state.is_final:
            refusal = ModelNotUsable if self._blame is _Blame.MODEL else EngineUnavailable
            raise refusal(self.status.message)

    async def ready(self, timeout_s: float | None = None) -> ModelFacts:
        """Wait as `Engine.ready` promises."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.status.state is not EngineState.READY:
                    self.refuse_when_over()
                    await self._settled.wait()
        except TimeoutError:
            raise EngineUnavailable(f"The engine is not ready yet: {self.status.stage}.") from None
        assert self.facts is not None  # noqa: S101 - what READY means
        return self.facts

    def _end(self, state: EngineState, why: str) -> None:
        self.status = EngineStatus(state, state.value, 0.0, why, self.status.restarts)
        self._settled.set()
        self._on_change()
