"""An OpenAI-compatible server as an `Engine`, and one of embeddings.

Each request has a connection, which is closed if it is cancelled or nobody waits for it any more.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import count

import httpx
import msgspec

from engine.api import (
    DeliveryTimes,
    EngineState,
    Streamer,
    Texts,
    Vectors,
)
from engine.errors import EngineBusy, EngineError, EngineLost, EngineUnavailable, PromptRejected
from engine.messages import (
    PLAIN,
    EngineStatistics,
    ErrorCode,
    Finished,
    FinishReason,
    Message,
    ModelFacts,
    Output,
    Queued,
    ReplySpec,
    Request,
    Retried,
)
from engine.process.supervision import SingleEngine
from engine.served_models import Fleet
from engine.upstream.completions import (
    Completion,
    Tokens,
    UpstreamReply,
    estimated_tokens,
    most_new_tokens,
    seen_tokens,
)
from engine.upstream.http_client import (
    ConcurrencyLimiter,
    RequestRefused,
    UpstreamHttpClient,
    engine_errors,
    http_client,
    read_body,
    refusal_of,
)
from engine.upstream.monitor import UpstreamMonitor, backoff_s
from engine.upstream.options import EmbedderOptions, UpstreamOptions


class UpstreamEngine(SingleEngine):
    """Serves requests by one upstream.

    The upstream is ready once it answers. While it is away requests wait, up to `timeouts.unavailable_s`; then they end with
    EngineUnavailable.
    A request that failed before its first text goes to another engine, if there is one; else it is retried `retries` times,
    then ends with EngineUnavailable, or with EngineBusy at once if the upstream is overloaded.
    """

    def __init__(
        self,
        options: UpstreamOptions,
        *,
        key: str | None = None,
        on_change: Callable[[], None] = lambda: None,
        turned_away: RetryElsewhere = lambda *_: False,
    ) -> None:
        """Take the upstream's options and key. `on_change` is called in each new state of the upstream, and must not raise."""
        self.options = options
        self._client = http_client(options, key)
        self._exchange = UpstreamHttpClient(self._client, options)
        self._turned_away = turned_away
        self.monitor = UpstreamMonitor(self._client, options, on_change)
        self._life = self.monitor.life
        self._open: dict[str, OpenRequest] = {}
        self._arrivals = count()
        self._tasks: asyncio.TaskGroup | None = None
        self._counts: Counter[str] = Counter()  # by their names in `EngineStatistics`
        self._deliveries = DeliveryTimes()
        self._limiter: ConcurrencyLimiter[OpenRequest] = ConcurrencyLimiter(
            options.max_requests, OpenRequest.report_position
        )

    @property
    def open_requests(self) -> int:
        """The number of open requests."""
        return len(self._open)

    def has_open(self, request_id: str) -> bool:
        """Whether a request with this id is open."""
        return request_id in self._open

    async def ready(self, timeout_s: float | None = None) -> ModelFacts:
        """Wait until the upstream answers, for at most `unavailable_s` if it did before. Raises EngineUnavailable."""
        if timeout_s is None and self.facts is not None:
            timeout_s = self.options.timeouts.unavailable_s
        return await self._life.ready(timeout_s)

    async def count_tokens(
        self,
        messages: Sequence[Message],
        *,
        client: str = "",  # noqa: ARG002 - it counts in an order of its own
        spec: ReplySpec = PLAIN,
    ) -> int:
        """Return the prompt's length, counted by the upstream if it can (`features.tokenize`), else estimated.

        Raises PromptRejected; at once, EngineBusy while the upstream has asked for a pause, and EngineUnavailable while its
        circuit is open.
        """
        self._life.refuse_when_over()
        self.monitor.refuse_during_pause()
        if spec.continues and messages and not messages[-1].content:
            raise PromptRejected(
                "An upstream can't continue a reply that has only reasoning.", field="continues"
            )
        estimate = estimated_tokens(messages, self.options.bytes_per_token, spec)
        path = self.options.features.tokenize
        if path is None:
            return estimate
        await self.ready()
        # The upstream does not count images, so they would be sent for nothing.
        unseen = [msgspec.structs.replace(message, images=()) for message in messages]
        seen = seen_tokens(messages)
        try:
            return seen + await self._exchange.count(unseen, spec, path)
        except RequestRefused as refusal:
            if refusal.code is ErrorCode.CONTEXT_OVERFLOW:
                return seen + max(estimate - seen, self.options.context_tokens)
            raise PromptRejected(str(refusal)) from refusal
        except EngineError as error:  # it may serve the request all the same
            log.warning("a prompt's length is estimated, not counted: %s", error)
            return estimate

    def generate(self, request: Request) -> Streamer:
        """Ask for a reply. Raises EngineUnavailable, and ValueError if a request with this id is open."""
        self._life.refuse_when_over()
        if request.request_id in self._open:
            raise ValueError(f"request {request.request_id!r} is still open")
        stream = Streamer(request.request_id, self.cancel, self._deliveries)
        if (most_s := request.params.max_time_s) is not None:
            stream.deadline = asyncio.get_running_loop().time() + most_s
        self.take_over(request, stream)
        return stream

    def take_over(self, request: Request, stream: Streamer, *, fallback: bool = False) -> None:
        """Answer a request through the stream that its reader already has. `fallback`: another engine has failed."""
        stream.redirect(self.cancel, self._deliveries)
        self._counts["fallbacks"] += fallback
        try:
            opened = OpenRequest(request, stream, self.options, next(self._arrivals))
        except PromptRejected as error:
            stream.put_nowait(Finished(request.request_id, FinishReason.ERROR, 0, 0, 0, None, str(error)))
            return
        self._open[request.request_id] = opened
        if self._tasks is not None:
            self._launch(opened, self._tasks)

    def give_up_waiting(self) -> list[tuple[Request, Streamer]]:
        """Give up the requests that were not sent yet, and return them for another engine to answer."""
        waiting = [opened for opened in self._open.values() if not opened.running]
        for opened in waiting:
            self._close(opened)
            if opened.task is not None:
                opened.task.cancel()
        return [(opened.request, opened.stream) for opened in waiting]

    def cancel(self, request_id: str) -> None:
        """End a request at once: its `Finished` is the last output. Its connection is closed at the loop's next turn."""
        opened = self._open.get(request_id)
        if opened is None:
            return
        self._counts["cancels"] += 1
        steps_after = None if opened.running else 0
        self._end(opened, [opened.reply.finished(FinishReason.CANCELLED, steps_after=steps_after)])
        if opened.task is not None:
            opened.task.cancel()

    def statistics(self) -> EngineStatistics:
        """Return the statistics so far, with tokens as the upstream reported them."""
        running = sum(opened.running for opened in self._open.values())
        return EngineStatistics(
            running=running,
            queued=len(self._open) - running,
            circuit_open=self.monitor.circuit.is_open,
            deliveries=self._deliveries.count,
            delivery_seconds=self._deliveries.seconds,
            **self._counts,
        )

    async def run(self) -> None:
        """Serve, and check the upstream, until this is cancelled."""
        try:
            async with self._client, asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                for opened in list(self._open.values()):
                    self._launch(opened, tasks)
                await self._keep_ready()
        finally:
            self._tasks = None
            self._end_all()

    async def _keep_ready(self) -> None:
        """Keep track of whether the upstream serves, until this is cancelled or it has failed for good."""
        await self.monitor.run()

    def _end_all(self, error: type[EngineError] = EngineLost) -> None:
        """End all requests, and accept no more."""
        self._life.stopped()
        for opened in list(self._open.values()):
            self._close(opened)
            opened.stream.fail(error(self.status.message or "The engine is stopped."))

    def _launch(self, opened: OpenRequest, tasks: asyncio.TaskGroup) -> None:
        name = f"reply of {self.options.name}"
        opened.task = tasks.create_task(self._serve(opened), name=name)

    async def _serve(self, opened: OpenRequest) -> None:
        """Serve a request to its end, however it ends."""
        try:
            async with asyncio.timeout_at(opened.stream.deadline):
                await self._answer(opened)
        except TimeoutError:
            self._end(opened, [*opened.reply.rest(), opened.reply.finished(FinishReason.TIMEOUT)])
        except RequestRefused as refusal:
            end = opened.reply.finished(FinishReason.ERROR, error=str(refusal), code=refusal.code)
            self._end(opened, [*opened.reply.rest(), end])
        except EngineError as error:
            self._fail(opened, error)
        except Exception:
            log.exception("a reply of the engine %s failed", self.options.name)
            self._fail(opened, EngineLost(f"The engine {self.options.name} could not be asked."))

    async def _answer(self, opened: OpenRequest) -> None:
        """Ask until there is an answer, as often as allowed. Raises the error of the last attempt."""
        retries = 0
        while (error := await self._attempt(opened)) is not None:
            if self._turned_away(opened.request, opened.stream, error):
                self._close(opened)
                return
            if not isinstance(error, EngineLost) or opened.request.fallbacks:
                raise error
            if retries == self.options.retries:
                raise EngineUnavailable(str(error)) from error
            self._counts["retries"] += 1
            self._count(opened.reply)
            opened.reply, opened.position = reply_to(opened.request, self.options), None
            opened.stream.put_nowait(Retried(opened.request.request_id, elsewhere=False))
            await asyncio.sleep(backoff_s(retries))
            retries += 1

    async def _attempt(self, opened: OpenRequest) -> EngineError | None:
        """Ask once. Returns an error that came before the first text, and raises one that came later."""
        try:
            await self._life.ready(self.options.timeouts.unavailable_s)
            await self._limiter.enter(opened)
            try:
                await self._request(opened)
            finally:
                self._limiter.leave(opened)
        except RequestRefused:
            raise
        except EngineError as error:
            self._counts["shed" if isinstance(error, EngineBusy) else "failures"] += opened.running
            opened.running = False
            if opened.has_text or not self._is_open(opened):
                raise
            return error
        self._end(opened, opened.reply.finish())
        return None

    async def _request(self, opened: OpenRequest) -> None:
        """Send the request, and pass on what comes. Raises EngineError, also if the reply is not whole."""
        with self.monitor.attempt() as circuit:
            opened.running = True
            opened.reply = reply_to(opened.request, self.options)

            def receive(chunk: Completion) -> None:
                for output in opened.reply.take(chunk):
                    opened.stream.put_nowait(output)
                if opened.has_text:
                    circuit.answered()

            try:
                await self._exchange.ask(opened.request, opened.reply, receive)
            except EngineError:
                if not opened.reply.ended:
                    raise

    def _fail(self, opened: OpenRequest, error: EngineError) -> None:
        """End a request with an error, after the text that has come."""
        if self._is_open(opened):  # else the request was cancelled, and closing its connection failed
            self._close(opened)
            for output in opened.reply.rest():
                opened.stream.put_nowait(output)
            opened.stream.fail(error)

    def _is_open(self, opened: OpenRequest) -> bool:
        return self._open.get(opened.request.request_id) is opened

    def _end(self, opened: OpenRequest, outputs: Sequence[Output]) -> None:
        """End a request with these last outputs."""
        if self._is_open(opened):
            self._close(opened)
            for output in outputs:
                opened.stream.put_nowait(output)

    def _close(self, opened: OpenRequest) -> None:
        if self._open.pop(opened.request.request_id, None) is not None:
            self._count(opened.reply)

    def _count(self, reply: UpstreamReply) -> None:
        """Count the tokens of an ended reply, as far as the upstream reported them."""
        self._counts["generated_tokens"] += reply.generated_tokens
        if reply.started:
            self._counts["prompt_tokens"] += max(0, reply.prompt_tokens - reply.cached_tokens)
            self._counts["cached_tokens"] += reply.cached_tokens


