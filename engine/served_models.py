"""The served models by their names for clients, and one interface for their engines."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from functools import reduce
from itertools import chain
from typing import Self

import msgspec

from engine import trace
from engine.api import Engine, EngineState, EngineStatus, OutputStream, running
from engine.errors import EngineError, EngineUnavailable
from engine.fleet import status_of, summed
from engine.messages import EngineStatistics, Message, ModelFacts, Request
from engine.reply_spec import PLAIN, ReplySpec

log = logging.getLogger(__name__)


class ServedModel(msgspec.Struct, frozen=True, kw_only=True):
    """One model. `aliases`: further names; `fallbacks`: names of the models that answer if it can't, in order.

    `chars_per_s`: the pace of replies whose sender names none; 0: as they are made.
    """

    name: str
    engine: Engine
    aliases: tuple[str, ...] = ()
    fallbacks: tuple[str, ...] = ()
    chars_per_s: float = 0.0


class InvalidModels(ValueError):
    """The models can't be served under these names. The message is for the operator."""


class ServedModels:
    """An `Engine` that passes each request to the model that it names, by default the first."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        """Take the models, at least one. Raises InvalidModels if a name is not unique, or unknown."""
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
        """Return those of these models that serve now, in the same order."""
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
        """Wait until a model is served. Wakes only the default. If none will be, raises the error of its engine."""
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

    def generate(self, request: Request) -> OutputStream:
        """Ask the named model. Raises as its engine does; also EngineUnavailable if another model can answer at once."""
        engine = self.named(request.model).engine
        if request.fallbacks and engine.status.state is not EngineState.READY:
            raise EngineUnavailable(engine.status.message or "The engine is not ready.")
        return engine.generate(msgspec.structs.replace(request, trace=trace.current.get()))

    def statistics(self) -> EngineStatistics:
        """Return the sums of the engines' latest statistics."""
        return reduce(summed, (model.engine.statistics() for model in self.models))

    def running(self) -> AbstractAsyncContextManager[Self]:
        """Run the engines inside the block, and stop them at the end."""
        return running(self, "models")

    async def run(self) -> None:
        """Serve until this is cancelled, or no engine can go on."""
        async with asyncio.TaskGroup() as tasks:
            for model in self.models:
                tasks.create_task(_run(model), name=f"model {model.name}")


def served_models(engine: Engine) -> ServedModels:
    """Return an engine's models; an engine without names serves one without a name."""
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
                raise InvalidModels(f"the fallback {name!r} of {model.name!r} is no model that is served")
            if name == model.name or model.fallbacks.count(name) > 1:
                raise InvalidModels(
                    f"{model.name!r} can't have {name!r} as a fallback: it is the model itself, or named twice"
                )
