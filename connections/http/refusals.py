"""How many were turned away and what clients were refused: facts for metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum


class Refusal(StrEnum):
    """Why somebody was turned away."""

    ADDRESS = "address"
    HOST = "host"
    ORIGIN = "origin"
    PENDING = "pending"
    CONNECTIONS = "connections"
    """A client has as many as it may."""
    FULL = "full"
    """The server has as many connections as it can take from somebody."""
    RATE = "rate"


class Door(StrEnum):
    """Where clients come in."""

    NATIVE = "native"
    REALTIME = "realtime"
    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"
    AG_UI = "ag_ui"
    MODELS = "models"
    EMBEDDINGS = "embeddings"
    TRANSCRIPTIONS = "transcriptions"
    SPEECH = "speech"
    EVENTS = "events"
    TICKETS = "tickets"
    ATTACHMENTS = "attachments"
    SHARES = "shares"
    ACCOUNT = "account"
    ADMIN = "admin"
    AI_SDK = "ai_sdk"
    NONE = "none"
    """Nothing is served there, or not so."""


MOST_CODES = 64
"""Codes that a door is counted by; there are half as many. Whatever comes beyond them is counted as `other`."""


class Refusals:
    """Counts that only grow."""

    def __init__(self) -> None:
        self._counts: Counter[Refusal] = Counter()
        self._told: dict[Door, Counter[str]] = {door: Counter() for door in Door}

    def count(self, refusal: Refusal) -> None:
        """Counts one."""
        self._counts[refusal] += 1

    def tell(self, door: Door, code: str) -> None:
        """Counts an error that a client was told. `code`: the protocol's word for it, at every door."""
        told = self._told[door]
        told[code if code in told or len(told) < MOST_CODES else "other"] += 1

    def told(self) -> Mapping[Door, Mapping[str, int]]:
        """What was told at each door, by code."""
        return self._told

    def statistics(self) -> Mapping[Refusal, int]:
        """The count of every reason, zeros too."""
        return {refusal: self._counts[refusal] for refusal in Refusal}
