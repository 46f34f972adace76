"""Refusals and failures in Anthropic's terms: a status, a type, a sentence, and when to try again."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

import msgspec
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Scope

from connections.api.anthropic.schema import MessageError, MessageProblem, ProblemDetails
from connections.api.errors import Problem, problem_of
from connections.http import forbidden_origin_message, refusal
from sessions.errors import Overloaded, Refused

PATH = "/v1/messages"
THREADS = "thread_unsupported_request"
"""Code of a refusal after which Anthropic's SDKs go on without threads."""
OVERLOADED = 529
"""Anthropic's own status for overload, which its clients know."""
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    OVERLOADED: "overloaded_error",
}
_SERVERS = 500
_FORWARDED_HEADERS = ("retry-after", "retry-after-ms", "www-authenticate", "accept-encoding")


def request_id() -> str:
    """Return an id for a request without a turn."""
    return f"req_{secrets.token_urlsafe(12)}"


def error_response(why: Refused, named: str) -> Response:
    """Return the answer to a refused request. `named`: its id."""
    problem = problem_of(why)
    response = problem.response()
    kept = {name: value for name, value in response.headers.items() if name in _FORWARDED_HEADERS}
    details = ProblemDetails(problem.error_code) if problem.error_code == THREADS else msgspec.UNSET
    return _response(status_of(problem), str(problem), named, kept, details)


def error_of(problem: Problem) -> MessageProblem:
    """Return a problem as a stream sends it."""
    return MessageProblem(_type(status_of(problem)), str(problem))


def status_of(problem: Problem) -> int:
    """Return the status of a problem."""
    return OVERLOADED if problem.error_code == Overloaded.code else problem.status


def is_anthropic_request(scope: Scope) -> bool:
    """Return whether a client of Anthropic's API sent a request: its path says so, or the header that all of them send."""
    path: str = scope["path"]
    return path == PATH or path.startswith(f"{PATH}/") or "anthropic-version" in Headers(scope=scope)


def refusal_of(
    scope: Scope, status: int, code: str, why: str, headers: Mapping[str, str] | None = None
) -> Response:
    """Return the refusal of a request that reached no endpoint, in the shape that its client reads."""
    if is_anthropic_request(scope):
        return _response(status, why, request_id(), headers or {})
    return refusal(status, code, why, headers)


def foreign_page(origin: str | None) -> Response:
    """Return the answer to a page of an origin that is not allowed."""
    return _response(403, forbidden_origin_message(origin), request_id(), {})


def _type(status: int) -> str:
    return _TYPES.get(status, "api_error" if status >= _SERVERS else "invalid_request_error")


def _response(
    status: int,
    message: str,
    named: str,
    headers: Mapping[str, str],
    details: ProblemDetails | msgspec.UnsetType = msgspec.UNSET,
) -> Response:
    body = msgspec.json.encode(MessageError(MessageProblem(_type(status), message, details), named))
    shown = {"Cache-Control": "no-store", "Request-Id": named, **headers}
    return Response(body, status, shown, media_type="application/json")
