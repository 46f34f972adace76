"""Several engines behind one interface: each conversation goes where its keys and values are, and avoids engines that are away.

Knows what all kinds of engines have in common. The rest is in `engine.fleet.engine_fleet` and `engine.upstream.fleet`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from contextlib import AbstractAsyncContextManager
from functools import reduce
from typing import Generic, Protocol, Self, TypeVar

import msgspec

from engine.api import Engine, EngineState, EngineStatus, running
from engine.errors import EngineUnavailable
from engine.fleet.routing import Load, Router
from engine.messages import EngineStatistics, Message, ModelFacts, Request
from engine.reply_spec import PLAIN, ReplySpec
from engine.streamer import Streamer

_BEST_FIRST = (
    EngineState.READY,
    EngineState.RESTARTING,
    EngineState.LOADING,
    EngineState.ASLEEP,
    EngineState.FAILED,
    EngineState.STOPPED,
)


class Member(Engine, Protocol):
    """An engine that a fleet can have."""

    @property
    def open_requests(self) -> int:
        """The number of open requests."""
        ...

    def has_open(self, request_id: str) -> bool:
        """Whether a request of this id is open."""
        ...

    def generate(self, request: Request) -> Streamer:
        """Ask for a reply. Raises EngineUnavailable, and ValueError if a request of this id is open."""
        ...

    async def run(self) -> None:
        """Serve until this is cancelled, or can't go on."""
        ...


M = TypeVar("M", bound=Member)


class Fleet(ABC, Generic[M]):
    """Serves requests by several engines, as long as one of them serves.

    Nothing runs before `run`: put it into a task group, or use `running`.
    """

    def __init__(
        self, engines: Sequence[M], *, names: Sequence[str] | None = None, patience_s: float | None = None
    ) -> None:
        """Take the engines, at least one. Each calls `_changed` when it has entered another state.

        `names`: given if the engines outlive this process; conversations without a known home are assigned by them.
        `patience_s`: how long `ready` waits by default once an engine has served; None: without limit.
        """
        self._engines = tuple(engines)
        self._patience_s = patience_s
        self._router = Router(names=names)
        self._change = asyncio.Event()

    @property
    def parts(self) -> tuple[M, ...]:
        """The engines, in the order in which they were given."""
        return self._engines

    @property
    def status(self) -> EngineStatus:
        """The fleet's state: that of the engine that is closest to serving."""
        return status_of([engine.status for engine in self._engines])

    @property
    def facts(self) -> ModelFacts | None:
        """The model as every engine that has served can serve it; stays known while they restart."""
        known = [engine.facts for engine in self._engines if engine.facts is not None]
        return reduce(common_facts, known) if known else None

    async def ready(self, timeout_s: float | None = None) -> ModelFacts:
        """Wait until one engine serves. Raises ModelNotUsable or EngineUnavailable if none will."""
        if timeout_s is None and self.facts is not None:
            timeout_s = self._patience_s
        try:
            async with asyncio.timeout(timeout_s):
                while self.status.state is not EngineState.READY:
                    if self.status.state.is_final:
                        return await self._least_failed().ready()
                    await self._change.wait()
        except TimeoutError:
            raise EngineUnavailable(f"No engine is ready yet: {self.status.stage}.") from None
        assert self.facts is not None  # noqa: S101 - what READY means
        return self.facts

    async def count_tokens(
        self, messages: Sequence[Message], *, client: str = "", spec: ReplySpec = PLAIN
    ) -> int:
        """Return the prompt's length in tokens. Raises PromptRejected, EngineUnavailable."""
        loads = self._loads()
        engine = self._engines[self._router.route(None, loads)] if loads else self._least_failed()
        return await engine.count_tokens(messages, client=client, spec=spec)

    def generate(self, request: Request) -> Streamer:
        """Ask for a reply. Raises EngineUnavailable, and ValueError if a request of this id is open."""
        if any(engine.has_open(request.request_id) for engine in self._engines):
            raise ValueError(f"request {request.request_id!r} is still open")
        loads = self._loads()
        engine = self._engines[self._route(request, loads)] if loads else self._least_failed()
        return engine.generate(request)

    def statistics(self) -> EngineStatistics:
        """Return the sums of the engines' latest numbers; see `parts` for each."""
        return reduce(summed, (engine.statistics() for engine in self._engines))

    def running(self) -> AbstractAsyncContextManager[Self]:
        """Run the engines inside the block, and stop them at its end."""
        return running(self, "engines")

    async def run(self) -> None:
        """Serve until this is cancelled, or no engine can go on. Leaves no process and no connection behind."""
        async with asyncio.TaskGroup() as tasks:
            for number, engine in enumerate(self._engines):
                tasks.create_task(engine.run(), name=f"engine {number}")

    @abstractmethod
    def _move_what_waits(self) -> None:
        """Let an engine that serves, or will serve sooner, answer requests that wait for others."""

    def _resting(self) -> frozenset[int]:
        """Return the numbers of the engines that are asked only if no other serves."""
        return frozenset()

    def _changed(self, number: int) -> None:
        """Act on an engine's new state, before the engine itself does."""
        self._change.set()
        self._change = asyncio.Event()
        if self._engines[number].status.state is not EngineState.READY:
            self._router.forget(number)
        self._move_what_waits()

    def _route(self, request: Request, loads: dict[int, Load]) -> int:
        conversation = (request.cache_salt, request.conversation) if request.conversation else None
        return self._router.route(conversation, loads)

    def _loads(self, without: Collection[int] = ()) -> dict[int, Load]:
        """Return the loads of the engines that serve and don't rest, else of those that serve, else of those that will."""
        numbered = [one for one in enumerate(self._engines) if one[0] not in without]
        serving = [one for one in numbered if one[1].status.state is EngineState.READY]
        resting = self._resting()
        chosen = [one for one in serving if one[0] not in resting] or serving
        chosen = chosen or [one for one in numbered if not one[1].status.state.is_final]
        return {number: _load_of(engine) for number, engine in chosen}

    def _least_failed(self) -> M:
        """Return the engine that says why none serves any more: one that failed, rather than one that was stopped."""
        return min(self._engines, key=lambda engine: distance(engine.status))


