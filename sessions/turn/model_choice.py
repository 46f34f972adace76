"""Chooses the model of a turn: the requested one, or one of its fallbacks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec

from engine.api import Engine
from engine.messages import ModelFacts, Request
from engine.reply_spec import Translation
from engine.served_models import ServedModel, served_models
from sessions.errors import BadParams, ContextOverflow, EngineDown, Forbidden, ModelNotFound, Overloaded
from sessions.interpreting.languages import has_languages
from sessions.records import Interpreting

T = TypeVar("T")
TranslationTask = Interpreting | Translation
"""What is translated while it grows, by any model that goes on with a reply; or at once, by models that do nothing else."""


class ModelRoute(msgspec.Struct, frozen=True):
    """The requested model and its fallbacks, in order."""

    model: str = ""
    fallbacks: tuple[str, ...] = ()


class ModelChoice:
    """Knows the served models and their fallbacks. It takes aliases, and returns names."""

    def __init__(self, engine: Engine) -> None:
        self._models = served_models(engine)

    @property
    def longest_window(self) -> int | None:
        """Return the largest window of the models; None if not all are known."""
        models = self._models.models
        windows = [facts.context_tokens for model in models if (facts := model.engine.facts) is not None]
        return max(windows) if len(windows) == len(models) else None

    @property
    def takes_images(self) -> bool:
        """Whether a model takes images, or may once it is loaded."""
        known = [model.engine.facts for model in self._models.models]
        return any(facts is None or "images" in facts.features for facts in known)

    def named(self, name: str | None, listed: Sequence[str] = ()) -> str:
        """Return the model that a client names; empty if it names none. `listed`: the names that an error may list; empty: all.

        Raises ModelNotFound.
        """
        if name is None:
            return ""
        if (found := self._models.find(name)) is None:
            raise ModelNotFound(name, listed or [model.name for model in self._models.models])
        return found.name

    def requested(
        self,
        named: str | None,
        *kept: str,
        only: Sequence[str] = (),
        translates: TranslationTask | None = None,
    ) -> str:
        """Return the requested model: the named one, else the first remembered one that is still served, else the default.

        `only`: the allowed models, by names or aliases; without another choice, the first of them that is served.
        `translates`: what is to be translated. Without a named model, one that has the languages goes before the default, and
        before remembered ones that can't do it. Raises ModelNotFound, Forbidden.
        """
        allowed = [model.name for one in only if (model := self._models.find(one)) is not None]
        name = self.named(named, allowed or only)
        if only and (not allowed or (name and name not in allowed)):
            raise Forbidden("This key may not use the model; it may use " + ", ".join(only) + ".")
        if name:
            return name
        served = [name for name in (*kept, self._models.default.name) if self._models.find(name) is not None]
        if translates is not None:
            able = [name for name in served[:-1] if _supports(self.facts(name), translates)]
            served = [*able, *self._translators(translates), *served]
        return next(iter([name for name in served if name in allowed] or allowed or served))

    def _translators(self, task: TranslationTask) -> list[str]:
        """The models that do nothing but translate, and have the languages; for a plain translation else those that have not: they say so."""
        languages = {
            model.name: facts.languages
            for model in self._models.models
            if (facts := model.engine.facts) is not None
            and facts.languages is not None
            and not model.engine.status.state.is_final
        }
        having = [name for name, known in languages.items() if has_languages(known, task.source, task.target)]
        return having or (list(languages) if isinstance(task, Translation) else [])

    def facts(self, name: str) -> ModelFacts | None:
        """Return the facts of a served model; None while it is not loaded."""
        found = self._models.find(name)
        return None if found is None else found.engine.facts

    def answering(self, requested: str, chosen: str) -> ModelRoute:
        """Return the answering model, for a requested and a chosen one."""
        return ModelRoute(chosen, self._models.fallbacks_of(requested, chosen))

    def serving(self, request: Request) -> list[ServedModel]:
        """Return the fallbacks of the request's model that serve now."""
        return self._models.serving(request.fallbacks)

    def at_once(self, request: Request) -> Request:
        """Return the request, which fails at once if it can't be served and another model serves now."""
        now = tuple(model.name for model in self.serving(request))
        return msgspec.structs.replace(request, fallbacks=now)

    async def first_that_can(self, requested: str, attempt: Callable[[ServedModel], Awaitable[T]]) -> T:
        """Return the result of the model, or of its first fallback that can; wait if none serves. Raises as `attempt` does."""
        trouble: Overloaded | EngineDown | None = None
        for model in self._models.serving((requested, *self._models.fallbacks_of(requested))):
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


def _supports(facts: ModelFacts | None, task: TranslationTask) -> bool:
    """Whether a model can translate that, as far as it is known."""
    if facts is None:
        return True
    if facts.languages is None:
        return isinstance(task, Interpreting) and "continue" in facts.features
    return has_languages(facts.languages, task.source, task.target)
