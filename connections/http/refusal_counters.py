"""Counts refusals, for metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum


class Refusal(StrEnum):
    """Why a request or a connection was refused."""

    ADDRESS = "address"
    HOST = "host"
    ORIGIN = "origin"
    PENDING = "pending"
    CONNECTIONS = "connections"
    """The client has too many."""
    FULL = "full"
    """The server has no room for another connection of this peer."""
    RATE = "rate"


class EndpointName(StrEnum):
    """The endpoints."""

    NATIVE = "native"
    REALTIME = "realtime"
    TRANSLATIONS = "translations"
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
    """No route, or not this method."""


MAX_CODES = 64
"""Most codes of an endpoint that are counted apart: twice those that exist. Further ones count as `other`."""


class RefusalCounters:
    """Counters."""

    def __init__(self) -> None:
        self._counts: Counter[Refusal] = Counter()
        self._sent: dict[EndpointName, Counter[str]] = {endpoint: Counter() for endpoint in EndpointName}

    def count(self, refusal: Refusal) -> None:
        """Count one."""
        self._counts[refusal] += 1

    def count_error(self, endpoint: EndpointName, code: str) -> None:
        """Count an error that a client was sent. `code`: the protocol's, at every endpoint."""
        sent = self._sent[endpoint]
        sent[code if code in sent or len(sent) < MAX_CODES else "other"] += 1

    def sent(self) -> Mapping[EndpointName, Mapping[str, int]]:
        """Return the errors sent at each endpoint, by code."""
        return self._sent

    def statistics(self) -> Mapping[Refusal, int]:
        """Return the count of every reason, zeros included."""
        return {refusal: self._counts[refusal] for refusal in Refusal}
