"""Which model answers a turn: the one that is asked for, or one of those behind it where that one can't."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec

from engine.door import Engine
from engine.messages import ModelFacts, Request
from engine.served_models import ServedModel, served_models
from sessions.errors import BadParams, ContextOverflow, EngineDown, Forbidden, ModelNotFound, Overloaded

T = TypeVar("T")


class Answering(msgspec.Struct, frozen=True):
    """The model that is asked, and those that may answer where it fails, the first ones first."""

    model: str = ""
    fallbacks: tuple[str, ...] = ()


class ModelChoice:
    """Knows the models that are served, and how they stand in for each other. It takes aliases, and gives names."""

    def __init__(self, engine: Engine) -> None:
        self._models = served_models(engine)

    @property
    def longest_window(self) -> int | None:
        """Of the models' windows; None where not all are known."""
        models = self._models.models
        windows = [facts.context_tokens for model in models if (facts := model.engine.facts) is not None]
        return max(windows) if len(windows) == len(models) else None

    def named(self, name: str | None, told: Sequence[str] = ()) -> str:
        """The model that a client names; empty where it names none. `told`: the names that it may be told; empty: all.

        Raises ModelNotFound.
        """
        if name is None:
            return ""
        if (found := self._models.find(name)) is None:
            raise ModelNotFound(name, told or [model.name for model in self._models.models])
        return found.name

    def asked(self, named: str | None, *kept: str, only: Sequence[str] = ()) -> str:
        """The model that is asked: one that is named, else the first of those kept that is still served, else the default.

        `only`: those that may be asked, by names or aliases; where no other one does, the first of them that is served.
        Raises ModelNotFound, Forbidden.
        """
        allowed = [model.name for one in only if (model := self._models.find(one)) is not None]
        name = self.named(named, allowed or only)
        if only and (not allowed or (name and name not in allowed)):
            raise Forbidden("This key may not use the model; it may use " + ", ".join(only) + ".")
        if name:
            return name
        served = [name for name in (*kept, self._models.default.name) if self._models.find(name) is not None]
        return next(iter([name for name in served if name in allowed] or allowed or served))

    def facts(self, name: str) -> ModelFacts | None:
        """What is known of a model that is served; None while it is not loaded."""
        found = self._models.find(name)
        return None if found is None else found.engine.facts

    def answering(self, requested: str, chosen: str) -> Answering:
        """Who answers, where a model was asked for and this one was chosen."""
        return Answering(chosen, self._models.standing_in(requested, chosen))

    def serving(self, request: Request) -> list[ServedModel]:
        """The models behind the request's that serve now."""
        return self._models.serving(request.fallbacks)

    def at_once(self, request: Request) -> Request:
        """The request, which ends at once where it can't be served, if another model serves now."""
        now = tuple(model.name for model in self.serving(request))
        return msgspec.structs.replace(request, fallbacks=now)

    async def first_that_can(self, requested: str, attempt: Callable[[ServedModel], Awaitable[T]]) -> T:
        """What the model gives, or the first behind it that can; it is waited for where none serves. Raises as `attempt` does."""
        trouble: Overloaded | EngineDown | None = None
        for model in self._models.serving((requested, *self._models.standing_in(requested))):
            try:
                return await attempt(model)
            except (Overloaded, EngineDown) as refused:
                trouble = trouble or refused
            except (BadParams, ContextOverflow):
                if model.name == requested:
                    raise
        if trouble is not None:
            raise trouble
        return await attempt(self._models.named(requested))
