"""Answers of the service's own HTTP endpoints: uncached JSON, and refusals as `{error: {message, type, param, code}}`, which OpenAI's clients read."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec
from starlette.responses import Response

from connections.protocol.errors import BadFrame, BadParams, Close, CloseCode, Unauthenticated, shorten
from sessions.errors import Refused

_STATUS = {
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
    """The body of every refusal."""

    error: Refusal


def json_response(
    content: object, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a whole answer."""
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
    """Return a refusal. `param`: the field at fault."""
    why = Refusal(message=message, type=type_of(status), param=param, code=code)
    return json_response(RefusalBody(why), status=status, headers=headers)


def type_of(status: int) -> str:
    """Return the error type that OpenAI's clients expect for a status."""
    return _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")  # noqa: PLR2004 - HTTP's classes


def error_code_of(why: Refused | BadFrame | BadParams | Unauthenticated | Close) -> str:
    """Return a refusal's code, for metrics."""
    if isinstance(why, Close):
        is_crowded = why.code is CloseCode.TOO_MANY_CONNECTIONS
        return "too_many_connections" if is_crowded else "overloaded"
    return why.code


def refusal_response(why: Refused | BadParams | Unauthenticated | Close) -> Response:
    """Return the answer to a refusal of any layer: outages are 503, overload is 429 or 503."""
    match why:
        case Unauthenticated():
            return refusal(401, why.code, str(why), {"WWW-Authenticate": "Bearer"})
        case Close(code=CloseCode.TOO_MANY_CONNECTIONS):
            return refusal(429, error_code_of(why), str(why), _RETRY_SOON)
        case Close():
            return refusal(503, error_code_of(why), str(why), _RETRY_SOON)
    code = why.code
    status = _STATUS.get(code, 503)
    again = _retry_headers(why) if status in {429, 503} and code != "store_full" else None
    return refusal(status, code, str(why), again, param=why.field if isinstance(why, BadParams) else None)


def _retry_headers(why: Refused | BadParams) -> Mapping[str, str]:
    """Return the seconds after which a retry makes sense."""
    wait_ms = why.retry_after_ms if isinstance(why, Refused) else None
    return _RETRY_SOON if wait_ms is None else {"Retry-After": str(max(1, math.ceil(wait_ms / 1000)))}


def forbidden_origin(origin: str | None) -> Response:
    """Refuse pages of an origin that is not allowed, in words that their developers search for."""
    return refusal(403, "forbidden", forbidden_origin_message(origin))


def forbidden_origin_message(origin: str | None) -> str:
    """The same, as a sentence."""
    return (
        f'Pages of the origin "{shorten(origin or "")}" may not use this server. Its operator admits origins '
        "by MIDSTREAM_ALLOWED_ORIGINS."
    )


def draining_refusal() -> Response:
    """Return the answer to a handshake while the server drains."""
    return refusal(503, "draining", "The server is about to stop; connect again.", _RETRY_SOON)


def too_many_handshakes() -> Response:
    """Return the answer when too many connections are being opened."""
    why = "Too many connections are being opened; try again in a moment."
    return refusal(503, "overloaded", why, _RETRY_SOON)