class UpstreamFleet(Fleet[UpstreamEngine]):
    """Passes a request that one upstream shed, or lost before its first token, on to the others, to each at most once."""

    def __init__(self, upstreams: Sequence[tuple[UpstreamOptions, str | None]]) -> None:
        """Take the upstreams, two or more, with their keys."""
        super().__init__(
            [
                UpstreamEngine(
                    options,
                    key=key,
                    on_change=partial(self._changed, number),
                    turned_away=partial(self._elsewhere, number),
                )
                for number, (options, key) in enumerate(upstreams)
            ],
            names=[options.name for options, _ in upstreams],
            patience_s=max(options.timeouts.unavailable_s for options, _ in upstreams),
        )

    def _resting(self) -> frozenset[int]:
        return frozenset(
            number for number, engine in enumerate(self._engines) if not engine.monitor.circuit.admits
        )

    def _move_what_waits(self) -> None:
        if self.status.state is not EngineState.READY:
            return
        for engine in self._engines:
            if engine.status.state is not EngineState.READY:
                for request, stream in engine.give_up_waiting():
                    self._engines[self._route(request, self._loads())].take_over(request, stream)

    def _elsewhere(self, number: int, request: Request, stream: Streamer, error: EngineError) -> bool:
        """Let an upstream that has not tried yet answer a request that failed before its first token; False if there is none."""
        stream.tried.add(number)
        loads = {
            other: load
            for other, load in self._loads(without=stream.tried).items()
            if self._engines[other].status.state is EngineState.READY
            and self._engines[other].monitor.circuit.admits
        }
        if not loads:
            return False
        other = self._route(request, loads)
        log.info(
            "the engine %s serves a request after a failure: %s", self._engines[other].options.name, error
        )
        stream.put_nowait(Retried(request.request_id, elsewhere=True))
        self._engines[other].take_over(request, stream, fallback=True)
        return True


