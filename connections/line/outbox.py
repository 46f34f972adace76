"""What waits to be sent to one connection: ordered, bounded, merging while the reader is late.

Neighbouring deltas of one turn become one delta; of a turn's statuses only the newest waits. `cancelled` overtakes
deltas, but nothing else; the ones beyond the cut are withdrawn. Pure: who waits for the socket is the connection's business.
"""

from __future__ import annotations

import re
import sys
from collections import deque

import msgspec

from connections.wire import codec
from connections.wire.frames import Cancelled, Frame
from sessions.events import Accepted, Bare, Delta, Done, Removed, Status, covering

MERGED_CHARS = 16 * 1024
"""A merged delta is at most four times as many bytes of UTF-8: 64 KiB."""
_FRAME_BYTES = 512
_MOST_FRESH = 32
_MOST_PARTS = 64
_SHORT_CHARS = 128
"""So many deltas, as short as these, wait before they are merged: a late reader is touched once for many of them."""
_STRING_BYTES = sys.getsizeof("")
_ESCAPED = re.compile(r'["\\\x00-\x1f]')
_SHORT_ESCAPES = frozenset('"\\\b\t\n\f\r')
"""JSON puts a backslash before these, and six characters in place of other control characters."""
_encoded = msgspec.json.Encoder().encode


class OutboxStatistics(msgspec.Struct, frozen=True):
    """Facts of one outbox. `bytes`: of the waiting frames as they are coded, and what each takes besides."""

    frames: int
    bytes: int
    merged: int


class _Text:
    """A waiting delta that may still grow."""

    __slots__ = ("bytes", "chars", "first", "last", "parts", "tokens")

    def __init__(self, delta: Delta) -> None:
        self.first = self.last = delta
        self.parts = [delta.text]
        self.bytes = self._own_bytes() + _taken(delta.text)
        self.chars = len(delta.text)
        self.tokens = delta.tokens

    def takes(self, delta: Delta) -> bool:
        return (
            delta.turn_id == self.first.turn_id
            and delta.first_seq == self.last.seq + 1
            and delta.off == self.first.off + self.chars
            and self.chars + len(delta.text) <= MERGED_CHARS
        )

    def grow(self, delta: Delta) -> int:
        """Takes the next delta; gives the bytes that it adds, of which joining takes some back."""
        before = self.bytes
        self.last = delta
        self.parts.append(delta.text)
        self.bytes += _taken(delta.text)
        self.chars += len(delta.text)
        self.tokens += delta.tokens
        if len(self.parts) >= _MOST_PARTS:  # each string takes fifty bytes beside its characters
            self.parts = ["".join(self.parts)]
            self.bytes = self._own_bytes() + _taken(self.parts[0])
        return self.bytes - before

    def _own_bytes(self) -> int:
        """What is there beside the text, of which only the conversation's id has no fixed length."""
        return _FRAME_BYTES + _taken(self.first.conversation_id)

    def delta(self) -> Delta:
        if self.first is self.last:
            return self.first
        return msgspec.structs.replace(
            self.first, seq=self.last.seq, text="".join(self.parts), tokens=self.tokens
        )


class _Whole:
    """A waiting frame that stays as it is. Its size is taken once: a string grows when it is encoded."""

    __slots__ = ("bytes", "frame")

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.bytes = _size(frame)


