"""What the service's own HTTP doors answer: JSON that nobody keeps, and refusals as `{error: {message, type, param, code}}`, as OpenAI's clients read them."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec
from starlette.responses import Response

from connections.wire.errors import BadParams, Close, CloseCode, Unauthenticated, shorten
from sessions.errors import Refused

_STATUS = {
    "bad_params": 400,
    "invalid_image": 400,
    "forbidden": 403,
    "not_found": 404,
    "request_too_large": 413,
    "unsupported_content_encoding": 415,
    "rate_limited": 429,
    "too_many_images": 429,
    "internal": 500,
}
_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_AGAIN = {"Retry-After": "1"}


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request is not served: a sentence for people, and words for programs."""

    message: str
    type: str
    param: str | None
    code: str


class RefusalBody(msgspec.Struct, frozen=True):
    """The body of every refusal."""

    error: Refusal


def answer(content: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A whole answer."""
    body = msgspec.json.encode(content)
    shown = {"Cache-Control": "no-store"} | dict(headers or {})
    return Response(body, status, shown, media_type="application/json")


def refusal(
    status: int,
    code: str,
    message: str,
    headers: Mapping[str, str] | None = None,
    *,
    param: str | None = None,
) -> Response:
    """A request that is not served. `param`: the field whose fault it is."""
    why = Refusal(message=message, type=type_of(status), param=param, code=code)
    return answer(RefusalBody(why), status=status, headers=headers)


def type_of(status: int) -> str:
    """What kind of error OpenAI's clients take a status for."""
    return _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")  # noqa: PLR2004 - HTTP's classes


def counted_as(why: Refused | BadParams | Unauthenticated | Close) -> str:
    """Return what a refusal is called in metrics: the code that its sender is told."""
    if isinstance(why, Close):
        is_crowded = why.code is CloseCode.TOO_MANY_CONNECTIONS
        return "too_many_connections" if is_crowded else "overloaded"
    return why.code


def refused(why: Refused | BadParams | Unauthenticated | Close) -> Response:
    """A refusal of any floor's. What passes by itself is 503, and what there is too much of 429 or 503."""
    match why:
        case Unauthenticated():
            return refusal(401, why.code, str(why), {"WWW-Authenticate": "Bearer"})
        case Close(code=CloseCode.TOO_MANY_CONNECTIONS):
            return refusal(429, counted_as(why), str(why), _AGAIN)
        case Close():
            return refusal(503, counted_as(why), str(why), _AGAIN)
    code = why.code
    status = _STATUS.get(code, 503)
    again = _after(why) if status in {429, 503} else None
    return refusal(status, code, str(why), again, param=why.field if isinstance(why, BadParams) else None)


def _after(why: Refused | BadParams) -> Mapping[str, str]:
    """In how many seconds it is worth another try."""
    wait_ms = why.retry_after_ms if isinstance(why, Refused) else None
    return _AGAIN if wait_ms is None else {"Retry-After": str(max(1, math.ceil(wait_ms / 1000)))}


def foreign_page(origin: str | None) -> Response:
    """What pages of an origin are told that may not ask, and what their developers look for."""
    return refusal(403, "forbidden", foreign_words(origin))


def foreign_words(origin: str | None) -> str:
    """The same, as a sentence."""
    return (
        f'Pages of the origin "{shorten(origin or "")}" may not use this server. Its operator admits origins '
        "by MIDSTREAM_ALLOWED_ORIGINS."
    )


def too_many_at_once() -> Response:
    """The answer where too many connections are being opened."""
    why = "Too many connections are being opened; try again in a moment."
    return refusal(503, "overloaded", why, _AGAIN)
