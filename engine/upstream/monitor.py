"""Keeps track of whether an upstream takes requests, by checks, and by its answers to requests; lists a server's models."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec

from engine.api import EngineState, Runnable
from engine.errors import EngineBusy, EngineError, EngineUnavailable
from engine.messages import ModelFacts, Params
from engine.process.supervision import Lifecycle
from engine.upstream.completions import MOST_TOKENS, decoded
from engine.upstream.http_client import RequestRefused, UpstreamUnreachable, fetch, http_client
from engine.upstream.options import ServerOptions, UpstreamOptions


class UpstreamMonitor(Runnable):
    """`life` is READY while the upstream answers. `circuit` is open if it failed too often, or has asked for a pause."""

    def __init__(
        self, client: httpx.AsyncClient, options: UpstreamOptions, on_change: Callable[[], None]
    ) -> None:
        """Take a client for the upstream. `on_change` is called in each new state, and must not raise."""
        self.life = Lifecycle(on_change)
        self.note_away = self.life.died
        self._client = client
        self.options = options
        self._misses = 0
        self.circuit = Circuit(monotonic, random.random)
        self._look = asyncio.Event()

    def refuse_during_pause(self) -> None:
        """Raise EngineBusy while the upstream has asked for a pause, EngineUnavailable while its circuit is open."""
        if self.circuit.admits:
            return
        name, left_s = self.options.name, max(self.circuit.left_s, SHORTEST_PAUSE_S)
        if self.circuit.requested:
            raise EngineBusy(f"The engine {name} takes no more requests now.", retry_after_s=left_s)
        raise EngineUnavailable(f"The engine {name} failed too often.", retry_after_s=left_s)

    def forget(self) -> None:
        """Forget failures and pauses: another process answers from now on."""
        self._misses = 0
        self.circuit.succeeded()

    @contextmanager
    def attempt(self) -> Iterator[Circuit]:
        """Watch a request to its end. Raises as `refuse_during_pause` does, before the block."""
        self.refuse_during_pause()
        self.circuit.begin()
        try:
            yield self.circuit
        except RequestRefused as refusal:
            log.warning("the engine %s refused a request: %s %s", self.options.name, refusal, refusal.words)
            self.circuit.succeeded()
            raise
        except EngineError as error:
            self._note(error)
            raise
        except BaseException:  # the request was cancelled
            self.circuit.withdrew()
            raise
        self.circuit.succeeded()

    async def run(self) -> None:
        """Check the upstream at intervals until this is cancelled. While checks fail the pauses grow from a short one."""
        health_s = self.options.timeouts.health_s
        while True:
            trouble = await health_error(self._client, self.options)
            if trouble is None:
                self._misses, pause_s = 0, health_s
                if not self._is_ready:
                    log.info("the engine %s is ready", self.options.name)
                    self.life.loaded(_facts_of(self.options))
            else:
                pause_s = backoff_s(self._misses, min(LONGEST_PAUSE_S, health_s))
                self._misses += 1
                if not self._is_ready:
                    self.life.loading("waiting for an upstream", 0.0, trouble)
                elif self._misses >= MISSES:
                    self._went_away(trouble)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._look.wait()
            self._look.clear()

    def _note(self, error: EngineError) -> None:
        """Act on what a request's failure reveals about the upstream."""
        log.warning("%s", error)
        match error:
            case UpstreamUnreachable():
                self.circuit.withdrew()
                if self._is_ready:
                    self._went_away(str(error))
                    self._look.set()
            case EngineBusy():
                self.circuit.withdrew()
                if error.retry_after_s:
                    self.circuit.rest(error.retry_after_s)
            case _:
                self._fail()

    def _fail(self) -> None:
        was_open = self.circuit.is_open
        self.circuit.failed()
        if self.circuit.is_open and not was_open:
            log.warning("circuit opened for engine %s", self.options.name)

    @property
    def _is_ready(self) -> bool:
        return self.life.status.state is EngineState.READY

    def _went_away(self, why: str) -> None:
        log.warning("engine %s unreachable: %s", self.options.name, why)
        self.note_away(why)


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
        self.requested = False
        """Whether it is open since the upstream asked for that."""

    @property
    def is_open(self) -> bool:
        """Whether the circuit is open: at most a trial request may begin."""
        return self._failures >= FAILURES

    @property
    def admits(self) -> bool:
        """Whether a request may begin. An open circuit admits one at a time, once its pause has passed."""
        return not self.is_open or (self.left_s == 0 and not self._trial)

    @property
    def left_s(self) -> float:
        """The seconds until a trial request may begin."""
        return max(0.0, self._until - self._clock())

    def begin(self) -> None:
        """Note that an admitted request is sent."""
        self._trial = self.is_open and self.left_s == 0

    def answered(self) -> None:
        """Note that a reply began. The next failure still opens the circuit again."""
        if self.is_open and self.left_s == 0:
            self._trial = False
            self._failures = FAILURES - 1

    def succeeded(self) -> None:
        """Note that a request succeeded."""
        self._trial = self.requested = False
        self._failures = 0
        self.opened = 0

    def withdrew(self) -> None:
        """Note that a request ended without a result: it was cancelled, or shed."""
        self._trial = False

    def rest(self, seconds: float) -> None:
        """Open for `seconds`, since the upstream asked for that; then one request tries."""
        self._trial, self.requested = False, True
        self._failures = FAILURES
        self._until = max(self._until, self._clock() + seconds)

    def failed(self) -> None:
        """Note a failure. After `FAILURES` in a row the circuit opens, for longer each time."""
        self._trial = False
        if self.is_open and self.left_s > 0:
            return  # the request began before the circuit opened
        self._failures = min(self._failures + 1, FAILURES)
        if self._failures == FAILURES:
            longest = min(FIRST_OPEN_S * 2.0**self.opened, LONGEST_OPEN_S)
            self.opened = min(self.opened + 1, 16)
            self._until = self._clock() + longest * (0.5 + self._random() / 2)


