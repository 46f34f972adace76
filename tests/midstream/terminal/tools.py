"""Tools for services that terminals chat with, and a service that can't take decisions."""

from __future__ import annotations

from typing import Any

import pytest

from sessions.errors import Refused
from sessions.service import CallOutcome, Sessions
from sessions.tools.function_tools import tool


def pay(sum: int) -> str:  # noqa: A002 - the tool's own word
    """Pay somebody."""
    return f"{sum} paid\x1b[31m"


approved_pay = tool(approval="always", name="ask_pay")(lambda: "Paid.")
TOOLS = tuple(f"tests.midstream.terminal.tools:{name}" for name in ("pay", "approved_pay"))


def refuse_answers(monkeypatch: pytest.MonkeyPatch, *refusals: Refused) -> None:
    """The first answers to calls are refused, each for its reason."""
    answer_call, left = Sessions.answer_call, list(refusals)

    async def refused_first(self: Sessions, *args: Any) -> CallOutcome:
        if left:
            raise left.pop(0)
        return await answer_call(self, *args)

    monkeypatch.setattr(Sessions, "answer_call", refused_first)
