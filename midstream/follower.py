"""Follows a conversation: all of its frames, in order. Knows nothing of connections."""

from __future__ import annotations

import asyncio
from typing import Any

from midstream.errors import ClientError
from midstream.journal import Position

Frame = dict[str, Any]
EVENTS = frozenset({"accepted", "delta", "reasoning", "source", "tool_call", "tool_state", "done", "removed"})
_ALWAYS = EVENTS | {"status", "gap", "snapshot", "deleted"}
_ANSWERS = frozenset({"history", "resumed"})
"""Answers: only those to the follower's requests, and a history that nobody asked for (of a new active branch)."""


class Follower:
    """Takes the frames of a conversation, without repetitions."""

    def __init__(self, conversation_id: str, ref: str) -> None:
        self.conversation_id = conversation_id
        self.ref = ref
        self.position: Position | None = None
        self._is_begun = False
        self._frames: asyncio.Queue[Frame | ClientError] = asyncio.Queue()

    async def next(self) -> Frame:
        """Return the next frame. Raises what ended the conversation for this client."""
        frame = await self._frames.get()
        if isinstance(frame, ClientError):
            raise frame
        return frame

    def begin(self, epoch: str, after_seq: int) -> None:
        """Note that everything up to here was seen before."""
        self.position = Position(epoch, after_seq)

    def take(self, frame: Frame) -> None:
        """Take a frame. Frames before the answer to the request are skipped: the answer has them, or they come again."""
        kind, ref = frame["type"], frame.get("ref")
        self._is_begun |= ref == self.ref
        if not self._is_begun or (kind not in _ALWAYS and not (kind in _ANSWERS and ref in (None, self.ref))):
            return
        if kind in {"history", "snapshot"}:
            self.begin(frame["epoch"], frame["seq"])
        elif kind in EVENTS and not self._is_next(frame):
            return
        self._frames.put_nowait(frame)

    def _is_next(self, event: Frame) -> bool:
        """Return whether an event follows the last one. One behind a gap does not: it comes again, with what is missing."""
        position, seq = self.position, event["seq"]
        first = event.get("first_seq") or seq
        if position is None or seq <= position.seq or first > position.seq + 1:
            return False
        position.seq = seq
        return True

    def fail(self, error: ClientError) -> None:
        """End: nothing more comes."""
        self._frames.put_nowait(error)
