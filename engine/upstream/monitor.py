"""Keeps track of whether an upstream takes requests, by checks, and by how it answers requests."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

import httpx

from engine.api import EngineState
from engine.errors import EngineBusy, EngineError, EngineUnavailable
from engine.messages import ModelFacts, Params
from engine.process.supervision import Lifecycle
from engine.upstream.errors import RequestRefused
from engine.upstream.health import Circuit, CircuitState, HealthCheckDelays, health_error, wait_for_event
from engine.upstream.http_client import UpstreamUnreachable
from engine.upstream.options import UpstreamOptions

REST_S = 1.0
"""How long an upstream that shed a request without a `Retry-After` is asked only if there is no other."""

log = logging.getLogger(__name__)


class UpstreamMonitor:
    """`life` is ready while the upstream answers. It `cooling_down` for a while after it shed a request."""

    def __init__(
        self, client: httpx.AsyncClient, options: UpstreamOptions, on_change: Callable[[], None]
    ) -> None:
        """Take a client for the upstream. `on_change` is called when it has entered another state; it must not raise."""
        self.life = Lifecycle(on_change)
        self._client = client
        self._options = options
        self._pauses = HealthCheckDelays(options.timeouts.health_s, random.random)
        self._circuit = Circuit(monotonic, random.random)
        self._look = asyncio.Event()
        self._cooldown_until = 0.0
        self._cooldown_requested = False

    @property
    def cooling_down(self) -> bool:
        """Whether it shed a request a moment ago, or has failed too often."""
        return self._cooldown_s > 0 or self.circuit_refuses

    @property
    def circuit_refuses(self) -> bool:
        """Whether it has failed so often that it must not be asked now."""
        return not self._circuit.admits

    @property
    def circuit_open(self) -> bool:
        """Whether it has failed so often that at most a trial request may ask it."""
        return self._circuit.state is not CircuitState.CLOSED

    def refuse_during_cooldown(self) -> None:
        """Raise EngineBusy while the upstream has asked for a pause, EngineUnavailable while it must not be asked."""
        name, left_s = self._options.name, self._cooldown_s
        if self._cooldown_requested and left_s > 0:
            raise EngineBusy(f"The engine {name} takes no more requests now.", retry_after_s=left_s)
        if self.circuit_refuses:
            left_s = max(self._circuit.left_s, REST_S)
            if self._cooldown_requested:  # another request tries
                raise EngineBusy(f"The engine {name} takes no more requests now.", retry_after_s=left_s)
            raise EngineUnavailable(f"The engine {name} failed too often.", retry_after_s=left_s)

    @contextmanager
    def attempt(self) -> Iterator[Circuit]:
        """Watch a request to its end. Raises EngineUnavailable or EngineBusy before the block if it must not begin."""
        if self.circuit_refuses:
            self.refuse_during_cooldown()
        self._circuit.begin()
        try:
            yield self._circuit
        except RequestRefused as refusal:
            log.warning("the engine %s refused a request: %s %s", self._options.name, refusal, refusal.words)
            self._succeed()
            raise
        except EngineError as error:
            self._note(error)
            raise
        except BaseException:  # it was cancelled
            self._circuit.withdrew()
            raise
        self._succeed()

    async def run(self) -> None:
        """Check the upstream at intervals until this is cancelled."""
        while True:
            trouble = await health_error(self._client, self._options)
            if trouble is None:
                pause_s = self._pauses.seen()
                self._seen()
            else:
                pause_s = self._pauses.missed()
                self._missed(trouble)
            await wait_for_event(self._look, pause_s)

    @property
    def _cooldown_s(self) -> float:
        return max(0.0, self._cooldown_until - asyncio.get_running_loop().time())

    def _note(self, error: EngineError) -> None:
        """Act on what the failure of a request tells about the upstream."""
        log.warning("%s", error)
        match error:
            case UpstreamUnreachable():
                self._circuit.withdrew()
                if self._is_ready:
                    self._went_away(str(error))
                    self._look.set()
            case EngineBusy():
                self._circuit.withdrew()
                self._cool_down(error.retry_after_s)
            case EngineUnavailable():
                self._fail()
                self._cool_down(None)
            case _:
                self._fail()

    def _succeed(self) -> None:
        self._circuit.succeeded()
        self._cooldown_requested = False

    def _fail(self) -> None:
        was_open = self.circuit_open
        self._circuit.failed()
        if self.circuit_open and not was_open:
            log.warning("circuit opened for engine %s", self._options.name)

    def _cool_down(self, requested_s: float | None) -> None:
        until = asyncio.get_running_loop().time() + (REST_S if requested_s is None else requested_s)
        if requested_s:
            self._cooldown_requested = True
            self._circuit.rest(requested_s)
        self._cooldown_until = max(until, self._cooldown_until)

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
        log.warning("engine %s unreachable: %s", self._options.name, why)
        self.life.died(why)


def _facts_of(options: UpstreamOptions) -> ModelFacts:
    return ModelFacts(
        model=options.public_name,
        context_tokens=options.context_tokens,
        defaults=Params(max_new_tokens=min(options.max_new_tokens, options.context_tokens)),
        device=options.name,
        dtype="upstream",
        max_batch=options.max_requests,
        parameters=0,
        lacks=options.features.lacks,
        features=options.features.of_specs,
    )