RetryElsewhere = Callable[[Request, Streamer, EngineError], bool]
"""Called with a request that failed before its first text; returns whether another engine takes it over."""
log = logging.getLogger(__name__)


class OpenRequest:
    """A request until its end. `running`: the upstream may know it. `position`: the last one reported."""

    def __init__(self, request: Request, stream: Streamer, options: UpstreamOptions, arrival: int) -> None:
        """Take the request, its reader's stream, and the upstream's options. `arrival` counts up. Raises PromptRejected."""
        self.request = request
        self.stream = stream
        self.reply = reply_to(request, options)
        self.client, self.priority, self.arrival = request.client, request.priority, arrival
        self.task: asyncio.Task[None] | None = None
        self.running = False
        self.position: int | None = None

    @property
    def has_text(self) -> bool:
        """Whether any part of the reply has come."""
        return self.reply.generated_tokens > 0

    def report_position(self, position: int) -> None:
        """Report the place in the queue, if it has changed."""
        if position != self.position:
            self.position = position
            self.stream.put_nowait(Queued(self.request.request_id, position))


def reply_to(request: Request, options: UpstreamOptions) -> UpstreamReply:
    """Return the reply to a request, still empty. Raises PromptRejected."""
    estimate = estimated_tokens(request.messages, options.bytes_per_token, request.spec)
    return UpstreamReply(
        request.request_id,
        prompt_tokens=estimate,
        max_new_tokens=most_new_tokens(request.params.max_new_tokens, options, estimate),
        most_tokens=options.context_tokens,
        logprobs=request.params.top_logprobs is not None,
        upstream=options.name,
    )


