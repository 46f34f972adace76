"""Requests to an upstream over HTTP: limits on their number, sending, answers by chunks and in time, errors.

Cancelling a request closes its connection, which tells an upstream to stop. Shed (429, 503, 529): EngineBusy. The operator's
fault (401, 403, 404, redirects): EngineUnavailable. The request's fault (other 4xx, except 408, 409, 425): RequestRefused.
Everything else is the server's failure: EngineLost.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from typing import Annotated, Any, Generic, TypeVar

import httpx
import msgspec
from msgspec import Meta

from engine.errors import EngineBusy, EngineError, EngineLost, EngineUnavailable
from engine.fair_queue import Running, Waiting, WaitingQueue
from engine.messages import ErrorCode, Message, ReplySpec, Request
from engine.upstream.completions import (
    MOST_TOKENS,
    Completion,
    UpstreamReply,
    body_of,
    decoded,
    prompt_of,
    session_of,
)
from engine.upstream.options import ServerOptions, UpstreamOptions


class UpstreamHttpClient:
    """Sends requests to one upstream."""

    def __init__(self, client: httpx.AsyncClient, options: UpstreamOptions) -> None:
        self._client = client
        self._options = options

    async def ask(
        self,
        request: Request,
        reply: UpstreamReply,
        on_chunk: OnChunk,
        on_sent: Callable[[], None],
    ) -> None:
        """Pass the chunks of the answer to `on_chunk`, up to the end of `reply`. `on_sent` is called when sending begins.

        Raises EngineLost, also if the stream ends before the reply; EngineUnavailable, RequestRefused, EngineBusy.
        """
        options = self._options

        async def trace(step: str, _: object) -> None:
            """See httpcore's extension "trace"."""
            if step.endswith(".send_request_headers.started"):
                on_sent()

        http_request = self._client.build_request(
            "POST",
            "chat/completions",
            content=_encoder.encode(body_of(request, options, reply.max_new_tokens)),
            headers={
                "Content-Type": "application/json",
                "Accept": "text/event-stream",
                **session_headers(request, options.features.affinity_header),
                **request.trace.headers,
            },
            extensions={"trace": trace},
        )
        listening = _ResponseReader(options, reply, on_chunk)
        with engine_errors(options.name):
            response = await listening.in_time(self._client.send(http_request, stream=True))
            try:
                if response.status_code != httpx.codes.OK:
                    raise await listening.in_time(refusal_of(options.name, response))
                await listening.read_to_end(response)
            finally:
                await response.aclose()

    async def count(self, messages: Sequence[Message], spec: ReplySpec, path: str) -> int:
        """Return a prompt's length as the upstream's tokenizer counts it. Raises as `ask` does."""
        options = self._options
        payload = {"model": options.model, "add_generation_prompt": True}
        payload |= prompt_of(messages, spec, options.features)
        with engine_errors(options.name):
            response, body = await fetch(
                self._client,
                "POST",
                path,
                within_s=options.timeouts.connect_s,
                content=_encoder.encode(payload),
            )
        if response.status_code != httpx.codes.OK:
            raise _error(options.name, response, body)
        if (counted := decoded(_tokenized, body)) is None:
            raise EngineLost(f"The engine {options.name} does not count tokens at {path}.")
        return counted.count


def http_client(options: ServerOptions, key: str | None) -> httpx.AsyncClient:
    """Return a client for one upstream. Its settings come only from the options, none from the environment."""
    headers = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {key}"} if key else {})
    times = options.timeouts
    return httpx.AsyncClient(
        base_url=options.url.rstrip("/") + "/",
        headers=headers,
        timeout=httpx.Timeout(times.first_token_s, connect=times.connect_s, read=None),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
        verify=ssl.create_default_context(cafile=options.ca_file) if options.ca_file else True,
        trust_env=False,
        event_hooks={"response": [_refuse_compressed]},
    )


_SHED = {429, 503, 529}
_OPERATORS = {401: "refuses our key", 403: "refuses our key", 404: "does not know the model or the path"}
_SERVER_FAILED = 500
_LATE = {408, 409, 425}
_OVERFLOW = re.compile(
    r"context[ _]?(length|window|size)|maximum (context|sequence|model)|exceeds? (the )?(available|max\w*|model)"
    r"|prompt is too long|input (is )?too long|longer than the (model|maximum)",
    re.IGNORECASE,
)

