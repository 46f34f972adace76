"""Functions that services under test offer to models as server tools."""

from __future__ import annotations

from sessions.tools.function_tools import tool

PAID: list[str] = []
"""Whom `pay` has paid."""


def noon(zone: str) -> str:
    """Tells the time."""
    return f"It is noon in {zone}."


@tool(approval="always")
def pay(to: str) -> str:
    """Pays."""
    PAID.append(to)
    return f"{to} has it."