def status_of(each: Sequence[EngineStatus]) -> EngineStatus:
    """Return the status of engines that serve as one: that of the engine closest to serving, and the restarts of all."""
    furthest = min(each, key=lambda one: (distance(one), -one.progress))
    return msgspec.structs.replace(furthest, restarts=sum(one.restarts for one in each))


def distance(status: EngineStatus) -> int:
    """Return how far an engine is from serving, as a number that orders engines."""
    return _BEST_FIRST.index(status.state)


def common_facts(one: ModelFacts, other: ModelFacts) -> ModelFacts:
    """Return the facts that hold for a request, whichever of two engines gets it."""
    devices = dict.fromkeys([*one.device.split(", "), *other.device.split(", ")])
    return msgspec.structs.replace(
        one,
        context_tokens=min(one.context_tokens, other.context_tokens),
        device=", ".join(devices),
        max_batch=one.max_batch + other.max_batch,
        lacks=tuple(dict.fromkeys([*one.lacks, *other.lacks])),
        token_bytes=_larger(one.token_bytes, other.token_bytes),
        features=_common(one.features, other.features),
    )


def _common(one: Sequence[str], other: Sequence[str]) -> tuple[str, ...]:
    """Return the features of both. Of a whole feature and a part of it (`format`, `format.regex`) it is the part."""

    def within(feature: str, features: Sequence[str]) -> bool:
        return feature in features or feature.partition(".")[0] in features

    both = [feature for feature in one if within(feature, other)]
    both += [feature for feature in other if within(feature, one)]
    return tuple(dict.fromkeys(both))


def _larger(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else max(one, other)


def summed(one: EngineStatistics, other: EngineStatistics) -> EngineStatistics:
    """Return the sums of two engines' numbers."""
    more = msgspec.structs.asdict(other)
    return EngineStatistics(
        **{name: count + more[name] for name, count in msgspec.structs.asdict(one).items()}
    )


def _load_of(engine: Member) -> Load:
    return Load(engine.open_requests, engine.facts.max_batch if engine.facts else 0)
