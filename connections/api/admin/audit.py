"""Logs one line for each act of an operator, at any log level: who, what, on whom, and the outcome. No content.

Requests to operators' paths that no route takes are logged, too.
"""

from __future__ import annotations

import logging

import structlog
from starlette.datastructures import Headers
from starlette.types import Scope

from connections.authentication.access import AccessControl
from connections.authentication.caller import group_of
from connections.authentication.identity import ANONYMOUS
from connections.limiters import Limiters
from connections.protocol.errors import Unauthenticated
from sessions.limits.rates import RateLimited
from sessions.limits.shares import Subject

NAME = "midstream.audit"
_log = structlog.wrap_logger(logging.getLogger(NAME), wrapper_class=structlog.stdlib.BoundLogger)


def note(*, operator: str | None, act: str, outcome: str, on: dict[str, str | int]) -> None:
    """Write the line. `operator`: the name of the key; None: without a valid one. `on`: the subject of the act, and its extent."""
    _log.info("admin", operator=operator, act=act, outcome=outcome, **on)


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
            note(operator=operator, act="unknown", outcome=code, on={"method": scope["method"], "path": path})


def may_log(limiters: Limiters, scope: Scope) -> bool:
    """Return whether a request without effect gets a line: each address has a limit, so that nobody can fill the log."""
    try:
        limiters.take_read(Subject(f"/admin/{group_of(ANONYMOUS, scope)}", ""))
    except RateLimited:
        return False
    return True
