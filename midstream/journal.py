"""A client's position in one conversation's journal, where a new connection resumes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Position:
    """An epoch and its last seen seq; `holed`: whether earlier events were missed."""

    epoch: str
    seq: int
    holed: bool = False

    def take(self, frame: dict[str, Any]) -> None:
        """Note an event; frames without a seq are not events, and events may be repeated."""
        if (seq := frame.get("seq")) is None:
            return
        self.holed |= frame.get("first_seq", seq) > self.seq + 1
        self.seq = max(self.seq, seq)