LONGEST_REST_S = 60.0
"""The longest pause that an upstream is granted; then one request tries."""
_FAILURE = re.compile(r"[45]\d\d", re.ASCII)
_LONGEST_WORDS = 200
_SECONDS = re.compile(r"\d{1,9}(\.\d{1,9})?")
MOST_BYTES = 1 << 20
_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"

AFTER_END_S = 2.0
"""Seconds to wait for the totals after the finish reason."""

_DONE = "[DONE]"
_MOST_COMPLAINT = 64 * 1024
_MOST_FETCHED = 1024 * 1024
W = TypeVar("W", bound=Waiting)
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Completion)
T = TypeVar("T")


class RequestRefused(EngineError):
    """The upstream refuses the request, and will refuse it again."""

    def __init__(self, code: ErrorCode, message: str, words: str = "") -> None:
        """Take the kind of fault, and our own sentence for the sender: an upstream's may quote keys, addresses and texts.

        `words`: the upstream's codes and types, for the log.
        """
        super().__init__(message)
        self.code = code
        self.words = words[:_LONGEST_WORDS]


class UpstreamErrorBody(msgspec.Struct, frozen=True):
    """An upstream's error: its text, and its codes and types, if it has any."""

    message: str = ""
    words: str = ""
    status: int | None = None

    @property
    def is_overflow(self) -> bool:
        """Whether the prompt was longer than the window."""
        return _OVERFLOW.search(f"{self.words} {self.message}") is not None


def error_body_in(error: Any) -> UpstreamErrorBody:
    """Read an error as OpenAI-compatible servers write it: an object, one inside `error` or `detail`, or a text."""
    while isinstance(error, dict) and (inner := error.get("error", error.get("detail"))) is not None:
        error = inner
    match error:
        case {"message": str(message)}:
            code = error.get("code")
            status = int(code) if _FAILURE.fullmatch(str(code)) else None
            return UpstreamErrorBody(message, f"{error.get('type') or ''} {code or ''}", status)
        case str(message):
            return UpstreamErrorBody(message)
        case _:
            return UpstreamErrorBody()


def parse_error_body(body: bytes) -> UpstreamErrorBody:
    """Read the body of an answer that is not 200."""
    read = decoded(msgspec.json.decode, body)
    return UpstreamErrorBody(body.decode(errors="replace")) if read is None else error_body_in(read)


def error_for(
    name: str, status: int, complaint: UpstreamErrorBody, retry_after_s: float | None = None
) -> EngineError:
    """Return the error for an answer of this status; `name`: the upstream's."""
    if status in _SHED:
        return EngineBusy(f"The engine {name} takes no more requests now.", retry_after_s=retry_after_s)
    if status in _OPERATORS:
        return EngineUnavailable(f"The engine {name} {_OPERATORS[status]} ({status}).")
    if status >= _SERVER_FAILED or status in _LATE:
        return EngineLost(f"The engine {name} failed ({status}).")
    if status < 400:  # noqa: PLR2004 - the border of HTTP's errors
        return EngineUnavailable(f"The engine {name} answers {status}: its URL is wrong.")
    if complaint.is_overflow:
        return RequestRefused(ErrorCode.CONTEXT_OVERFLOW, "The prompt is longer than the model's window.")
    return RequestRefused(
        ErrorCode.BAD_PARAMS,
        f"The model's server refuses the request ({status}). It may not support one of the parameters, tools or messages.",
        complaint.words,
    )


def error_inside(name: str, error: Any) -> EngineError:
    """Return the error for an error event in a stream."""
    complaint = error_body_in(error)
    if complaint.is_overflow:
        return error_for(name, 400, complaint)
    return error_for(name, complaint.status or _SERVER_FAILED, complaint)


def retry_after(header: str | None, now: float) -> float | None:
    """Return the seconds of a `Retry-After` (RFC 9110, 10.2.3); None if it can't be read. `now`: Unix time."""
    if not header:
        return None
    if _SECONDS.fullmatch(header):
        seconds = float(header)
    else:
        try:
            seconds = parsedate_to_datetime(header).timestamp() - now
        except (ValueError, OverflowError):
            return None
    return min(max(seconds, 0.0), LONGEST_REST_S)


class EventTooLong(ValueError):
    """An event has more bytes than the reader takes."""


class ServerSentEvent(msgspec.Struct, frozen=True):
    """One event: its lines of data, joined by newlines, and its kind, which is empty if it has none."""

    data: str
    kind: str = ""