class Outbox:
    """Frames on their way to one transport."""

    __slots__ = (
        "_bytes",
        "_fresh",
        "_growing",
        "_handed",
        "_max_bytes",
        "_merged",
        "_statuses",
        "_waiting",
        "_withdrawn",
    )

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._waiting: deque[_Text | _Whole] = deque()
        self._fresh: list[Delta] = []  # behind all that waits, not merged so far
        self._growing: dict[str, _Text] = {}  # by conversation: the delta that is its newest event
        self._statuses: dict[str, _Whole] = {}  # by turn: the status that waits
        self._handed: dict[str, int] = {}
        self._withdrawn: dict[
            str, int
        ] = {}  # by conversation: the first seq that its next event has to cover
        self._bytes = 0
        self._merged = 0

    @property
    def waits(self) -> bool:
        """Whether anything waits."""
        return bool(self._fresh or self._waiting)

    @property
    def is_over_full(self) -> bool:
        """Whether more waits than may. One frame always fits; the few short deltas that are not merged so far don't count."""
        return self._bytes > self._max_bytes and len(self._waiting) > 1

    def put_nowait(self, frame: Frame) -> None:
        """Takes a frame. The bound is watched by whoever owns the connection: nothing is dropped here."""
        if isinstance(frame, Delta):
            self._fresh.append(frame)
            if len(self._fresh) >= _MOST_FRESH or len(frame.text) > _SHORT_CHARS:
                self._merge()
            return
        self._merge()
        match frame:
            case Accepted() | Done() | Removed():
                self._close(frame.conversation_id)
                self._put(_Whole(self._covering(frame)))
            case Cancelled():
                self._put_before_deltas(_Whole(frame))
            case Status():
                self._put_status(frame)
            case _:
                self._close(getattr(frame, "conversation_id", ""))
                self._put(_Whole(frame))

    def pass_nowait(self, frame: Frame) -> bool:
        """Lets text pass that nothing waits before, as if put in and taken out; False where it has to be put in."""
        if self.waits or not isinstance(frame, Delta):
            return False
        self._handed[frame.turn_id] = frame.off + len(frame.text)
        return True

    def take_nowait(self) -> Frame | None:
        """The next frame; it counts as handed to the transport."""
        self._merge()
        if not self._waiting:
            return None
        slot = self._waiting.popleft()
        self._bytes -= slot.bytes
        if isinstance(slot, _Whole):
            self._forget(slot.frame)
            return slot.frame
        if self._growing.get(slot.first.conversation_id) is slot:
            del self._growing[slot.first.conversation_id]
        delta = slot.delta()
        self._handed[delta.turn_id] = delta.off + len(delta.text)
        return delta

    def handed(self, turn_id: str) -> int:
        """The furthest offset of a running turn's text that was taken from here."""
        return self._handed.get(turn_id, 0)

    def withdraw(self, turn_id: str, chars: int) -> None:
        """Takes back what waits of a turn's text beyond `chars`; the event behind it covers the seqs."""
        self._merge()
        kept: deque[_Text | _Whole] = deque()
        for slot in self._waiting:
            if isinstance(slot, _Text) and slot.first.turn_id == turn_id:
                self._take_back(slot, chars, kept)
                continue
            if isinstance(slot, _Whole) and isinstance(slot.frame, Bare):
                slot.frame = self._covering(slot.frame)
            kept.append(slot)
        self._waiting = kept

    def statistics(self) -> OutboxStatistics:
        """Facts of this moment."""
        self._merge()
        return OutboxStatistics(len(self._waiting), self._bytes, self._merged)

    def _merge(self) -> None:
        for delta in self._fresh:
            self._put_delta(delta)
        self._fresh.clear()

    def _put_delta(self, delta: Delta) -> None:
        growing = self._growing.get(delta.conversation_id)
        if growing is not None and growing.takes(delta):
            self._bytes += growing.grow(delta)
            self._merged += 1
        else:
            self._growing[delta.conversation_id] = text = _Text(delta)
            self._put(text)

    def _put_status(self, status: Status) -> None:
        if (older := self._statuses.pop(status.turn_id, None)) is not None:
            self._waiting.remove(older)
            self._bytes -= older.bytes
            self._merged += 1
        self._close(status.conversation_id)
        self._statuses[status.turn_id] = newest = _Whole(status)
        self._put(newest)

    def _forget(self, taken: Frame) -> None:
        match taken:
            case Done():
                self._handed.pop(taken.turn_id, None)
            case Status():
                del self._statuses[taken.turn_id]

    def _put(self, slot: _Text | _Whole) -> None:
        self._waiting.append(slot)
        self._bytes += slot.bytes

    def _put_before_deltas(self, slot: _Whole) -> None:
        place = len(self._waiting)
        while place and isinstance(self._waiting[place - 1], _Text):
            place -= 1
        self._waiting.insert(place, slot)
        self._bytes += slot.bytes

    def _close(self, conversation_id: str) -> None:
        self._growing.pop(conversation_id, None)

    def _take_back(self, slot: _Text, chars: int, kept: deque[_Text | _Whole]) -> None:
        conversation_id = slot.first.conversation_id
        self._growing.pop(conversation_id, None)
        self._bytes -= slot.bytes
        if (left := _cut(slot, chars)) is None:
            self._withdrawn.setdefault(conversation_id, slot.first.first_seq)
        else:
            kept.append(left)
            self._bytes += left.bytes

    def _covering(self, event: Bare) -> Bare:
        if isinstance(event, Accepted) and event.duplicate:  # told once more, out of the order
            return event
        first = self._withdrawn.pop(event.conversation_id, None)
        return event if first is None else covering(event, first)


def _size(frame: Frame) -> int:
    """What a waiting frame counts for. Coding it counts all that it holds, whatever its kind; readers in a row share that."""
    return _FRAME_BYTES + len(codec.encode(frame))


def _taken(text: str) -> int:
    """What a part of a growing text counts for: as it is coded or as it lies in memory, whichever is more.

    It is never less than its bytes on the wire, and at most six times as many beside the string's own bytes. A string that
    is not ASCII is not coded by the codec here: it would keep a second copy of itself.
    """
    if text.isascii():
        return _STRING_BYTES + len(_encoded(text))
    escapes = sum(1 if one in _SHORT_ESCAPES else 5 for one in _ESCAPED.findall(text))
    return max(sys.getsizeof(text), _STRING_BYTES + len(text.encode(errors="surrogatepass")) + escapes)


def _cut(slot: _Text, chars: int) -> _Text | None:
    delta = slot.delta()
    if delta.off >= chars:
        return None
    return _Text(msgspec.structs.replace(delta, text=delta.text[: chars - delta.off]))
