"""Several engines behind one door: each conversation goes where its keys and values are, and around engines that died."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial, reduce

import msgspec

from engine.client import EngineClient
from engine.door import EngineState, EngineStatus
from engine.errors import EngineUnavailable
from engine.heartbeat import HeartbeatOptions
from engine.messages import EngineStatistics, Message, ModelFacts, Request
from engine.options import EngineOptions
from engine.routing import Load, Router
from engine.stream import ReplyStream
from engine.supervisor import RestartPolicy

_BEST_FIRST = (
    EngineState.READY,
    EngineState.RESTARTING,
    EngineState.LOADING,
    EngineState.FAILED,
    EngineState.STOPPED,
)

log = logging.getLogger(__name__)


class EngineFleet:
    """Serves requests by the processes of several engines, as long as one of them serves.

    What an engine's process was told of is lost with it; what waits for a process goes to any that is ready.
    Nothing runs until `run` does: put that into a task group, or use `running`.
    """

    def __init__(
        self,
        options: Sequence[EngineOptions],
        *,
        restarts: RestartPolicy | None = None,
        heartbeat: HeartbeatOptions | None = None,
        stop_deadline_s: float = 5.0,
    ) -> None:
        """Take what each process is started with, at least one, and how patient the supervisors are with them."""
        self._engines = tuple(
            EngineClient(
                one,
                restarts=restarts,
                heartbeat=heartbeat,
                stop_deadline_s=stop_deadline_s,
                on_change=partial(self._changed, number),
            )
            for number, one in enumerate(options)
        )
        self._router = Router()
        self._change = asyncio.Event()

    @property
    def parts(self) -> tuple[EngineClient, ...]:
        """The engines, in the order of their options."""
        return self._engines

    @property
    def status(self) -> EngineStatus:
        """Where the fleet is in its life: as far as the engine that is furthest."""
        return status_of([engine.status for engine in self._engines])

    @property
    def facts(self) -> ModelFacts | None:
        """The model as all engines that were loaded can serve it; stays known while they restart."""
        known = [engine.facts for engine in self._engines if engine.facts is not None]
        return reduce(together, known) if known else None

    async def ready(self, timeout_s: float | None = None) -> ModelFacts:
        """Wait until one engine serves. Raises ModelNotUsable and EngineUnavailable where none will."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.status.state is not EngineState.READY:
                    if self.status.state.is_final:
                        return await self._last_word().ready()
                    await self._change.wait()
        except TimeoutError:
            raise EngineUnavailable(f"No engine is ready yet: {self.status.stage}.") from None
        assert self.facts is not None  # noqa: S101 - what READY means
        return self.facts

    async def count_tokens(self, messages: Sequence[Message]) -> int:
        """Return the prompt's length in tokens. Raises PromptRejected, EngineUnavailable."""
        loads = self._loads()
        engine = self._engines[self._router.route(None, loads)] if loads else self._last_word()
        return await engine.count_tokens(messages)

    def generate(self, request: Request) -> ReplyStream:
        """Ask for a reply. Raises EngineUnavailable, and ValueError where a request of that id is open."""
        if any(engine.has_open(request.request_id) for engine in self._engines):
            raise ValueError(f"request {request.request_id!r} is still open")
        loads = self._loads()
        if not loads:
            return self._last_word().generate(request)
        conversation = (request.cache_salt, request.conversation) if request.conversation else None
        return self._engines[self._router.route(conversation, loads)].generate(request)

    def statistics(self) -> EngineStatistics:
        """Return the sums of what the running processes told last; see `parts` for each."""
        return reduce(summed, (engine.statistics() for engine in self._engines))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[EngineFleet]:
        """Run the engines inside the block, and stop them behind it."""
        async with asyncio.TaskGroup() as tasks:
            supervision = tasks.create_task(self.run(), name="fleet supervision")
            try:
                yield self
            finally:
                supervision.cancel()

    async def run(self) -> None:
        """Keep the processes running until all failed for good, or until this is cancelled. Leaves no process behind."""
        async with asyncio.TaskGroup() as tasks:
            for number, engine in enumerate(self._engines):
                tasks.create_task(engine.run(), name=f"engine {number} supervision")

    def _loads(self) -> dict[int, Load]:
        """Return the loads of the engines that are ready; while none is, of those that will be."""
        numbered = list(enumerate(self._engines))
        chosen = [one for one in numbered if one[1].status.state is EngineState.READY] or [
            one for one in numbered if not one[1].status.state.is_final
        ]
        return {number: _load_of(engine) for number, engine in chosen}

    def _last_word(self) -> EngineClient:
        """Return an engine that says why no engine serves any more: one that failed rather than one that was stopped."""
        return min(self._engines, key=_rank)

    def _changed(self, number: int) -> None:
        """Act on an engine's new state; called before the engine itself does."""
        self._change.set()
        self._change = asyncio.Event()
        state = self._engines[number].status.state
        if state is not EngineState.READY:
            self._router.forget(number)
        if state is not EngineState.READY and state is not EngineState.STOPPED:
            log.warning("engine %d of %d is %s", number, len(self._engines), state.value)
        self._move_what_waits()

    def _move_what_waits(self) -> None:
        """Let an engine that is ready, else one that will be, serve what waits for those that are further from it."""
        target = min(self._engines, key=_rank)
        if target.status.state.is_final:
            return
        for engine in self._engines:
            if _rank(engine) > _rank(target):
                engine.hand_over(target)


def status_of(each: Sequence[EngineStatus]) -> EngineStatus:
    """Return the status of engines that serve as one: that of the furthest, and the restarts of all."""
    furthest = min(each, key=lambda one: (_BEST_FIRST.index(one.state), -one.progress))
    return msgspec.structs.replace(furthest, restarts=sum(one.restarts for one in each))


def _rank(engine: EngineClient) -> int:
    """Order engines by how far they are from serving."""
    return _BEST_FIRST.index(engine.status.state)


def _load_of(engine: EngineClient) -> Load:
    return Load(engine.open_requests, engine.facts.max_batch if engine.facts else 0)


def together(one: ModelFacts, other: ModelFacts) -> ModelFacts:
    """Return what holds for requests that either of two engines may get."""
    devices = dict.fromkeys([*one.device.split(", "), *other.device.split(", ")])
    return msgspec.structs.replace(
        one,
        context_tokens=min(one.context_tokens, other.context_tokens),
        device=", ".join(devices),
        max_batch=one.max_batch + other.max_batch,
    )


def summed(one: EngineStatistics, other: EngineStatistics) -> EngineStatistics:
    """Return the sums of what two engines counted."""
    more = msgspec.structs.asdict(other)
    return EngineStatistics(
        **{name: count + more[name] for name, count in msgspec.structs.asdict(one).items()}
    )