FIRST_PAUSE_S = 0.25

LONGEST_PAUSE_S = 15.0
"""The longest pause between two checks of an upstream that does not serve."""

MISSES = 2
"""Consecutive checks that may fail before a serving upstream counts as away."""

FAILURES = 5
"""Failures in a row that open a circuit."""
FIRST_OPEN_S = 1.0

LONGEST_OPEN_S = 30.0
"""Seconds that a circuit stays open at most; `FIRST_OPEN_S`: the first time."""

SHORTEST_PAUSE_S = 1.0
"""The least time after which clients of an open circuit are told to retry."""
log = logging.getLogger(__name__)


class _ListedModel(msgspec.Struct, frozen=True):
    """A model as servers list it. vLLM and Midstream report `max_model_len`, OpenRouter `context_length`."""

    id: str
    owned_by: str | None = None
    max_model_len: int | float | None = None
    context_length: int | float | None = None


class _Models(msgspec.Struct, frozen=True):
    data: tuple[_ListedModel, ...] | None


def _models_in(body: bytes) -> tuple[_ListedModel, ...]:
    return msgspec.json.decode(body, type=_Models).data or ()


async def health_error(client: httpx.AsyncClient, options: UpstreamOptions) -> str | None:
    """Ask an upstream for its models; return why it does not serve ours, or None."""
    try:
        response, body = await fetch(client, "GET", options.health, within_s=options.timeouts.connect_s)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return f"The engine {options.name} can't be reached ({type(error).__name__})."
    if response.status_code == httpx.codes.TOO_MANY_REQUESTS:
        return None  # it is alive, but overloaded
    if response.status_code != httpx.codes.OK:
        return f"The engine {options.name} answers {response.status_code} to GET {options.health}."
    listed = decoded(_models_in, body)  # if this is not OpenAI's list, any answer has to do
    names = {model.id for model in listed or ()}
    if names and options.model not in names:
        return f"The engine {options.name} does not serve {options.model!r}."
    return None


async def context_window(client: httpx.AsyncClient, options: UpstreamOptions) -> int | None:
    """Ask an upstream for its model's window; None if the upstream does not answer yet, or does not report it."""
    try:
        _, body = await fetch(client, "GET", "models", within_s=options.timeouts.connect_s)
    except httpx.HTTPError:
        return None
    models = decoded(_models_in, body) or ()
    if options.model not in {model.id for model in models}:
        return None
    windows = (int(model.max_model_len or 0) for model in models)  # vLLM's adapters have none
    return next((window for window in windows if 0 < window <= MOST_TOKENS), None)


