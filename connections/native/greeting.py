"""What every client is told in `ready`: the model, the server's limits, how long things are kept."""

from __future__ import annotations

import msgspec

from connections.limits.limits import MAX_FRAME_BYTES
from connections.wire.frames import Limits, ServerFacts
from engine.door import Engine
from engine.messages import ModelFacts

SERVER = "midstream"
LOADING_S = 10.0


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """The part that is known before the model is loaded."""

    model: str
    server_version: str
    heartbeat_ms: int
    resume_ttl_s: int
    messages_per_minute: int | None
    max_content_chars: int
    max_turns: int
    max_queued: int


class Greeting(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of `ready` that are the same for everybody."""

    model: str
    heartbeat_ms: int
    resume_ttl_s: int
    limits: Limits
    server: ServerFacts


def greeting(offer: Offer, facts: ModelFacts) -> Greeting:
    """What is said once the model is known."""
    return Greeting(
        model=offer.model,
        heartbeat_ms=offer.heartbeat_ms,
        resume_ttl_s=offer.resume_ttl_s,
        server=ServerFacts(SERVER, offer.server_version),
        limits=Limits(
            max_frame_bytes=MAX_FRAME_BYTES,
            max_content_chars=offer.max_content_chars,
            max_new_tokens=facts.context_tokens,
            context_tokens=facts.context_tokens,
            max_active_turns=offer.max_turns,
            max_queued_turns=offer.max_queued,
            messages_per_minute=offer.messages_per_minute,
        ),
    )


class Greeter:
    """Knows the model once it is loaded."""

    def __init__(self, engine: Engine, offer: Offer) -> None:
        self._engine = engine
        self._offer = offer

    @property
    def model(self) -> str:
        """The name of the model that is served."""
        return self._offer.model

    @property
    def context_tokens(self) -> int | None:
        """The model's window; None before it is loaded."""
        facts = self._engine.facts
        return None if facts is None else facts.context_tokens

    async def greeting(self) -> Greeting:
        """What is said; waits a moment for a model that is loading, and never once it was loaded. Raises EngineError."""
        facts = self._engine.facts or await self._engine.ready(LOADING_S)
        return greeting(self._offer, facts)
