"""What HTTP endpoints share: a request and its answer, JSON answers and refusals, checks of inputs, counts of refusals."""

from __future__ import annotations

import asyncio
import math
import re
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from enum import StrEnum

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from connections.protocol.base import Name
from connections.protocol.errors import (
    BadParams,
    Close,
    CloseCode,
    Unauthenticated,
    shorten,
    validation_problem,
)
from sessions.errors import Refused
from sessions.limits.bounds import (
    LARGE_BODY_BYTES,
    MAX_BODY_BYTES,
    MAX_CONTAINERS,
    MAX_DEPTH,
    MAX_VALUES,
    SMALL_BYTES,
)

_EVENTS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # so that proxies pass each event on at once
]
ABORT = "midstream.abort"
"""The ASGI extension that ends an HTTP connection at once: its `abort` takes and returns nothing."""
WRITE = "midstream.write"
"""The ASGI extension that sends a part of a streamed answer at once: its `write` takes bytes and returns whether it did."""


class RequestTooLarge(Refused):
    """The request's body is too large."""

    code = "request_too_large"


class UnsupportedEncoding(Refused):
    """The request's body is compressed."""

    code = "unsupported_content_encoding"


class Exchange:
    """One request and its answer, while its client is connected.

    `begun`: whether the answer's head was sent; `body_bytes`: the size of the body, 0 until it is read.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.request = Request(scope, receive)
        self.begun = False
        self.body_bytes = 0
        self._receive = receive
        self._send = send
        self._write_now: Callable[[bytes], bool] | None = (
            scope.get("extensions", {}).get(WRITE, {}).get("write")
        )

    async def body(self, admit_large: Callable[[], None], *, most: int = MAX_BODY_BYTES) -> bytes:
        """Return the body, of `most` bytes at most; `admit_large` is called once if the body is large, and may raise.

        Raises UnsupportedEncoding, RequestTooLarge, ClientDisconnect.
        """
        coding = self.request.headers.get("content-encoding", "").strip().lower()
        if coding not in ("", "identity"):  # a few bytes of gzip can become gigabytes
            raise UnsupportedEncoding(
                "Compressed requests are not supported. Send the body without Content-Encoding."
            )
        too_large = RequestTooLarge(f"The request is too large: its body may have {most} bytes at most.")
        announced = int(self.request.headers.get("content-length", 0))
        if announced > most:  # before "Expect: 100-continue" is answered
            raise too_large
        body = bytearray()
        async for part in self.request.stream():
            if len(body) <= LARGE_BODY_BYTES < len(body) + len(part):
                admit_large()
            body += part
            if len(body) > most:
                raise too_large
        self.body_bytes = len(body)
        return bytes(body)

    async def cancel_on_disconnect(self, work: Coroutine[None, None, None]) -> None:
        """Do the work; the body must have been read. If the client leaves, cancel the work and raise ClientDisconnect."""
        working = asyncio.ensure_future(work)
        leaving = asyncio.ensure_future(self.left())
        try:
            await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise ClientDisconnect
            await working
        finally:
            working.cancel()
            leaving.cancel()
            await asyncio.gather(working, leaving, return_exceptions=True)
            del (
                working
            )  # the error's traceback holds this frame, the frame the task, and all of them the request

    async def left(self) -> None:
        """Wait until the client has left. The body must have been read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def answer(self, response: Response) -> None:
        """Send a whole answer."""
        self.begun = True
        await response(self.request.scope, self._receive, self._send)

    async def begin_events(self, request_id: str, more: Mapping[str, str] | None = None) -> None:
        """Begin an answer of server-sent events. `more`: further headers."""
        own = [(name.lower().encode(), value.encode()) for name, value in (more or {}).items()]
        await self.begin([*_EVENTS, (b"x-request-id", request_id.encode()), *own])

    async def begin(self, headers: list[tuple[bytes, bytes]]) -> None:
        """Begin an answer in parts."""
        self.begun = True
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def write(self, part: bytes, *, more: bool = True) -> None:
        """Send a part; wait if the client reads too slowly."""
        await self._send({"type": "http.response.body", "body": part, "more_body": more})

    def write_nowait(self, part: bytes) -> bool:
        """Send a part in this iteration of the event loop; return False if the head was not sent, or the client reads too slowly."""
        return self._write_now is not None and self._write_now(part)

    async def abort(self) -> None:
        """End the connection of a client that does not read; unread bytes are dropped."""
        self.cut_off()
        await self.left()

    def cut_off(self) -> None:
        """Abort without waiting; `left` returns once the connection has ended."""
        self.request.scope["extensions"][ABORT]["abort"]()


