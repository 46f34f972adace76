"""The health of an upstream: checked at intervals, with growing pauses while it does not serve."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Annotated

import httpx
import msgspec
from msgspec import Meta

from engine.upstream.http_client import fetch
from engine.upstream.options import UpstreamOptions
from engine.upstream.wire.chunks import MOST_TOKENS

FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 15.0
"""Between two checks of an upstream that does not serve."""
MISSES = 2
"""Consecutive checks that may fail before a serving upstream counts as away."""
_TOO_MANY = 429


class _Model(msgspec.Struct, frozen=True):
    id: str
    max_model_len: Annotated[int, Meta(ge=1, le=MOST_TOKENS)] | None = None  # vLLM's word for the window


class _Models(msgspec.Struct, frozen=True):
    data: tuple[_Model, ...] = ()


async def health_error(client: httpx.AsyncClient, options: UpstreamOptions) -> str | None:
    """Ask an upstream for its models; return why it does not serve ours, or None."""
    try:
        response, body = await fetch(client, "GET", options.health, within_s=options.timeouts.connect_s)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return f"The engine {options.name} can't be reached ({type(error).__name__})."
    if response.status_code == _TOO_MANY:
        return None  # it is alive, but overloaded
    if response.status_code != httpx.codes.OK:
        return f"The engine {options.name} answers {response.status_code} to GET {options.health}."
    try:
        names = {model.id for model in msgspec.json.decode(body, type=_Models).data}
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None  # not OpenAI's list: an answer has to be enough
    if names and options.model not in names:
        return f"The engine {options.name} does not serve {options.model!r}."
    return None


async def context_window(client: httpx.AsyncClient, options: UpstreamOptions) -> int | None:
    """Ask an upstream for its model's window; None if it does not answer yet, or does not say."""
    try:
        _, body = await fetch(client, "GET", "models", within_s=options.timeouts.connect_s)
        models = msgspec.json.decode(body, type=_Models).data
    except (httpx.HTTPError, msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    if options.model not in {model.id for model in models}:
        return None
    return next((model.max_model_len for model in models if model.max_model_len), None)  # adapters have none


class HealthCheckDelays:
    """The pause before the next check. Pure."""

    def __init__(self, health_s: float, random: Callable[[], float]) -> None:
        """Take the interval of checks while it serves, and a source of numbers from 0 to 1."""
        self._health_s = health_s
        self._random = random
        self._misses = 0

    @property
    def away(self) -> bool:
        """Whether so many consecutive checks failed that the upstream counts as away."""
        return self._misses >= MISSES

    def seen(self) -> float:
        """Note a successful check; return the seconds to the next one."""
        self._misses = 0
        return self._health_s

    def missed(self) -> float:
        """Note a failed check; return the seconds to the next one, which grow and differ between replicas."""
        longest = min(FIRST_PAUSE_S * 2.0**self._misses, LONGEST_PAUSE_S, self._health_s)
        self._misses = min(self._misses + 1, 16)
        return longest * (0.5 + self._random() / 2)


def backoff(times: int, random: Callable[[], float]) -> Iterator[float]:
    """Yield `times` pauses, each about twice the one before. `random`: a source of numbers from 0 to 1. Pure."""
    for attempt in range(times):
        yield min(FIRST_PAUSE_S * 2.0**attempt, LONGEST_PAUSE_S) * (0.5 + random() / 2)


async def wait_for_event(event: asyncio.Event, seconds: float) -> None:
    """Return once the event is set or the time has passed; the event is cleared."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
    event.clear()


FAILURES = 5
"""Failures in a row that open a circuit."""
FIRST_OPEN_S = 1.0
LONGEST_OPEN_S = 30.0
"""How long a circuit stays open the first time, and at most."""


class CircuitState(StrEnum):
    """The state of a circuit breaker."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Circuit:
    """A circuit breaker: records how requests end, and decides whether the next one may begin.

    Each request calls one of `succeeded`, `failed` and `withdrew` at its end. `answered`, at its first text, admits other
    requests again, on probation until one succeeds.
    """

    def __init__(self, clock: Callable[[], float], random: Callable[[], float]) -> None:
        """Take a clock in seconds, and a source of numbers from 0 to 1, so that replicas do not retry at the same moment."""
        self._clock = clock
        self._random = random
        self._failures = 0
        self._until = 0.0
        self._trial = False
        self.opened = 0

    @property
    def state(self) -> CircuitState:
        """The current state."""
        if self._failures < FAILURES:
            return CircuitState.CLOSED
        return CircuitState.OPEN if self._clock() < self._until else CircuitState.HALF_OPEN

    @property
    def admits(self) -> bool:
        """Whether a request may begin."""
        match self.state:
            case CircuitState.CLOSED:
                return True
            case CircuitState.OPEN:
                return False
            case CircuitState.HALF_OPEN:
                return not self._trial

    @property
    def left_s(self) -> float:
        """The seconds until a request may try."""
        return max(0.0, self._until - self._clock())

    def begin(self) -> None:
        """Note that an admitted request is sent."""
        self._trial = self.state is CircuitState.HALF_OPEN

    def answered(self) -> None:
        """Note that a reply began. The next failure still opens the circuit again."""
        if self.state is CircuitState.HALF_OPEN:
            self._trial = False
            self._failures = FAILURES - 1

    def succeeded(self) -> None:
        """Note that a request succeeded."""
        self._trial = False
        self._failures = 0
        self.opened = 0

    def withdrew(self) -> None:
        """Note that a request ended without a result: it was cancelled, or shed."""
        self._trial = False

    def rest(self, seconds: float) -> None:
        """Open for so long, since the upstream asked for it; then one request tries."""
        self._trial = False
        self._failures = FAILURES
        self._until = max(self._until, self._clock() + seconds)

    def failed(self) -> None:
        """Note a failure. After `FAILURES` in a row the circuit opens, for longer each time."""
        self._trial = False
        if self.state is CircuitState.OPEN:
            return  # it began before the circuit opened
        self._failures = min(self._failures + 1, FAILURES)
        if self._failures == FAILURES:
            longest = min(FIRST_OPEN_S * 2.0**self.opened, LONGEST_OPEN_S)
            self.opened = min(self.opened + 1, 16)
            self._until = self._clock() + longest * (0.5 + self._random() / 2)
