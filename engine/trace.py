"""The ids of the current request, from a client or its proxy, for logs and upstreams. They decide nothing.

Tasks inherit them from the task that began them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextvars import ContextVar

import msgspec

_REQUEST_ID = re.compile(r"[\w.:/+=-]{1,128}", re.ASCII)
_TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?"
)
"""W3C Trace Context, section 3.2. Only version 00 ends with the flags."""


class Trace(msgspec.Struct, frozen=True, omit_defaults=True):
    """`request_id`: the header `X-Request-Id`. `traceparent`: W3C Trace Context's. Empty if missing or invalid."""

    request_id: str = ""
    traceparent: str = ""

    @property
    def trace_id(self) -> str:
        """The trace id, which all parts of one request share; empty without tracing."""
        return self.traceparent[3:35]

    @property
    def facts(self) -> dict[str, str]:
        """The fields of log lines."""
        fields = {"request_id": self.request_id, "trace_id": self.trace_id}
        return {name: value for name, value in fields.items() if value}

    @property
    def headers(self) -> dict[str, str]:
        """The headers for a server that is asked for this request."""
        headers = {"X-Request-Id": self.request_id, "traceparent": self.traceparent}
        return {name: value for name, value in headers.items() if value}


NOBODYS = Trace()
current: ContextVar[Trace] = ContextVar("trace", default=NOBODYS)
"""The ids of the current task's request."""


def of_headers(headers: Iterable[tuple[bytes, bytes]]) -> Trace:
    """Read a request's headers, with names in lower case. Invalid values are left out."""
    found = {name: value.decode("latin-1") for name, value in headers if name in _NAMES}
    request_id, traceparent = (found.get(name, "") for name in _NAMES)
    return Trace(
        request_id if _REQUEST_ID.fullmatch(request_id) else "",
        traceparent[:_LENGTH] if _is_sound(traceparent) else "",
    )


def _is_sound(traceparent: str) -> bool:
    is_new = not traceparent.startswith("00-")
    return bool(_TRACEPARENT.fullmatch(traceparent)) and (is_new or len(traceparent) == _LENGTH)


_NAMES = (b"x-request-id", b"traceparent")
_LENGTH = 55
