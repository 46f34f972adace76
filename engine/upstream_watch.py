"""Keeps in mind whether an upstream takes requests: by looks at it, and by how it answers requests."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

import httpx

from engine.door import EngineState
from engine.errors import EngineError, EngineUnavailable
from engine.lifecycle import Lifecycle
from engine.messages import ModelFacts, Params
from engine.upstream_exchange import NotReached
from engine.upstream_health import Pauses, either, trouble_of
from engine.upstream_options import UpstreamOptions

REST_S = 1.0
"""How long an upstream that turned a request away, and did not say for how long, is asked only where no other is."""

log = logging.getLogger(__name__)


class UpstreamWatch:
    """`life` is ready while the upstream answers; it `rests` for a while once it turned a request away."""

    def __init__(
        self, client: httpx.AsyncClient, options: UpstreamOptions, on_change: Callable[[], None]
    ) -> None:
        """Take what is looked at. `on_change` is called, and must not raise, in another state."""
        self.life = Lifecycle(on_change)
        self._client = client
        self._options = options
        self._pauses = Pauses(options.timeouts.health_s, random.random)
        self._look = asyncio.Event()
        self._rests_until = 0.0
        self._asked_to_rest = False

    @property
    def rests(self) -> bool:
        """Whether it turned a request away a moment ago."""
        return asyncio.get_running_loop().time() < self._rests_until

    def refuse_while_asked_to(self) -> None:
        """Raise EngineUnavailable while the upstream asks for no more requests."""
        if self._asked_to_rest and self.rests:
            left_s = self._rests_until - asyncio.get_running_loop().time()
            why = f"The engine {self._options.name} takes no more requests now."
            raise EngineUnavailable(why, retry_after_s=left_s)

    def note(self, error: EngineError) -> None:
        """Act on what the failure of a request says of the upstream."""
        log.warning("%s", error)
        if isinstance(error, NotReached) and self._is_ready:
            self._went_away(str(error))
            self._look.set()
        elif isinstance(error, EngineUnavailable):
            self._asked_to_rest = error.retry_after_s is not None
            rest_s = REST_S if error.retry_after_s is None else error.retry_after_s
            self._rests_until = asyncio.get_running_loop().time() + rest_s

    async def run(self) -> None:
        """Look at the upstream until this is cancelled."""
        while True:
            trouble = await trouble_of(self._client, self._options)
            if trouble is None:
                pause_s = self._pauses.seen()
                self._seen()
            else:
                pause_s = self._pauses.missed()
                self._missed(trouble)
            await either(self._look, pause_s)

    @property
    def _is_ready(self) -> bool:
        return self.life.status.state is EngineState.READY

    def _seen(self) -> None:
        if not self._is_ready:
            log.info("the engine %s is ready", self._options.name)
            self.life.loaded(_facts_of(self._options))

    def _missed(self, trouble: str) -> None:
        if not self._is_ready:
            self.life.loading("waiting for an upstream", 0.0, trouble)
        elif self._pauses.away:
            self._went_away(trouble)

    def _went_away(self, why: str) -> None:
        log.warning("the engine %s is away: %s", self._options.name, why)
        self.life.died(why)


def _facts_of(options: UpstreamOptions) -> ModelFacts:
    return ModelFacts(
        model=options.model,
        context_tokens=options.context_tokens,
        defaults=Params(max_new_tokens=min(options.max_new_tokens, options.context_tokens)),
        device=options.name,
        dtype="upstream",
        max_batch=options.max_requests,
        parameters=0,
    )
