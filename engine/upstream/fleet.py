"""Several upstreams of one model behind one interface. Requests avoid those that are away or overloaded."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from engine.api import EngineState
from engine.errors import EngineError
from engine.fleet.fleet import Fleet
from engine.messages import Request, Retried
from engine.streamer import TimedStreamer
from engine.upstream.engine import UpstreamEngine
from engine.upstream.options import UpstreamOptions

log = logging.getLogger(__name__)


class UpstreamFleet(Fleet[UpstreamEngine]):
    """Gives a request that an upstream shed, or lost before its first token, to the others, to each at most once."""

    def __init__(self, upstreams: Sequence[tuple[UpstreamOptions, str | None]]) -> None:
        """Take the upstreams, two or more, with their keys."""
        super().__init__(
            [
                UpstreamEngine(
                    options,
                    key=key,
                    on_change=partial(self._changed, number),
                    turned_away=partial(self._elsewhere, number),
                )
                for number, (options, key) in enumerate(upstreams)
            ],
            names=[options.name for options, _ in upstreams],
            patience_s=max(options.timeouts.patience_s for options, _ in upstreams),
        )
        self._tried: dict[str, set[int]] = {}

    def _resting(self) -> frozenset[int]:
        return frozenset(number for number, engine in enumerate(self._engines) if engine.cooling_down)

    def _move_what_waits(self) -> None:
        if self.status.state is not EngineState.READY:
            return
        for engine in self._engines:
            if engine.status.state is not EngineState.READY:
                for request, stream in engine.give_up_waiting():
                    self._engines[self._route(request, self._loads())].take_over(request, stream)

    def _elsewhere(self, number: int, request: Request, stream: TimedStreamer, error: EngineError) -> bool:
        """Let an upstream that was not asked yet answer a request that failed before its first token."""
        self._forget_ended()
        tried = self._tried[request.request_id] = self._tried.get(request.request_id, set()) | {number}
        loads = {
            other: load
            for other, load in self._loads(without=tried).items()
            if self._engines[other].status.state is EngineState.READY
            and not self._engines[other].circuit_refuses
        }
        if not loads:
            return False
        other = self._route(request, loads)
        log.info(
            "the engine %s serves a request after a failure: %s", self._engines[other].options.name, error
        )
        stream.put_nowait(Retried(request.request_id, elsewhere=True))
        self._engines[other].take_over(request, stream, fallback=True)
        return True

    def _forget_ended(self) -> None:
        still = {one for one in self._tried if any(engine.has_open(one) for engine in self._engines)}
        self._tried = {one: tried for one, tried in self._tried.items() if one in still}
