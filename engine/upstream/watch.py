"""Keeps track of whether an upstream takes requests, by checks, and by how it answers requests."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

import httpx

from engine.door import EngineState
from engine.errors import EngineBusy, EngineError, EngineUnavailable
from engine.messages import ModelFacts, Params
from engine.process.supervision import Lifecycle
from engine.upstream.errors import RequestRefused
from engine.upstream.exchange import NotReached
from engine.upstream.health import Circuit, CircuitState, Pauses, either, trouble_of
from engine.upstream.options import UpstreamOptions

REST_S = 1.0
"""How long an upstream that shed a request without a `Retry-After` is asked only if there is no other."""

log = logging.getLogger(__name__)


class UpstreamWatch:
    """`life` is ready while the upstream answers. It `rests` for a while after it shed a request."""

    def __init__(
        self, client: httpx.AsyncClient, options: UpstreamOptions, on_change: Callable[[], None]
    ) -> None:
        """Take a client for the upstream. `on_change` is called when it has entered another state; it must not raise."""
        self.life = Lifecycle(on_change)
        self._client = client
        self._options = options
        self._pauses = Pauses(options.timeouts.health_s, random.random)
        self._circuit = Circuit(monotonic, random.random)
        self._look = asyncio.Event()
        self._rests_until = 0.0
        self._asked_to_rest = False

    @property
    def rests(self) -> bool:
        """Whether it shed a request a moment ago, or has failed too often."""
        return self._rest_s > 0 or self.left_alone

    @property
    def left_alone(self) -> bool:
        """Whether it has failed so often that it must not be asked now."""
        return not self._circuit.admits

    @property
    def circuit_open(self) -> bool:
        """Whether it has failed so often that at most a trial request may ask it."""
        return self._circuit.state is not CircuitState.CLOSED

    def refuse_while_it_rests(self) -> None:
        """Raise EngineBusy while the upstream has asked for a pause, EngineUnavailable while it must not be asked."""
        name, left_s = self._options.name, self._rest_s
        if self._asked_to_rest and left_s > 0:
            raise EngineBusy(f"The engine {name} takes no more requests now.", retry_after_s=left_s)
        if self.left_alone:
            left_s = max(self._circuit.left_s, REST_S)
            if self._asked_to_rest:  # another request tries
                raise EngineBusy(f"The engine {name} takes no more requests now.", retry_after_s=left_s)
            raise EngineUnavailable(f"The engine {name} failed too often.", retry_after_s=left_s)

    @contextmanager
    def attempt(self) -> Iterator[Circuit]:
        """Watch a request to its end. Raises EngineUnavailable or EngineBusy before the block if it must not begin."""
        if self.left_alone:
            self.refuse_while_it_rests()
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
            trouble = await trouble_of(self._client, self._options)
            if trouble is None:
                pause_s = self._pauses.seen()
                self._seen()
            else:
                pause_s = self._pauses.missed()
                self._missed(trouble)
            await either(self._look, pause_s)

    @property
    def _rest_s(self) -> float:
        return max(0.0, self._rests_until - asyncio.get_running_loop().time())

    def _note(self, error: EngineError) -> None:
        """Act on what the failure of a request tells about the upstream."""
        log.warning("%s", error)
        match error:
            case NotReached():
                self._circuit.withdrew()
                if self._is_ready:
                    self._went_away(str(error))
                    self._look.set()
            case EngineBusy():
                self._circuit.withdrew()
                self._rest(error.retry_after_s)
            case EngineUnavailable():
                self._fail()
                self._rest(None)
            case _:
                self._fail()

    def _succeed(self) -> None:
        self._circuit.succeeded()
        self._asked_to_rest = False

    def _fail(self) -> None:
        was_open = self.circuit_open
        self._circuit.failed()
        if self.circuit_open and not was_open:
            log.warning("the engine %s failed too often: it is left alone for a while", self._options.name)

    def _rest(self, asked_s: float | None) -> None:
        until = asyncio.get_running_loop().time() + (REST_S if asked_s is None else asked_s)
        if asked_s:
            self._asked_to_rest = True
            self._circuit.rest(asked_s)
        self._rests_until = max(until, self._rests_until)

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