class EventReader:
    """Reads one stream. Comments, ids and retry times are ignored. Bytes that are not UTF-8 become U+FFFD."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        """`most_bytes`: the most bytes of one event."""
        self._most_bytes = most_bytes
        self._line = bytearray()
        self._lines: list[bytes] = []
        self._kind = b""
        self._size = 0
        self._after_return = False
        self._first = True

    def feed(self, received: bytes) -> list[ServerSentEvent]:
        """Take the next bytes; return the events that became complete. Raises EventTooLong."""
        if received and self._after_return:
            received = received.removeprefix(b"\n")
            self._after_return = False
        if not received:
            return []
        self._after_return = received.endswith(b"\r")
        *ended, rest = _LINE_END.split(received)
        events: list[ServerSentEvent] = []
        for part in ended:
            self._extend_line(part)
            events += self._end_line()
        self._extend_line(rest)
        return events

    def end(self) -> list[ServerSentEvent]:
        """Return the last event, if the stream ended without an empty line after it, as some servers do."""
        return [*self._end_line(), *self._end_event()]

    def _extend_line(self, part: bytes) -> None:
        self._line += part
        self._size += len(part)
        if self._size > self._most_bytes:
            raise EventTooLong(f"A server-sent event has more than {self._most_bytes} bytes.")

    def _end_line(self) -> list[ServerSentEvent]:
        line = bytes(self._line)
        self._line.clear()
        if self._first:
            self._first = False
            line = line.removeprefix(_BOM)
        if not line:
            return self._end_event()
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        match name:
            case b"data":
                self._lines.append(value)
            case b"event":
                self._kind = value
            case _:
                self._size -= len(line)  # the line is not kept, so a server may send comments without end
        return []

    def _end_event(self) -> list[ServerSentEvent]:
        lines, kind = self._lines, self._kind
        self._lines, self._kind, self._size = [], b"", 0
        if not lines:
            return []
        return [ServerSentEvent(b"\n".join(lines).decode(errors="replace"), kind.decode(errors="replace"))]


class ConcurrencyLimiter(Generic[W]):
    """Limits how many requests run at once. Through `on_position` a waiting one gets its place, from 1, at each change."""

    def __init__(self, limit: int, on_position: Callable[[W, int], None]) -> None:
        """Take the limit, at least one."""
        self._limit = limit
        self._on_position = on_position
        self._queue: WaitingQueue[W] = WaitingQueue()
        self._granted: dict[int, asyncio.Future[None]] = {}
        self._running = Running()

    @property
    def running(self) -> int:
        """The number of requests with a place."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """The number of waiting requests."""
        return len(self._queue)

    async def enter(self, one: W) -> None:
        """Wait for a place, which `leave` gives back."""
        if self.running < self._limit and not self.waiting:
            self._running.add(one.client)
            return
        granted = self._granted[one.arrival] = asyncio.get_running_loop().create_future()
        self._queue.add(one)
        self._report_positions()
        try:
            await granted
        except asyncio.CancelledError:
            if not granted.cancelled():
                self._running.remove(one.client)  # the place was granted at the same moment
            raise
        finally:
            del self._granted[one.arrival]
            if one in self._queue:
                self._queue.remove(one)
                self._report_positions()
            self._fill()

    def leave(self, one: W) -> None:
        """Give a place back, to the next request."""
        self._running.remove(one.client)
        self._fill()

    def _fill(self) -> None:
        """Admit requests while there is room."""
        while self.waiting and self.running < self._limit:
            first = self._queue.first(self._running)
            self._queue.remove(first)
            granted = self._granted[first.arrival]
            if not granted.done():
                self._running.add(first.client)
                granted.set_result(None)
            self._report_positions()

    def _report_positions(self) -> None:
        for position, one in enumerate(self._queue.in_order(self._running), start=1):
            self._on_position(one, position)


OnChunk = Callable[[Completion], None]


class UpstreamUnreachable(EngineLost):
    """There was no connection, so nothing of the request has arrived anywhere."""


class _Tokenized(msgspec.Struct, frozen=True):
    count: Annotated[int, Meta(ge=0, le=MOST_TOKENS)]


_tokenized = msgspec.json.Decoder(_Tokenized).decode


async def _refuse_compressed(response: httpx.Response) -> None:
    """Raise DecodingError for a compressed answer, which was not requested: the bytes received don't bound its size."""
    if response.headers.get("Content-Encoding", "identity").strip().lower() not in ("", "identity"):
        raise httpx.DecodingError("compressed, though identity was asked for", request=response.request)


