"""How many were turned away, and why: facts for metrics."""

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
    RATE = "rate"


class Refusals:
    """Counts that only grow."""

    def __init__(self) -> None:
        self._counts: Counter[Refusal] = Counter()

    def count(self, refusal: Refusal) -> None:
        """Counts one."""
        self._counts[refusal] += 1

    def statistics(self) -> Mapping[Refusal, int]:
        """The count of every reason, zeros too."""
        return {refusal: self._counts[refusal] for refusal in Refusal}
