"""How far this client has seen one conversation's journal, which is where a new connection goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Position:
    """An epoch and the last seq that was seen of it; `holed` where events before that were missed."""

    epoch: str
    seq: int
    holed: bool = False

    def take(self, frame: dict[str, Any]) -> None:
        """Counts an event in; frames without a seq are none, and events may come again."""
        if (seq := frame.get("seq")) is None:
            return
        self.holed |= frame.get("first_seq", seq) > self.seq + 1
        self.seq = max(self.seq, seq)
