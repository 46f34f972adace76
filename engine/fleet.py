"""Several engines behind one interface: each conversation goes where its keys and values are, and avoids engines that are away."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Collection, Hashable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial, reduce
from hashlib import blake2b
from typing import Generic, Protocol, Self, TypeVar

import msgspec

from engine.api import Engine, EngineState, EngineStatus, running
from engine.errors import EngineUnavailable
from engine.messages import EngineStatistics, Message, ModelFacts, Request
from engine.options import EngineOptions
from engine.process.client import EngineClient
from engine.process.supervision import HeartbeatOptions, RestartPolicy
from engine.reply_spec import PLAIN, ReplySpec
from engine.streamer import Streamer

KEPT_ROUTES = 16_384
PATIENCE = 4
"""A conversation's own engine may have twice the requests of the idlest one, and this many more."""

_BEST_FIRST = (
    EngineState.READY,
    EngineState.RESTARTING,
    EngineState.LOADING,
    EngineState.ASLEEP,
    EngineState.FAILED,
    EngineState.STOPPED,
)

log = logging.getLogger(__name__)


def ranked(key: str, members: Sequence[str]) -> list[int]:
    """Return the indices of the members, whose names are unique, in the order in which this key prefers them.

    Highest random weight (Thaler and Ravishankar, 1998): a member that comes or leaves moves only its own share.
    """
    weights = [_weight(key, member) for member in members]
    return sorted(range(len(members)), key=lambda place: weights[place], reverse=True)


def _weight(key: str, member: str) -> bytes:
    """Return a number that looks random, but is always the same for this pair."""
    pair = f"{len(member)}:{member}{key}"
    return blake2b(pair.encode(errors="surrogatepass"), digest_size=8).digest()


class Load(msgspec.Struct, frozen=True):
    """The load of one engine: `open` requests, running or waiting, for `places` in its batch."""

    open: int
    places: int

    @property
    def full(self) -> bool:
        """Whether a further request waits for a place."""
        return self.open >= self.places


class RouteTable:
    """Remembers which engine served a conversation last. The conversation that was silent for longest is dropped first."""

    def __init__(self, limit: int) -> None:
        """Take how many conversations are remembered, at least one."""
        self._limit = limit
        self._homes: OrderedDict[Hashable, int] = OrderedDict()
        self._kept: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._homes)

    def home(self, conversation: Hashable) -> int | None:
        """Return the engine that served this conversation last; None if it is unknown."""
        return self._homes.get(conversation)

    def kept(self, engine: int) -> int:
        """Return how many conversations this engine served last."""
        return self._kept[engine]

    def remember(self, conversation: Hashable, engine: int) -> None:
        """Note that `engine` serves this conversation from now on."""
        self._drop(conversation)
        self._homes[conversation] = engine
        self._kept[engine] += 1
        if len(self._homes) > self._limit:
            self._drop(next(iter(self._homes)))

    def forget(self, engine: int) -> None:
        """Note that this engine keeps nothing any more: its process died."""
        for conversation in [known for known, home in self._homes.items() if home == engine]:
            self._drop(conversation)

    def _drop(self, conversation: Hashable) -> None:
        home = self._homes.pop(conversation, None)
        if home is not None:
            self._kept[home] -= 1


class Router:
    """Chooses an engine for each request, and remembers its choice.

    A conversation without a remembered home goes to the idlest engine, or, if engines have names, to the one that its
    own name prefers. Then other replicas, and this one after a restart, choose alike, and a new engine moves few.
    """

    def __init__(self, limit: int = KEPT_ROUTES, *, names: Sequence[str] | None = None) -> None:
        """Take how many conversations are remembered, at least one, and the names of engines that outlive us."""
        self._routes = RouteTable(limit)
        self._names = names

    def route(self, conversation: Hashable | None, loads: Mapping[int, Load]) -> int:
        """Choose among the engines of `loads`, of which there is at least one, by their number.

        `conversation`: the owner of cached keys and values. None: the request goes to the idlest, and is not remembered.
        """
        idlest = min(loads, key=lambda engine: self._rank(engine, loads[engine]))
        if conversation is None:
            return idlest
        home = self._routes.home(conversation)
        preferred = self._preferred(conversation, idlest) if home is None else [home]
        chosen = next(
            (one for one in preferred if one in loads and not overloaded(loads[one], loads[idlest])), idlest
        )
        self._routes.remember(conversation, chosen)
        return chosen

    def forget(self, engine: int) -> None:
        """Note that this engine keeps nothing any more: its process died."""
        self._routes.forget(engine)

    def _preferred(self, conversation: Hashable, idlest: int) -> list[int]:
        return [idlest] if self._names is None else ranked(repr(conversation), self._names)

    def _rank(self, engine: int, load: Load) -> tuple[bool, int, int, int]:
        """Order engines, the idlest first. Of equals the one with fewer conversations is first, to fill memory evenly."""
        return load.full, load.open, self._routes.kept(engine), engine


def overloaded(home: Load, idlest: Load) -> bool:
    """Return whether a conversation's next turn should be computed again by the idlest engine, rather than by the one that has its pages.

    Leaving costs a prefill of the whole history. Staying costs little while the batch has room: a decode step mostly
    reads the weights, once for all rows. So a conversation leaves if it would wait for a place that the idlest engine
    has free, or if its home has more than twice the idlest's requests and `PATIENCE` more.
    """
    if home.full and not idlest.full:
        return True
    return home.open > 2 * idlest.open + PATIENCE


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