async def read_body(response: httpx.Response, most: int) -> bytes:
    """Return an answer's body, or, if it has more than `most` bytes, a beginning longer than `most`."""
    body = bytearray()
    async for part in response.aiter_bytes():
        body += part
        if len(body) > most:
            break
    return bytes(body)


async def fetch(
    client: httpx.AsyncClient, method: str, path: str, *, within_s: float, content: bytes | None = None
) -> tuple[httpx.Response, bytes]:
    """Request a short answer; return it with its body, of 1 MiB at most. Raises httpx.HTTPError, also if longer or late."""
    headers = {"Content-Type": "application/json"} if content else None
    try:
        async with (
            asyncio.timeout(within_s),
            client.stream(method, path, content=content, headers=headers) as response,
        ):
            body = await read_body(response, _MOST_FETCHED)
    except TimeoutError:
        raise httpx.ReadTimeout("too late") from None
    if len(body) > _MOST_FETCHED:
        raise httpx.DecodingError("too long", request=response.request)
    return response, body


def session_headers(request: Request, header: str | None) -> dict[str, str]:
    """Return the header that keeps a conversation with one replica behind a router."""
    session = session_of(request)
    return {} if header is None or session is None else {header: session}


async def refusal_of(name: str, response: httpx.Response) -> EngineError:
    """Return the error that an answer other than 200 means. `name`: the upstream's."""
    return _error(name, response, await read_body(response, _MOST_COMPLAINT))


def _error(name: str, response: httpx.Response, body: bytes) -> EngineError:
    after = retry_after(response.headers.get("Retry-After"), time.time())
    return error_for(name, response.status_code, parse_error_body(body), after)


class _ResponseReader:
    """Reads an answer, and bounds the wait for its next token. Comments that keep a connection alive are no tokens."""

    def __init__(self, options: UpstreamOptions, reply: UpstreamReply, on_chunk: OnChunk) -> None:
        self._name = options.name
        self._times = options.timeouts
        self._reply = reply
        self._on_chunk = on_chunk
        self._clock = asyncio.get_running_loop().time
        self._deadline = self._clock() + options.timeouts.first_token_s
        self._ended = False
        self._done = False

    async def read_to_end(self, response: httpx.Response) -> None:
        """Pass on all chunks. Raises EngineLost, and the error that an error event means."""
        reader, pieces = EventReader(), response.aiter_bytes()
        while not self._done:
            piece = await self.in_time(anext(pieces, None))
            for event in reader.end() if piece is None else reader.feed(piece):
                self._take(event)
            if piece is None:
                break
        if not (self._done or self._ended):
            raise EngineLost(f"The engine {self._name} ended the connection in the middle of the reply.")

    async def in_time(self, awaitable: Awaitable[T]) -> T:
        """Wait for a part of the answer. Raises EngineLost if it takes too long."""
        try:
            async with asyncio.timeout_at(self._deadline):
                return await awaitable
        except TimeoutError:
            raise EngineLost(f"The engine {self._name} made no token in time.") from None

    def _take(self, event: ServerSentEvent) -> None:
        if self._done:
            return
        if event.data == _DONE:
            self._done = True
            return
        completion = _completion(self._name, event)
        self._on_chunk(completion)
        if not self._reply.ended:
            if completion.has_content:
                self._deadline = self._clock() + self._times.between_tokens_s
        elif not self._reply.has_reason:  # the reply has its full length: nothing else in the answer counts
            self._done = True
        elif not self._ended:  # the totals usually follow the finish reason
            self._ended = True
            self._deadline = self._clock() + AFTER_END_S


def _completion(name: str, event: ServerSentEvent) -> Completion:
    """Decode a chunk. Raises the error that an error event means."""
    try:
        completion = _decoder.decode(event.data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        if event.kind == "error":
            raise error_inside(name, event.data) from None
        raise EngineLost(f"The engine {name} sent something that is not a chunk of a reply.") from error
    if completion.error is not None:
        raise error_inside(name, completion.error)
    if event.kind == "error":
        raise error_inside(name, msgspec.json.decode(event.data))
    return completion


@contextmanager
def engine_errors(name: str) -> Iterator[None]:
    """Turn errors on the way to an upstream into the engine's errors. Raises EngineLost."""
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise UpstreamUnreachable(f"The engine {name} can't be reached.") from error
    except (httpx.HTTPError, httpx.InvalidURL, EventTooLong) as error:
        raise EngineLost(f"The connection to the engine {name} was lost: {type(error).__name__}.") from error
