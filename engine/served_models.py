"""The served models by their names, and several engines of one model behind one interface."""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce
from hashlib import blake2b
from itertools import chain
from typing import Generic, Protocol, TypeVar

import msgspec

from engine.api import Engine, EngineState, EngineStatus, Runnable, Streamer
from engine.errors import EngineError, EngineUnavailable
from engine.machine import EngineOptions
from engine.messages import PLAIN, EngineStatistics, Message, ModelFacts, ReplySpec, Request, current_trace
from engine.process.client import EngineClient
from engine.process.supervision import HeartbeatOptions, RestartPolicy

log = logging.getLogger(__name__)


class ServedModel(msgspec.Struct, frozen=True, kw_only=True):
    """One model. `aliases`: further names; `fallbacks`: names of the models that answer if it can't, in order.

    `chars_per_s`: the default pace of replies; 0: as they are made.
    """

    name: str
    engine: Engine
    aliases: tuple[str, ...] = ()
    fallbacks: tuple[str, ...] = ()
    chars_per_s: float = 0.0


class InvalidModels(ValueError):
    """The models can't be served under these names. The message is for the operator."""


class ServedModels(Runnable):
    """An `Engine` that passes each request to the model that it names, by default the first."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        """Take the models, at least one. Raises InvalidModels: a repeated name, an unknown fallback."""
        self._models = {model.name: model for model in models}
        self._names = {name: model.name for model in models for name in (model.name, *model.aliases)}
        _check(models)

    @property
    def models(self) -> tuple[ServedModel, ...]:
        """All models, the default first."""
        return tuple(self._models.values())

    @property
    def default(self) -> ServedModel:
        """The default model."""
        return self.models[0]

    def find(self, name: str) -> ServedModel | None:
        """Return a model by its name or an alias, or None."""
        found = self._names.get(name)
        return None if found is None else self._models[found]

    def named(self, name: str) -> ServedModel:
        """Return a model by its name or an alias. Raises EngineUnavailable if there is none."""
        model = self.find(name) if name else self.default
        if model is None:
            raise EngineUnavailable(f"The model {name!r} is not served any more.")
        return model

    def fallbacks_of(self, requested: str, after: str | None = None) -> tuple[str, ...]:
        """Return the names of a model's fallbacks: all, or those after one of them."""
        names = self.named(requested).fallbacks
        return names if after is None or after not in names else names[names.index(after) + 1 :]

    def serving(self, names: Iterable[str]) -> list[ServedModel]:
        """Return the models with these names that serve now, in the same order."""
        models = [self.named(name) for name in names]
        return [model for model in models if model.engine.status.state is EngineState.READY]

    @property
    def status(self) -> EngineStatus:
        """The state of the engine that is closest to serving."""
        return status_of([model.engine.status for model in self.models])

    @property
    def facts(self) -> ModelFacts | None:
        """The default model's facts; while they are not known, those of the first loaded model."""
        loaded = (
            model.engine for model in self.models if model.engine.status.state is not EngineState.ASLEEP
        )
        return next((engine.facts for engine in loaded if engine.facts is not None), None)

    @property
    def parts(self) -> tuple[Engine, ...]:
        """The engines of all models, in their order."""
        return tuple(chain.from_iterable(model.engine.parts for model in self.models))

    @property
    def parts_by_model(self) -> Iterator[tuple[str, Engine]]:
        """Each engine with the name of its model."""
        for model in self.models:
            for part in model.engine.parts:
                yield model.name, part

    async def ready(self, timeout_s: float | None = None) -> ModelFacts:
        """Wait until a model is served. Wakes only the default. If none ever is, raises the default's error."""
        awake = [
            model.engine
            for model in self.models
            if model is self.default or model.engine.status.state is not EngineState.ASLEEP
        ]
        waits = [asyncio.ensure_future(engine.ready(timeout_s)) for engine in awake]
        try:
            for wait in asyncio.as_completed(waits):
                try:
                    return await wait
                except EngineError:
                    continue
            return waits[0].result()
        finally:
            for one in waits:
                one.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def count_tokens(
        self, messages: Sequence[Message], *, client: str = "", spec: ReplySpec = PLAIN
    ) -> int:
        """Return a prompt's length for the default model. Raises as its engine does."""
        return await self.default.engine.count_tokens(messages, client=client, spec=spec)

    def generate(self, request: Request) -> Streamer:
        """Ask the model that a request names. Raises as its engine does; EngineUnavailable also if only fallbacks are ready."""
        engine = self.named(request.model).engine
        if request.fallbacks and engine.status.state is not EngineState.READY:
            raise EngineUnavailable(engine.status.message or "The engine is not ready.")
        return engine.generate(msgspec.structs.replace(request, trace=current_trace.get()))

    def statistics(self) -> EngineStatistics:
        """Return the sums of the engines' latest statistics."""
        return reduce(summed, (model.engine.statistics() for model in self.models))

    async def run(self) -> None:
        """Serve until this is cancelled, or no engine can continue."""
        async with asyncio.TaskGroup() as tasks:
            for model in self.models:
                tasks.create_task(_run(model), name=f"model {model.name}")


