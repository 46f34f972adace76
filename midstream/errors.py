"""What the client raises.

ClientError
├── NotConnected   no such server, or it does not admit this client
├── Refused        the server refused a request
└── Disconnected   the connection is lost for good
"""

from __future__ import annotations

from typing import Any

_FINAL = frozenset({1000, 1008, 4401, 4403})
"""Close codes after which another connection would end the same way: bye, policy, unauthenticated, forbidden."""


class ClientError(Exception):
    """The root of what the client raises."""


class NotConnected(ClientError):
    """There is no such server at this URL, or it does not admit this client."""


class Refused(ClientError):
    """The server refused a request. `code` is the protocol's; `retry_after_ms` may be None."""

    def __init__(self, frame: dict[str, Any]) -> None:
        super().__init__(f"{frame['code']}: {frame['message']}")
        self.code: str = frame["code"]
        self.retryable: bool = frame.get("retryable", False)
        self.retry_after_ms: int | None = frame.get("retry_after_ms")


class Disconnected(ClientError):
    """The connection is lost; `code` is the WebSocket close code, or None."""

    def __init__(self, code: int | None, reason: str, *, final: bool = False) -> None:
        super().__init__(f"disconnected ({code}): {reason}" if reason else f"disconnected ({code})")
        self.code = code
        self.final = final or code in _FINAL
        """Whether another connection would end the same way."""
