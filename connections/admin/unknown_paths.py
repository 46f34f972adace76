"""Logs requests to operators' paths that no route takes: as authenticated acts are logged elsewhere, so these are here."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import Scope

from connections.admin import audit
from connections.authentication.access import AccessControl
from connections.authentication.identity import ANONYMOUS
from connections.limits.limiters import Limiters
from connections.limits.owner_groups import group_of
from connections.limits.quotas import RateLimited
from connections.protocol.errors import Unauthenticated
from sessions.fair_share import Subject


class UnknownAdminPaths:
    """Writes the lines."""

    def __init__(self, access: AccessControl, limiters: Limiters) -> None:
        self._access = access
        self._limiters = limiters

    def note(self, scope: Scope, code: str, path: str) -> None:
        """Write a line. `code`: of the answer; `path`: the part that may be logged."""
        try:
            operator = self._access.identify_operator(
                authorization=Headers(scope=scope).get("authorization")
            ).name
        except Unauthenticated:
            operator = None
        if may_log(self._limiters, scope):
            audit.note(
                operator=operator, act="unknown", outcome=code, on={"method": scope["method"], "path": path}
            )


def may_log(limiters: Limiters, scope: Scope) -> bool:
    """Return whether a request without effect gets a line: each address has a limit, so that nobody can fill the log."""
    try:
        limiters.take_read(Subject(f"/admin/{group_of(ANONYMOUS, scope)}", ""))
    except RateLimited:
        return False
    return True