class InvalidVectors(ValueError):
    """An answer without vectors, or with others than were requested."""


class _One(msgspec.Struct, frozen=True):
    index: int
    embedding: msgspec.Raw


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: Tokens = 0
    total_tokens: Tokens = 0


class _Answer(msgspec.Struct, frozen=True):
    data: list[_One]
    usage: _Usage | None = None


_answer = msgspec.json.Decoder(_Answer).decode
_numbers = msgspec.json.Decoder(list[float]).decode
_encode = msgspec.json.Encoder().encode


async def read_vectors(body: bytes, texts: int, *, packed: bool) -> Vectors:
    """Return the vectors for `texts` texts. Raises InvalidVectors.

    After each vector it yields to the event loop, since converting one takes time.
    """
    try:
        answer = _answer(body)
        found = sorted(answer.data, key=lambda one: one.index)
        if [one.index for one in found] != list(range(texts)):
            raise InvalidVectors(f"{len(found)} vectors for {texts} texts")
        vectors = []
        for one in found:
            vectors.append(encoded_as(one.embedding, packed=packed))
            await asyncio.sleep(0)
    except (msgspec.DecodeError, UnicodeError, RecursionError, struct.error, OverflowError) as error:
        raise InvalidVectors(type(error).__name__) from error
    usage = answer.usage or _Usage()
    return Vectors(tuple(vectors), usage.prompt_tokens or usage.total_tokens)


