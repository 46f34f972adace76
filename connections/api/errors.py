"""Refusals and failures of an API: a status, a type, a code, and when to try again."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec
from starlette.responses import Response

from connections.http.json_responses import type_of
from connections.protocol.errors import Unauthenticated, shorten
from sessions.errors import BadParams, Refused
from sessions.events import Failure
from sessions.limits.rates import RateLimited

RETRY_AFTER_S = 1
"""Seconds after which to try again, if nothing else is known."""

_STATUS = {
    "invalid_value": 400,
    "bad_params": 400,
    "content_too_long": 400,
    "context_overflow": 400,
    "filtered": 400,
    "forbidden": 403,
    "internal": 500,
    "model_not_found": 404,
    "not_found": 404,
    "conflict": 409,
    "request_too_large": 413,
    "unsupported_content_encoding": 415,
    "store_full": 429,
}
_CODES = {
    "context_overflow": "context_length_exceeded",
    "rate_limited": "rate_limit_exceeded",
}  # as clients know them
_PARAMS = {
    "content_too_long": "messages",
    "context_overflow": "messages",
    "filtered": "messages",
    "model_not_found": "model",
}


class Error(msgspec.Struct, frozen=True):
    """A failure, with the name of the field that caused it, if one did."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of a refusal, and of a stream's `error` event."""

    error: Error


class Problem(Refused):
    """A refused request. Its message is for its sender; its body is OpenAI's, unless a dialect has its own."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        retry_after_ms: int | None = None,
    ) -> None:
        super().__init__(shorten(message))
        self.status = status
        self.error_code = code
        self.param = param
        self.retry_after_ms = retry_after_ms

    @property
    def body(self) -> bytes:
        """The error as JSON."""
        why = Error(str(self), type_of(self.status), self.param, self.error_code)
        return msgspec.json.encode(ErrorBody(why))

    def response(self) -> Response:
        """Return the refusal as a whole answer."""
        headers = {"Cache-Control": "no-store"}
        if self.retry_after_ms is not None:
            headers["Retry-After"] = str(math.ceil(self.retry_after_ms / 1000))
            headers["Retry-After-Ms"] = str(self.retry_after_ms)
        if self.status == 401:  # noqa: PLR2004 - HTTP's word for it
            headers["WWW-Authenticate"] = "Bearer"
        if self.status == 415:  # noqa: PLR2004 - HTTP's word for it
            headers["Accept-Encoding"] = "identity"  # RFC 9110, section 12.5.3
        return Response(self.body, self.status, headers, media_type="application/json")


def invalid(param: str | None, message: str, *, code: str = "invalid_value") -> Problem:
    """Return the refusal of a field's value."""
    return Problem(400, message, code=code, param=param)


def problem_of(refused: Refused) -> Problem:
    """Return a refusal of any layer as a problem."""
    if isinstance(refused, Problem):
        return refused
    if isinstance(refused, RateLimited):
        return Problem(
            429, str(refused), code=_CODES[refused.code], retry_after_ms=max(1, refused.retry_after_ms or 0)
        )
    field = refused.field if isinstance(refused, BadParams) else None
    return _problem(refused.code, str(refused), param=field, again_ms=refused.retry_after_ms)


def with_client_field(refused: BadParams, names: Mapping[str, str]) -> BadParams:
    """Return the refusal with the client's name of its field. `names`: by the names of the layers below."""
    field = refused.field
    if field is None or (name := names.get(field)) is None:
        return refused
    return BadParams(str(refused).replace(f"`{field}`", f"`{name}`"), field=name)


def metric_code(refused: Refused) -> str:
    """Return the name of a refusal in metrics: the protocol's word, the same at every endpoint."""
    if not isinstance(refused, Problem):
        return refused.code
    return Unauthenticated.code if refused.status == 401 else refused.error_code  # noqa: PLR2004 - HTTP's word for it


def problem_from_failure(failure: Failure) -> Problem:
    """Return what ended a reply that had begun."""
    return _problem(failure.code, failure.message, again_ms=failure.retry_after_ms)


def invalid_api_key(refused: Unauthenticated) -> Problem:
    """Return the refusal of an invalid token."""
    return Problem(401, str(refused), code="invalid_api_key")


def _problem(code: str, message: str, *, param: str | None = None, again_ms: int | None = None) -> Problem:
    """Return a problem; a temporary one says when to try again."""
    status = _STATUS.get(code, 503)
    again = (again_ms or RETRY_AFTER_S * 1000) if status == 503 else None  # noqa: PLR2004 - HTTP's word for it
    return Problem(
        status, message, code=_CODES.get(code, code), param=param or _PARAMS.get(code), retry_after_ms=again
    )