def served_models(engine: Engine) -> ServedModels:
    """Return an engine's models; a plain engine is one nameless model."""
    return engine if isinstance(engine, ServedModels) else ServedModels([ServedModel(name="", engine=engine)])


async def _run(model: ServedModel) -> None:
    await model.engine.run()
    if model.engine.status.state is EngineState.FAILED:
        log.error("the model %s is not served: %s", model.name, model.engine.status.message)


def _check(models: Sequence[ServedModel]) -> None:
    taken: set[str] = set()
    for name in chain.from_iterable((model.name, *model.aliases) for model in models):
        if name in taken:
            raise InvalidModels(f"two models have the name {name!r}")
        taken.add(name)
    known = {model.name for model in models}
    for model in models:
        for name in model.fallbacks:
            if name not in known:
                raise InvalidModels(f"the fallback {name!r} of {model.name!r} is not a served model")
            if name == model.name or model.fallbacks.count(name) > 1:
                raise InvalidModels(
                    f"{model.name!r} can't have {name!r} as a fallback: it is the model itself, or named twice"
                )


KEPT_ROUTES = 16_384
SLACK = 4
"""A conversation's own engine may have twice the requests of the idlest one, and this many more."""


def ranked(key: str, members: Sequence[str]) -> list[int]:
    """Return the indices of the members, whose names are unique, in the order in which this key prefers them.

    Highest random weight (Thaler and Ravishankar, 1998): a member that comes or leaves moves only its own share.
    """
    pairs = [f"{len(member)}:{member}{key}".encode(errors="surrogatepass") for member in members]
    weights = [blake2b(pair, digest_size=8).digest() for pair in pairs]
    return sorted(range(len(members)), key=lambda place: weights[place], reverse=True)


class Load(msgspec.Struct, frozen=True):
    """The load of one engine: `open` requests, running or waiting, for `places` in its batch."""

    open: int
    places: int

    @property
    def full(self) -> bool:
        """Whether a further request would wait for a place."""
        return self.open >= self.places


class Router:
    """Chooses an engine for each request, and remembers its choice. The conversation silent for longest is forgotten first.

    A conversation without a remembered home goes to the idlest engine, or, if engines have names, to the one that its
    id ranks first. So other replicas, and this one after a restart, choose alike, and a new engine moves few conversations.
    """

    def __init__(self, limit: int = KEPT_ROUTES, *, names: Sequence[str] | None = None) -> None:
        """`limit`: conversations to remember, at least one. `names`: of engines that outlive this process."""
        self._limit = limit
        self._homes: OrderedDict[Hashable, int] = OrderedDict()
        self._kept: Counter[int] = Counter()
        self._names = names

    def route(self, conversation: Hashable | None, loads: Mapping[int, Load]) -> int:
        """Return the number of the engine to use, among those of `loads`, at least one.

        `conversation`: the owner of cached keys and values. None: the request goes to the idlest, and is not remembered.
        """
        idlest = min(loads, key=lambda engine: self._rank(engine, loads[engine]))
        if conversation is None:
            return idlest
        home = self._homes.get(conversation)
        preferred = [idlest if home is None else home]
        if home is None and self._names is not None:
            preferred = ranked(repr(conversation), self._names)
        chosen = next(
            (one for one in preferred if one in loads and not overloaded(loads[one], loads[idlest])), idlest
        )
        self._drop(conversation)
        self._homes[conversation] = chosen
        self._kept[chosen] += 1
        if len(self._homes) > self._limit:
            self._drop(next(iter(self._homes)))
        return chosen

    def forget(self, engine: int) -> None:
        """Note that this engine keeps nothing any more: its process died."""
        for conversation in [known for known, home in self._homes.items() if home == engine]:
            self._drop(conversation)

    def _drop(self, conversation: Hashable) -> None:
        if (home := self._homes.pop(conversation, None)) is not None:
            self._kept[home] -= 1

    def _rank(self, engine: int, load: Load) -> tuple[bool, int, int, int]:
        """Order engines, the idlest first. Among equals the one with fewer conversations is first, to fill memory evenly."""
        return load.full, load.open, self._kept[engine], engine


