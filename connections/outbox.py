"""What waits to be sent to one connection: ordered, bounded, merging while the reader is late.

Neighbouring deltas of one turn become one delta. `cancelled` overtakes deltas, and the ones beyond the cut are
withdrawn. The logic is synchronous; only `take` waits.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque

import msgspec

from connections.frames import Cancelled, Frame
from sessions.events import Delta, Done

MERGED_CHARS = 16 * 1024
"""A merged delta is at most four times as many bytes of UTF-8: 64 KiB."""
_FRAME_BYTES = 512


class OutboxStatistics(msgspec.Struct, frozen=True):
    """Facts of one outbox. `bytes`: memory that the waiting frames take, about."""

    frames: int
    bytes: int
    merged: int


class _Text:
    """A waiting delta that may still grow."""

    __slots__ = ("chars", "first", "last", "parts", "tokens")

    def __init__(self, delta: Delta) -> None:
        self.first = self.last = delta
        self.parts = [delta.text]
        self.chars = len(delta.text)
        self.tokens = delta.tokens

    def takes(self, delta: Delta) -> bool:
        return (
            delta.turn_id == self.first.turn_id
            and delta.first_seq == self.last.seq + 1
            and delta.off == self.first.off + self.chars
            and self.chars + len(delta.text) <= MERGED_CHARS
        )

    def grow(self, delta: Delta) -> None:
        self.last = delta
        self.parts.append(delta.text)
        self.chars += len(delta.text)
        self.tokens += delta.tokens

    def delta(self) -> Delta:
        if self.first is self.last:
            return self.first
        return msgspec.structs.replace(
            self.first, seq=self.last.seq, text="".join(self.parts), tokens=self.tokens
        )


class Outbox:
    """Frames on their way to one transport."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._waiting: deque[_Text | Frame] = deque()
        self._growing: dict[str, _Text] = {}  # by conversation: the delta that is its newest event
        self._handed: dict[str, int] = {}
        self._withdrawn: dict[str, int] = {}
        self._bytes = 0
        self._merged = 0
        self._news = asyncio.Event()
        self._emptied = asyncio.Event()

    @property
    def is_over_full(self) -> bool:
        """Whether more waits than may."""
        return self._bytes > self._max_bytes

    def put_nowait(self, frame: Frame) -> None:
        """Takes a frame. The bound is watched by whoever owns the connection: nothing is dropped here."""
        match frame:
            case Delta():
                self._put_delta(frame)
            case Done():
                self._close(frame.conversation_id)
                self._put(self._covering(frame))
            case Cancelled():
                self._put_before_deltas(frame)
            case _:
                self._close(getattr(frame, "conversation_id", ""))
                self._put(frame)
        self._news.set()
        self._emptied.clear()

    def take_nowait(self) -> Frame | None:
        """The next frame; it counts as handed to the transport."""
        if not self._waiting:
            return None
        slot = self._waiting.popleft()
        self._bytes -= _size(slot)
        if not isinstance(slot, _Text):
            if isinstance(slot, Done):
                self._handed.pop(slot.turn_id, None)
            return slot
        if self._growing.get(slot.first.conversation_id) is slot:
            del self._growing[slot.first.conversation_id]
        delta = slot.delta()
        self._handed[delta.turn_id] = delta.off + len(delta.text)
        return delta

    async def take(self) -> Frame:
        """Waits for the next frame."""
        while (frame := self.take_nowait()) is None:
            self._emptied.set()
            self._news.clear()
            await self._news.wait()
        return frame

    async def emptied(self) -> None:
        """Waits until the writer has sent all and asks for more."""
        await self._emptied.wait()

    def handed(self, turn_id: str) -> int:
        """The furthest offset of a running turn's text that was taken from here."""
        return self._handed.get(turn_id, 0)

    def withdraw(self, turn_id: str, chars: int) -> None:
        """Takes back what waits of a turn's text beyond `chars`; the turn's `done` will cover the seqs."""
        kept: deque[_Text | Frame] = deque()
        for slot in self._waiting:
            if not isinstance(slot, _Text) or slot.first.turn_id != turn_id:
                kept.append(slot)
                continue
            self._growing.pop(slot.first.conversation_id, None)
            self._bytes -= _size(slot)
            if (left := _cut(slot, chars)) is None:
                self._withdrawn.setdefault(turn_id, slot.first.first_seq)
            else:
                kept.append(left)
                self._bytes += _size(left)
        self._waiting = kept

    def statistics(self) -> OutboxStatistics:
        """Facts of this moment."""
        return OutboxStatistics(len(self._waiting), self._bytes, self._merged)

    def _put_delta(self, delta: Delta) -> None:
        growing = self._growing.get(delta.conversation_id)
        if growing is not None and growing.takes(delta):
            self._bytes += sys.getsizeof(delta.text)
            self._merged += 1
            growing.grow(delta)
        else:
            self._growing[delta.conversation_id] = text = _Text(delta)
            self._put(text)

    def _put(self, slot: _Text | Frame) -> None:
        self._waiting.append(slot)
        self._bytes += _size(slot)

    def _put_before_deltas(self, frame: Frame) -> None:
        place = next(
            (place for place, slot in enumerate(self._waiting) if isinstance(slot, _Text)), len(self._waiting)
        )
        self._waiting.insert(place, frame)
        self._bytes += _size(frame)

    def _close(self, conversation_id: str) -> None:
        self._growing.pop(conversation_id, None)

    def _covering(self, done: Done) -> Done:
        first = self._withdrawn.pop(done.turn_id, None)
        if first is None:
            return done
        return msgspec.structs.replace(done, first_seq=min(first, done.first_seq or done.seq))


def _size(slot: _Text | Frame) -> int:
    if isinstance(slot, _Text):
        return _FRAME_BYTES + sum(map(sys.getsizeof, slot.parts))
    messages = getattr(slot, "messages", ())
    return _FRAME_BYTES + sum(_FRAME_BYTES + sys.getsizeof(message.content) for message in messages)


def _cut(slot: _Text, chars: int) -> _Text | None:
    delta = slot.delta()
    if delta.off >= chars:
        return None
    return _Text(msgspec.structs.replace(delta, text=delta.text[: chars - delta.off]))
