"""Notes requests to operators' doors that nothing takes: who looks for a door is in the log, as who came in is."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import Scope

from connections.admin import audit
from connections.authentication.access import AccessControl
from connections.authentication.identity import ANONYMOUS
from connections.limits.groups import group_of
from connections.limits.limiters import Limiters
from connections.limits.quotas import RateLimited
from connections.wire.errors import Unauthenticated
from sessions.running.shares import Subject


class Missed:
    """Writes the lines."""

    def __init__(self, access: AccessControl, limiters: Limiters) -> None:
        self._access = access
        self._limiters = limiters

    def note(self, scope: Scope, code: str, path: str) -> None:
        """Writes one. `code`: of the answer; `path`: what may be told of it."""
        try:
            operator = self._access.identify_operator(
                authorization=Headers(scope=scope).get("authorization")
            ).name
        except Unauthenticated:
            operator = None
        if may_be_noted(self._limiters, scope):
            audit.note(
                operator=operator, act="unknown", outcome=code, on={"method": scope["method"], "path": path}
            )


def may_be_noted(limiters: Limiters, scope: Scope) -> bool:
    """Whether a request that did nothing gets a line: an address so many, or whoever asks could fill the log."""
    try:
        limiters.take_read(Subject(f"/admin/{group_of(ANONYMOUS, scope)}", ""))
    except RateLimited:
        return False
    return True
