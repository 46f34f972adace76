"""Refusals for the AI SDK's clients. They show the whole body of an answer to the user, so it is a sentence."""

from __future__ import annotations

from starlette.responses import Response

from connections.http.json_responses import error_code_of
from connections.http.json_responses import refusal_response as as_json
from connections.protocol.errors import BadFrame, BadParams, Close, Unauthenticated, shorten
from sessions.errors import Refused

CODE_HEADER = "X-Midstream-Code"
"""The header for the code of a refusal."""
_STATUS = {
    "bad_frame": 400,
    "invalid_value": 400,
    "filtered": 400,
    "model_not_found": 404,
    "busy": 409,
    "conflict": 409,
    "content_too_long": 413,
    "context_overflow": 413,
    "request_too_large": 413,
    "unsupported_content_encoding": 415,
    "queue_full": 429,
}

Problem = Refused | BadFrame | BadParams | Unauthenticated | Close


def error_response(why: Problem) -> Response:
    """Return the answer to a refused request: a sentence, with its code in a header."""
    if isinstance(why, BadFrame):
        code, shown = why.code, Response(status_code=400)
    else:
        code, shown = error_code_of(why), as_json(why)
    kept = {
        name: shown.headers[name] for name in ("www-authenticate", "retry-after") if name in shown.headers
    }
    status = _STATUS.get(code, shown.status_code)
    if status < 429:  # noqa: PLR2004 - only temporary refusals are worth another try
        kept.pop("retry-after", None)
    headers = {"Cache-Control": "no-store", CODE_HEADER: code, **kept}
    return Response(str(why), status, headers, media_type="text/plain")


def code_of(why: Problem) -> str:
    """Return the code that a refusal is counted under."""
    return why.code if isinstance(why, BadFrame) else error_code_of(why)


def foreign_origin_response(origin: str | None) -> Response:
    """Return the answer to a page of an origin that is not allowed."""
    why = (
        f'Pages of the origin "{shorten(origin or "")}" may not use this server. Its operator admits origins '
        "by MIDSTREAM_ALLOWED_ORIGINS."
    )
    return Response(
        why, 403, {"Cache-Control": "no-store", CODE_HEADER: "forbidden"}, media_type="text/plain"
    )