def overloaded(home: Load, idlest: Load) -> bool:
    """Return whether the idlest engine should take a conversation's next turn, not the one that has its pages.

    Leaving costs a prefill of the whole history. Staying costs little while the batch has room: a decode step mostly
    reads the weights, once for all rows. So a conversation leaves if it would wait for a place that the idlest engine
    has free, or if its home has more than twice the idlest's requests and `SLACK` more.
    """
    if home.full and not idlest.full:
        return True
    return home.open > 2 * idlest.open + SLACK


class Member(Engine, Protocol):
    """An engine that a fleet can have."""

    @property
    def open_requests(self) -> int:
        """The number of open requests."""
        ...

    def has_open(self, request_id: str) -> bool:
        """Whether a request with this id is open."""
        ...


M = TypeVar("M", bound=Member)


class Fleet(Runnable, Generic[M]):
    """Serves requests with several engines, as long as one of them serves."""

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
        """What every engine that has served can do; stays known while they restart."""
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
                        return await self._closest().ready()
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
        engine = self._engines[self._router.route(None, loads)] if loads else self._closest()
        return await engine.count_tokens(messages, client=client, spec=spec)

    def generate(self, request: Request) -> Streamer:
        """Ask for a reply. Raises EngineUnavailable, and ValueError if a request with this id is open."""
        if any(engine.has_open(request.request_id) for engine in self._engines):
            raise ValueError(f"request {request.request_id!r} is still open")
        loads = self._loads()
        engine = self._engines[self._route(request, loads)] if loads else self._closest()
        return engine.generate(request)

    def statistics(self) -> EngineStatistics:
        """Return the sums of the engines' latest statistics; see `parts` for each."""
        return reduce(summed, (engine.statistics() for engine in self._engines))

    async def run(self) -> None:
        """Serve until this is cancelled, or no engine can continue. Leaves neither a process nor a connection."""
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
        return {
            number: Load(engine.open_requests, engine.facts.max_batch if engine.facts else 0)
            for number, engine in chosen
        }

    def _closest(self) -> M:
        """Return the engine that is closest to serving; if none will, one that failed rather than one that was stopped."""
        return min(self._engines, key=lambda engine: distance(engine.status))


def status_of(each: Sequence[EngineStatus]) -> EngineStatus:
    """Return the status of engines that serve as one: that of the engine closest to serving, and the restarts of all."""
    closest = min(each, key=lambda one: (distance(one), -one.progress))
    return msgspec.structs.replace(closest, restarts=sum(one.restarts for one in each))


def distance(status: EngineStatus) -> int:
    """Return how far an engine is from serving, as a number that orders engines."""
    return list(EngineState).index(status.state)


def common_facts(one: ModelFacts, other: ModelFacts) -> ModelFacts:
    """Return the facts that hold for a request, whichever of two engines gets it."""
    devices = dict.fromkeys([*one.device.split(", "), *other.device.split(", ")])
    return msgspec.structs.replace(
        one,
        context_tokens=min(one.context_tokens, other.context_tokens),
        device=", ".join(devices),
        max_batch=one.max_batch + other.max_batch,
        lacks=tuple(dict.fromkeys([*one.lacks, *other.lacks])),
        features=_common(one.features, other.features),
    )


def _common(one: Sequence[str], other: Sequence[str]) -> tuple[str, ...]:
    """Return the common features. Of a whole feature and its part (`format`, `format.regex`) only the part is common."""

    def within(feature: str, features: Sequence[str]) -> bool:
        return feature in features or feature.partition(".")[0] in features

    both = [feature for feature in one if within(feature, other)]
    both += [feature for feature in other if within(feature, one)]
    return tuple(dict.fromkeys(both))


def summed(one: EngineStatistics, other: EngineStatistics) -> EngineStatistics:
    """Return the sums of two engines' statistics."""
    more = msgspec.structs.asdict(other)
    return EngineStatistics(
        **{name: count + more[name] for name, count in msgspec.structs.asdict(one).items()}
    )


class EngineFleet(Fleet[EngineClient]):
    """Processes of one model. Requests that a process has are lost with it; those that wait go to any process that is ready."""

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
        """Log the state as well, since the fleet's status does not show single engines."""
        state = self._engines[number].status.state
        if state is not EngineState.READY and state is not EngineState.STOPPED:
            log.warning("engine %d of %d is %s", number, len(self._engines), state.value)
        super()._changed(number)

    def _move_what_waits(self) -> None:
        target = self._closest()
        if target.status.state.is_final:
            return
        for engine in self._engines:
            if distance(engine.status) > distance(target.status):
                engine.move_waiting_to(target)
