"""Several engines' processes behind one interface. Requests avoid dead ones, and waiting ones go to the first that is ready."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from engine.api import EngineState
from engine.fleet.fleet import Fleet, distance
from engine.options import EngineOptions
from engine.process.client import EngineClient
from engine.process.supervision import HeartbeatOptions, RestartPolicy

log = logging.getLogger(__name__)


class EngineFleet(Fleet[EngineClient]):
    """Requests that a process has are lost with it. Those that wait for a process go to any that is ready."""

    def __init__(
        self,
        options: Sequence[EngineOptions],
        *,
        restarts: RestartPolicy | None = None,
        heartbeat: HeartbeatOptions | None = None,
        stop_deadline_s: float = 5.0,
    ) -> None:
        """Take the options of each process, at least one, and of its supervision."""
        super().__init__(
            [
                EngineClient(
                    one,
                    restarts=restarts,
                    heartbeat=heartbeat,
                    stop_deadline_s=stop_deadline_s,
                    on_change=partial(self._changed, number),
                )
                for number, one in enumerate(options)
            ]
        )

    def _changed(self, number: int) -> None:
        """Log the state as well, since the fleet's status does not show one engine of several."""
        state = self._engines[number].status.state
        if state is not EngineState.READY and state is not EngineState.STOPPED:
            log.warning("engine %d of %d is %s", number, len(self._engines), state.value)
        super()._changed(number)

    def _move_what_waits(self) -> None:
        target = min(self._engines, key=lambda engine: distance(engine.status))
        if target.status.state.is_final:
            return
        for engine in self._engines:
            if distance(engine.status) > distance(target.status):
                engine.move_waiting_to(target)
