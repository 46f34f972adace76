"""What the service's own HTTP doors answer: JSON that nobody keeps, and refusals as `{error: {code, message}}`."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from starlette.responses import Response

from connections.wire.errors import BadParams, Close, CloseCode, Unauthenticated
from sessions.errors import Refused

_STATUS = {"bad_params": 400, "not_found": 404, "internal": 500}
_AGAIN = {"Retry-After": "1"}


class Refusal(msgspec.Struct, frozen=True):
    """Why a request is not served: a word for programs, and words for people."""

    code: str
    message: str


class RefusalBody(msgspec.Struct, frozen=True):
    """The body of every refusal."""

    error: Refusal


def answer(content: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A whole answer."""
    body = msgspec.json.encode(content)
    shown = {"Cache-Control": "no-store"} | dict(headers or {})
    return Response(body, status, shown, media_type="application/json")


def refusal(status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """A request that is not served."""
    return answer(RefusalBody(Refusal(code, message)), status=status, headers=headers)


def refused(why: Refused | BadParams | Unauthenticated | Close) -> Response:
    """A refusal of any floor's. What passes by itself is 503, and what there is too much of 429 or 503."""
    match why:
        case Unauthenticated():
            return refusal(401, why.code, str(why), {"WWW-Authenticate": "Bearer"})
        case Close(code=CloseCode.TOO_MANY_CONNECTIONS):
            return refusal(429, "too_many_connections", str(why), _AGAIN)
        case Close():
            return refusal(503, "overloaded", str(why), _AGAIN)
    code = why.code
    status = _STATUS.get(code, 503)
    return refusal(status, code, str(why), _AGAIN if status == 503 else None)  # noqa: PLR2004 - HTTP's word


def foreign_page() -> Response:
    """What pages are told that may not ask."""
    return refusal(403, "forbidden", "Pages of this origin may not come in.")