def encoded_as(vector: msgspec.Raw, *, packed: bool) -> msgspec.Raw:
    """Return a vector in the requested form. Raises the errors of decoders if it is not a list of numbers."""
    numbers = _numbers(vector)
    if not packed:
        return vector
    return msgspec.Raw(_encode(struct.pack(f"<{len(numbers)}f", *numbers)))  # bytes become Base64


MOST_BYTES = 16 * 1024 * 1024
"""The most bytes of an answer: 256 vectors of 2,048 numbers have fewer. With more, the request is refused."""


class _Waiting(msgspec.Struct, eq=False):
    """A request in the queue."""

    client: str
    arrival: int
    priority: int = 0


class UpstreamEmbedder:
    """Embeds texts at an upstream. A lost request is retried `retries` times, since it has no side effects; a late one is not."""

    def __init__(self, options: EmbedderOptions, *, key: str | None = None) -> None:
        self._options = options
        self._client = http_client(options, key)
        self._arrivals = count()
        self._limiter: ConcurrencyLimiter[_Waiting] = ConcurrencyLimiter(
            options.max_requests, lambda *_: None
        )

    @property
    def name(self) -> str:
        """The model's name for clients."""
        return self._options.public_name

    @property
    def max_texts(self) -> int:
        """The most texts of one request."""
        return self._options.max_inputs

    @property
    def takes_dimensions(self) -> bool:
        """Whether a request can choose the length of vectors."""
        return self._options.dimensions

    @asynccontextmanager
    async def running(self) -> AsyncIterator[UpstreamEmbedder]:
        """Serve inside the block; at the block's end no connection is open."""
        async with self._client:
            yield self

    async def embed(self, texts: Texts) -> Vectors:
        """Embed each text. Cancelling the wait cancels the request.

        Raises PromptRejected, EngineBusy, EngineUnavailable.
        """
        waiting = _Waiting(texts.client, next(self._arrivals))
        await self._limiter.enter(waiting)
        try:
            for attempt in range(self._options.retries):
                with suppress(EngineLost):
                    return await self._request(texts)
                await asyncio.sleep(backoff_s(attempt))
            return await self._request(texts)
        except RequestRefused as refusal:
            raise PromptRejected(str(refusal), field="input") from refusal
        except EngineLost as error:
            raise EngineUnavailable(str(error)) from error
        finally:
            self._limiter.leave(waiting)

    async def _request(self, texts: Texts) -> Vectors:
        """Raises EngineLost, EngineUnavailable, RequestRefused, PromptRejected."""
        name = self._options.name
        try:
            async with asyncio.timeout(self._options.timeouts.first_token_s):
                with engine_errors(name):
                    body = await self._answer(texts)
            if len(body) > MOST_BYTES:
                why = "The vectors are too many to be sent at once: send fewer texts."
                raise PromptRejected(why, field="input")
            return await read_vectors(body, len(texts.texts), packed=texts.packed)
        except TimeoutError:
            raise EngineUnavailable(f"The engine {name} made no vectors in time.") from None
        except InvalidVectors as error:
            raise EngineUnavailable(f"The engine {name} answers with no embeddings: {error}.") from error

    async def _answer(self, texts: Texts) -> bytes:
        payload: dict[str, object] = {"model": self._options.model, "input": texts.texts}
        payload["encoding_format"] = "float"
        if texts.dimensions is not None:
            payload["dimensions"] = texts.dimensions
        headers, content = {"Content-Type": "application/json"}, msgspec.json.encode(payload)
        async with self._client.stream("POST", "embeddings", content=content, headers=headers) as response:
            if response.status_code != httpx.codes.OK:
                raise await refusal_of(self._options.name, response)
            return await read_body(response, MOST_BYTES)
