"""The content of `ready` for every client: models, limits, lifetimes."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from connections.images import MAX_BYTES, MAX_IMAGES
from connections.protocol.base import EVERYTHING, Grant, Limits, Model, ServerFacts
from connections.protocol.frames import Params
from engine.messages import ModelFacts
from engine.served_models import ServedModel, ServedModels
from sessions.limits.bounds import MAX_FRAME_BYTES

SERVER = "midstream"
LOADING_S = 10.0
UNKNOWN_WINDOW = 2**31 - 1
"""Assumed for a model that is not loaded yet: unsupported requests are refused later."""


_PARAMS = frozenset(Params.__struct_fields__)
_FEATURES = frozenset({"tools", "reasoning", "format", "continue", "images", "translate"})
"""What a model offers beyond text."""


class AdvertisedSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The part that does not need a loaded model."""

    server_version: str
    heartbeat_ms: int
    resume_ttl_s: int
    messages_per_minute: int | None
    max_content_chars: int
    max_turns: int
    max_queued: int
    max_tool_rounds: int
    suggestions: tuple[str, ...] = ()


class ReadyFields(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of `ready` that are the same for all clients."""

    model: str
    models: tuple[Model, ...]
    heartbeat_ms: int
    resume_ttl_s: int
    limits: Limits
    server: ServerFacts
    suggestions: tuple[str, ...] = ()


class ServerInfo:
    """Knows the models once they are loaded."""

    def __init__(self, models: ServedModels, advertised: AdvertisedSettings) -> None:
        self._models = models
        self._advertised = advertised

    @property
    def models(self) -> tuple[ServedModel, ...]:
        """The served models, the default first."""
        return self._models.models

    def models_for(self, grant: Grant) -> tuple[ServedModel, ...]:
        """Return the models that this client may use."""
        if not grant.models:
            return self.models
        allowed = [self._models.find(name) for name in grant.models]
        return tuple(model for model in self.models if model in allowed)

    def model(self, name: str | None) -> ServedModel | None:
        """Return a model by its name or an alias, the default for None; None if there is none."""
        return self._models.default if name is None else self._models.find(name)

    async def ready_fields(self, grant: Grant = EVERYTHING) -> ReadyFields:
        """Return the fields of `ready`; waits a moment as long as no model has been loaded. Raises EngineError."""
        facts = self._models.facts or await self._models.ready(LOADING_S)
        advertised, models = self._advertised, self.models_for(grant)
        return ReadyFields(
            model=next((model.name for model in models), self._models.default.name),
            models=tuple(_model_info(model, [one.name for one in models]) for model in models),
            heartbeat_ms=advertised.heartbeat_ms,
            resume_ttl_s=advertised.resume_ttl_s,
            server=ServerFacts(SERVER, advertised.server_version),
            limits=_limits(advertised, facts.context_tokens, takes_images=any(map(takes_images, models))),
            suggestions=advertised.suggestions,
        )

    async def limits(self, model: ServedModel) -> Limits:
        """Return a model's limits; waits a moment as long as no model has been loaded. Raises EngineError."""
        if self._models.facts is None:
            await self._models.ready(LOADING_S)
        facts = model.engine.facts
        window = UNKNOWN_WINDOW if facts is None else facts.context_tokens
        return _limits(self._advertised, window, takes_images=takes_images(model))


def takes_images(model: ServedModel) -> bool:
    """Return whether a model sees images, or may once it is loaded."""
    return model.engine.facts is None or "images" in model.engine.facts.features


def _limits(advertised: AdvertisedSettings, window: int, *, takes_images: bool) -> Limits:
    return Limits(
        max_frame_bytes=MAX_FRAME_BYTES,
        max_content_chars=advertised.max_content_chars,
        max_new_tokens=window,
        context_tokens=window,
        max_active_turns=advertised.max_turns,
        max_queued_turns=advertised.max_queued,
        messages_per_minute=advertised.messages_per_minute,
        max_tool_rounds=advertised.max_tool_rounds,
        max_images=MAX_IMAGES if takes_images else 0,
        max_image_bytes=MAX_BYTES if takes_images else 0,
    )


def _model_info(model: ServedModel, names: Sequence[str]) -> Model:
    """Describe a model for a client that may use the models of these names."""
    facts: ModelFacts | None = model.engine.facts
    return Model(
        name=model.name,
        aliases=model.aliases,
        context_tokens=None if facts is None else facts.context_tokens,
        unsupported=() if facts is None else tuple(name for name in facts.lacks if name in _PARAMS),
        fallbacks=tuple(name for name in model.fallbacks if name in names),
        features=()
        if facts is None
        else tuple(one for one in facts.features if one.partition(".")[0] in _FEATURES),
    )
