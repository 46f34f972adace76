"""Maps an upstream's refusals and errors to the engine's errors. Pure.

Shed (429, 503, 529): EngineBusy. The operator's fault (401, 403, 404, redirects): EngineUnavailable. The request's fault
(other 4xx): RequestRefused. Everything else is the server's failure: EngineLost.
"""

from __future__ import annotations

import re
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from engine.errors import EngineBusy, EngineError, EngineLost, EngineUnavailable
from engine.messages import ErrorCode

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


class RequestRefused(EngineError):
    """The upstream refuses the request, and will refuse it again."""

    def __init__(self, code: ErrorCode, message: str, words: str = "") -> None:
        """Take the kind of fault, and a sentence of ours for the sender: the upstream's may quote keys, addresses and texts.

        `words`: its codes and types, for the log.
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
    try:
        return error_body_in(msgspec.json.decode(body))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return UpstreamErrorBody(body.decode(errors="replace"))


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