def backoff_s(attempt: int, longest_s: float = LONGEST_PAUSE_S) -> float:
    """Return the pause after this attempt, counted from 0: each about twice the one before, different between replicas."""
    return min(FIRST_PAUSE_S * 2.0 ** min(attempt, 16), longest_s) * (0.5 + random.random() / 2)


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


LIST_S = 10.0
"""How long a server may take to list its models."""
UNKNOWN_WINDOW = 4096
"""Tokens of context of a model whose server does not report it."""
_SERVERS = {
    "vllm": "vllm",
    "sglang": "sglang",
    "llamacpp": "llama-server",
    "library": "ollama",
    "midstream": "midstream",
    "openai": "openai",
    "system": "openai",
}
"""Kinds of servers, by what each writes into `owned_by` of its models."""


class ListingFailed(Exception):
    """A server's models are not known. The message is for the operator."""


class ServerAway(ListingFailed):
    """The server does not answer."""


class _LlamaSettings(msgspec.Struct, frozen=True):
    n_ctx: int | None = None


class _LlamaServer(msgspec.Struct, frozen=True):
    """What llama-server reports of itself. `n_ctx` is the window that each of its slots has."""

    default_generation_settings: _LlamaSettings


def listed_models(url: str, *, key: str | None, key_variable: str) -> list[dict[str, Any]]:
    """Return an operator's table (`UpstreamOptions`) for each model of a server. Raises ListingFailed.

    `url`: with its base path; `key_variable`: the environment variable of the key, as the tables name it. Not for an event
    loop's thread.
    """
    try:
        response, body, slot = asyncio.run(_listed(url, key))
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        why = str(error) or type(error).__name__
        raise ServerAway(f"{url} does not answer: {why}. Is it running there?") from error
    if response.status_code in {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN}:
        raise ListingFailed(
            f"{url} answers {response.status_code}: give its API key in the variable {key_variable}."
        )
    if response.status_code != httpx.codes.OK:
        raise ListingFailed(
            f"{url}/models answers {response.status_code}. The URL needs its base path, which is usually /v1."
        )
    if (listed := decoded(_models_in, body)) is None:
        raise ListingFailed(f"{url}/models is not a list of models.")
    models = tuple({model.id: model for model in listed}.values())
    if not models:
        raise ListingFailed(f"{url} lists no models.")
    windows = [slot or model.max_model_len or model.context_length for model in models]
    largest = max(
        (window for window in windows if window), default=None
    )  # vLLM's adapters have none of their own
    if largest is None:
        log.warning(
            "%s does not report the context of its models: %d tokens are assumed", url, UNKNOWN_WINDOW
        )
    return [
        _table(
            url, model, int(window or largest or UNKNOWN_WINDOW), key_variable=key_variable if key else None
        )
        for model, window in zip(models, windows, strict=True)
    ]


async def _listed(url: str, key: str | None) -> tuple[httpx.Response, bytes, int | None]:
    """Return a server's answer with its models, and the window of llama-server's slots. Raises httpx.HTTPError."""
    async with http_client(ServerOptions(name=url, url=url, model=""), key) as client:
        response, body = await fetch(client, "GET", "models", within_s=LIST_S)
        slot: int | None = None
        if b"llamacpp" in body:
            _, props = await fetch(client, "GET", f"{url.removesuffix('/v1')}/props", within_s=LIST_S)
            if (server := decoded(msgspec.json.Decoder(_LlamaServer).decode, props)) is not None:
                slot = server.default_generation_settings.n_ctx
        return response, body, slot


def _table(url: str, model: _ListedModel, window: int, *, key_variable: str | None) -> dict[str, Any]:
    table: dict[str, Any] = {
        "name": f"{urlsplit(url).netloc} {model.id}",
        "url": url,
        "model": model.id,
        "context_tokens": window,
    }
    if (server := _SERVERS.get(model.owned_by or "")) is not None:
        table["server"] = server
    if key_variable is not None:
        table["key_variable"] = key_variable
    return table
