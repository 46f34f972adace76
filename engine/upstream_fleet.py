"""Several upstreams of one model behind one door: by affinity and load, around those that are away or turn requests away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial, reduce

from engine.door import EngineState, EngineStatus
from engine.errors import EngineError, EngineUnavailable
from engine.fleet import status_of, summed, together
from engine.messages import EngineStatistics, Message, ModelFacts, Request
from engine.routing import Load, Router
from engine.stream import ReplyStream
from engine.upstream import UpstreamEngine
from engine.upstream_options import UpstreamOptions

log = logging.getLogger(__name__)


class UpstreamFleet:
    """Serves requests by any of several upstreams, a conversation by the same one while it can.

    A request that an upstream turned away, or lost before its first token, goes to the others, to each at most once.
    Nothing is asked until `run` runs: put that into a task group, or use `running`.
    """

    def __init__(self, upstreams: Sequence[tuple[UpstreamOptions, str | None]]) -> None:
        """Take the upstreams, two or more, with their keys."""
        self._engines = tuple(
            UpstreamEngine(
                options,
                key=key,
                on_change=partial(self._changed, number),
                turned_away=partial(self._elsewhere, number),
            )
            for number, (options, key) in enumerate(upstreams)
        )
        self._patience_s = max(engine.options.timeouts.patience_s for engine in self._engines)
        self._router = Router()
        self._tried: dict[str, set[int]] = {}
        self._change = asyncio.Event()

    @property
    def parts(self) -> tuple[UpstreamEngine, ...]:
        """The upstreams, in the order of the file."""
        return self._engines

    @property
    def status(self) -> EngineStatus:
        """Where the fleet is in its life: as far as the upstream that is furthest."""
        return status_of([engine.status for engine in self._engines])

    @property
    def facts(self) -> ModelFacts | None:
        """The model as all upstreams that answered can serve it."""
        known = [engine.facts for engine in self._engines if engine.facts is not None]
        return reduce(together, known) if known else None

    async def ready(self, timeout_s: float | None = None) -> ModelFacts:
        """Wait until one upstream answers; for their patience at most where one did before. Raises EngineUnavailable."""
        if timeout_s is None and self.facts is not None:
            timeout_s = self._patience_s
        try:
            async with asyncio.timeout(timeout_s):
                while self.status.state is not EngineState.READY:
                    if self.status.state.is_final:
                        raise EngineUnavailable("The engines are stopped.")
                    await self._change.wait()
        except TimeoutError:
            raise EngineUnavailable(f"No engine is ready yet: {self.status.stage}.") from None
        assert self.facts is not None  # noqa: S101 - what READY means
        return self.facts

    async def count_tokens(self, messages: Sequence[Message]) -> int:
        """Return the prompt's length in tokens. Raises PromptRejected, EngineUnavailable."""
        return await self._engines[self._router.route(None, self._loads())].count_tokens(messages)

    def generate(self, request: Request) -> ReplyStream:
        """Ask for a reply. Raises EngineUnavailable, and ValueError where a request of that id is open."""
        if any(engine.has_open(request.request_id) for engine in self._engines):
            raise ValueError(f"request {request.request_id!r} is still open")
        return self._engines[self._route(request, self._loads())].generate(request)

    def statistics(self) -> EngineStatistics:
        """Return the sums of what the upstreams told; see `parts` for each."""
        return reduce(summed, (engine.statistics() for engine in self._engines))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[UpstreamFleet]:
        """Run inside the block; behind it no connection is open."""
        async with asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(self.run(), name="upstreams")
            try:
                yield self
            finally:
                serving.cancel()

    async def run(self) -> None:
        """Serve until this is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for engine in self._engines:
                tasks.create_task(engine.run(), name=f"upstream {engine.options.name}")

    def _route(self, request: Request, loads: dict[int, Load]) -> int:
        conversation = (request.cache_salt, request.conversation) if request.conversation else None
        return self._router.route(conversation, loads)

    def _loads(self, without: set[int] | None = None) -> dict[int, Load]:
        """Return the loads of the upstreams that take requests; while none does, of those that answer; else of all."""
        numbered = [one for one in enumerate(self._engines) if one[0] not in (without or set())]
        answering = [one for one in numbered if one[1].status.state is EngineState.READY]
        chosen = [one for one in answering if not one[1].rests] or answering or numbered
        return {number: Load(engine.open_requests, engine.options.max_requests) for number, engine in chosen}

    def _changed(self, number: int) -> None:
        """Act on an upstream's new state: what waits for one that is away goes to one that answers."""
        self._change.set()
        self._change = asyncio.Event()
        if self._engines[number].status.state is not EngineState.READY:
            self._router.forget(number)
        if self.status.state is not EngineState.READY:
            return
        for engine in self._engines:
            if engine.status.state is not EngineState.READY:
                for request, stream in engine.give_up_waiting():
                    self._engines[self._route(request, self._loads())].take_over(request, stream)

    def _elsewhere(self, number: int, request: Request, stream: ReplyStream, error: EngineError) -> bool:
        """Let an upstream that was not asked yet answer a request that failed before its first token."""
        tried = self._tried.pop(request.request_id, set()) | {number}
        loads = {
            other: load
            for other, load in self._loads(without=tried).items()
            if self._engines[other].status.state is EngineState.READY
        }
        self._forget_ended()
        if not loads:
            return False
        self._tried[request.request_id] = tried
        other = self._route(request, loads)
        log.info("the engine %s serves what failed before: %s", self._engines[other].options.name, error)
        self._engines[other].take_over(request, stream)
        return True

    def _forget_ended(self) -> None:
        still = {one for one in self._tried if any(engine.has_open(one) for engine in self._engines)}
        self._tried = {one: tried for one, tried in self._tried.items() if one in still}