STATUS = {
    "bad_frame": 400,
    "bad_params": 400,
    "invalid_image": 400,
    "forbidden": 403,
    "not_found": 404,
    "request_too_large": 413,
    "unsupported_content_encoding": 415,
    "rate_limited": 429,
    "store_full": 429,
    "internal": 500,
}
_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_RETRY_SOON = {"Retry-After": "1"}


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request is refused: a sentence for people, and codes for programs."""

    message: str
    type: str
    param: str | None
    code: str


class RefusalBody(msgspec.Struct, frozen=True):
    """The body of every refusal, in the form that OpenAI's clients read."""

    error: Refusal


SSE_DONE = b"data: [DONE]\n\n"
"""Ends the streams of OpenAI's APIs, and of the AI SDK's."""


def json_response(
    content: object, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a whole answer, which is not cached."""
    body = msgspec.json.encode(content)
    shown = {"Cache-Control": "no-store"} | dict(headers or {})
    return Response(body, status, shown, media_type="application/json")


def sse(data: bytes, event: str = "") -> bytes:
    """Return one server-sent event. JSON contains no line breaks."""
    return b"event: %b\ndata: %b\n\n" % (event.encode(), data) if event else b"data: %b\n\n" % data


def refusal(
    status: int,
    code: str,
    message: str,
    headers: Mapping[str, str] | None = None,
    *,
    param: str | None = None,
) -> Response:
    """Return a refusal. `param`: the field at fault."""
    why = Refusal(message=message, type=type_of(status), param=param, code=code)
    return json_response(RefusalBody(why), status=status, headers=headers)


def type_of(status: int) -> str:
    """Return the error type that OpenAI's clients expect for a status."""
    return _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")  # noqa: PLR2004 - HTTP's classes


def error_code_of(why: Refused | Close) -> str:
    """Return a refusal's code, for metrics."""
    if isinstance(why, Close):
        is_crowded = why.code is CloseCode.TOO_MANY_CONNECTIONS
        return "too_many_connections" if is_crowded else "overloaded"
    return why.code


def refusal_response(why: Refused | Close) -> Response:
    """Return the answer to a refusal of any layer: outages are 503, overload is 429 or 503."""
    match why:
        case Unauthenticated():
            return refusal(401, why.code, str(why), {"WWW-Authenticate": "Bearer"})
        case Close(code=CloseCode.TOO_MANY_CONNECTIONS):
            return refusal(429, error_code_of(why), str(why), _RETRY_SOON)
        case Close():
            return refusal(503, error_code_of(why), str(why), _RETRY_SOON)
    code = why.code
    status = STATUS.get(code, 503)
    again = _retry_headers(why) if status in {429, 503} and code != "store_full" else None
    return refusal(status, code, str(why), again, param=why.field if isinstance(why, BadParams) else None)


def _retry_headers(why: Refused) -> Mapping[str, str]:
    """Return the header that says after how many seconds a retry makes sense."""
    wait_ms = why.retry_after_ms
    return _RETRY_SOON if wait_ms is None else {"Retry-After": str(max(1, math.ceil(wait_ms / 1000)))}


def forbidden_origin(origin: str | None) -> Response:
    """Return the refusal for pages of an origin that is not allowed, in words that their developers search for."""
    return refusal(403, "forbidden", forbidden_origin_message(origin))


def forbidden_origin_message(origin: str | None) -> str:
    """Return the message of `forbidden_origin`."""
    return (
        f'The origin "{shorten(origin or "")}" is not allowed. '
        "The operator can allow it (MIDSTREAM_ALLOWED_ORIGINS)."
    )


def draining_refusal() -> Response:
    """Return the answer to a handshake while the server drains."""
    return refusal(503, "draining", "The server is shutting down; reconnect.", _RETRY_SOON)


def too_many_handshakes() -> Response:
    """Return the answer when too many connections are being opened."""
    why = "Too many connections are being opened; try again in a moment."
    return refusal(503, "overloaded", why, _RETRY_SOON)


_ALIKE = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
MAX_QUOTES = 4 * MAX_VALUES
"""The most unescaped quotes: each key and each string has two."""
_TOO_MANY = "The request has too many messages, parts or fields."
_DERIVED_CLIENT_ID = re.compile(r"/(openai|ai-sdk)(/[A-Za-z0-9._:-]{1,128}){0,2}")
"""Client ids that endpoints derive from a key, a token or a conversation if the request has none."""


class TooManyValues(Refused):
    """The JSON text has too many values, or is nested too deeply."""

    code = "invalid_value"


def check_json_limits(text: bytes) -> None:
    """Raise TooManyValues if the text has too many values or levels. The decoder checks whether it is valid JSON.

    A short text can hold a million empty objects, each with fifty times its length in memory. So values and their depth are
    counted before any object is made.
    """
    if len(text) <= SMALL_BYTES or _is_plain(text):
        return
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    if text.count(b'"') > MAX_QUOTES:
        raise TooManyValues(_TOO_MANY)
    # The text outside strings. A string that is not closed reaches to the end of the text.
    frame = b"".join(text.split(b'"')[::2])
    if frame.count(b"[") + frame.count(b"{") > MAX_CONTAINERS or frame.count(b",") > MAX_VALUES:
        raise TooManyValues(_TOO_MANY)
    # Text that closes more than it opens is not JSON: the decoder reports that.
    if _is_deep(frame.translate(_ALIKE, _NO_BRACKETS)[: 2 * MAX_CONTAINERS]):
        raise TooManyValues("The request is nested too deeply.")


def _is_plain(text: bytes) -> bool:
    """Return whether the text has too few brackets and commas for a refusal, even if none of them is in a string."""
    return text.count(b"[") + text.count(b"{") <= MAX_DEPTH and text.count(b",") <= MAX_VALUES


def _is_deep(brackets: bytes) -> bool:
    """Return whether brackets of one kind are nested too deeply: each round removes the innermost ones."""
    for _ in range(MAX_DEPTH):
        before = len(brackets)
        brackets = brackets.replace(b"[]", b"")
        if len(brackets) == before:
            break
    return b"[]" in brackets or brackets.count(b"[") > MAX_DEPTH


def parse_client_id(value: str) -> str:
    """Return the client id that a request names, its own or one that an endpoint derived. Raises BadParams."""
    return value if _DERIVED_CLIENT_ID.fullmatch(value) else parse_id("client_id", value)


def parse_id(field: str, value: str) -> str:
    """Return a valid id. Raises BadParams."""
    try:
        return msgspec.convert(value, Name)
    except msgspec.ValidationError as error:
        raise BadParams(validation_problem(error).why, field=field) from None


def optional_id(query: Mapping[str, str], field: str) -> str | None:
    """Return a valid id from a query; None if it is left out. Raises BadParams."""
    return None if (value := query.get(field)) is None else parse_id(field, value)


class RefusalReason(StrEnum):
    """Why a request or a connection was refused."""

    ADDRESS = "address"
    HOST = "host"
    ORIGIN = "origin"
    PENDING = "pending"
    CONNECTIONS = "connections"
    """The client has too many connections."""
    FULL = "full"
    """The server has no room for another connection of this peer."""
    RATE = "rate"


class EndpointName(StrEnum):
    """The names of endpoints in metrics."""

    NATIVE = "native"
    REALTIME = "realtime"
    CHAT = "chat"
    RESPONSES = "responses"
    MESSAGES = "messages"
    AG_UI = "ag_ui"
    MODELS = "models"
    EMBEDDINGS = "embeddings"
    TRANSCRIPTIONS = "transcriptions"
    SPEECH = "speech"
    EVENTS = "events"
    TICKETS = "tickets"
    ATTACHMENTS = "attachments"
    SHARES = "shares"
    ACCOUNT = "account"
    ADMIN = "admin"
    AI_SDK = "ai_sdk"
    NONE = "none"
    """No route, or none for this method."""


MAX_CODES = 64
"""How many codes of an endpoint are counted separately: twice those that exist. Further ones count as `other`."""


class RefusalCounters:
    """Counts refusals by reason, and errors by endpoint and code, for metrics."""

    def __init__(self) -> None:
        self._counts: Counter[RefusalReason] = Counter()
        self._sent: dict[EndpointName, Counter[str]] = {endpoint: Counter() for endpoint in EndpointName}

    def count(self, refusal: RefusalReason) -> None:
        """Count a refusal."""
        self._counts[refusal] += 1

    def count_error(self, endpoint: EndpointName, code: str) -> None:
        """Count an error that a client was sent. `code`: that of the native protocol, at every endpoint."""
        sent = self._sent[endpoint]
        sent[code if code in sent or len(sent) < MAX_CODES else "other"] += 1

    def sent(self) -> Mapping[EndpointName, Mapping[str, int]]:
        """Return the errors sent at each endpoint, by code."""
        return self._sent

    def statistics(self) -> Mapping[RefusalReason, int]:
        """Return the count of every reason, zeros included."""
        return {refusal: self._counts[refusal] for refusal in RefusalReason}
