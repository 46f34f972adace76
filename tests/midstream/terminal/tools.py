"""Tools for services that terminals chat with, and a service that can't take decisions."""

from __future__ import annotations

from typing import Any

import pytest

from sessions.errors import Refused
from sessions.service import Sessions, Told
from sessions.tools.functions.declared import tool


def pay(sum: int) -> str:  # noqa: A002 - the tool's own word
    """Pay somebody."""
    return f"{sum} paid\x1b[31m"


asking_pay = tool(approval="always", name="ask_pay")(lambda: "Paid.")
TOOLS = ("tests.midstream.terminal.tools:pay", "tests.midstream.terminal.tools:asking_pay")


def refuse_answers(monkeypatch: pytest.MonkeyPatch, *refusals: Refused) -> None:
    """The first answers to calls are refused, each for its reason."""
    answer_call, left = Sessions.answer_call, list(refusals)

    async def refused_first(self: Sessions, *asked: Any) -> Told:
        if left:
            raise left.pop(0)
        return await answer_call(self, *asked)

    monkeypatch.setattr(Sessions, "answer_call", refused_first)
