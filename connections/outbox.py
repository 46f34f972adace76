"""The frames that wait for one connection: ordered, bounded, merged while the reader is late.

Adjacent deltas of a turn are merged, and so is its reasoning. Of a turn's statuses only the newest waits.
`cancelled` overtakes deltas, but nothing else; text beyond the cut is withdrawn. Events that the reader does not understand are
left out, and the next event covers their seqs. Pure: the connection waits for the socket.
"""

from __future__ import annotations

import re
import sys
from collections import deque

import msgspec

from connections.protocol import codec
from connections.protocol.frames import Cancelled, Frame, ReplySound
from sessions.events import (
    Accepted,
    ControlEvent,
    Delta,
    Status,
    Text,
    ToolCall,
    covering,
    first_seq_of,
    merge_text,
)
from sessions.turn.turn import SentOffsets

MERGED_CHARS = 16 * 1024
"""The most characters of a merged delta: at most four times as many bytes of UTF-8, 64 KiB."""
_FRAME_BYTES = 512
_MOST_FRESH = 32
_MOST_PARTS = 64
_SHORT_CHARS = 128
"""Some deltas of at most this length wait unmerged: a late reader then costs one merge for many of them."""
_STRING_BYTES = sys.getsizeof("")
_ESCAPED = re.compile(r'["\\\x00-\x1f]')
_SHORT_ESCAPES = frozenset('"\\\b\t\n\f\r')
"""JSON escapes these with a backslash, and other control characters as six characters."""
_encoded = msgspec.json.Encoder().encode


class OutboxStatistics(msgspec.Struct, frozen=True):
    """Counts of one outbox. `bytes`: the encoded size of the waiting frames, with their overhead."""

    frames: int
    bytes: int
    merged: int


class _MergedDelta:
    """A waiting delta, or reasoning, that may be extended."""

    __slots__ = ("bytes", "chars", "first", "last", "made_at", "parts", "sent", "tokens")

    def __init__(self, delta: Text, made_at: float | None, sent: SentOffsets | None) -> None:
        self.made_at = made_at
        self.sent = sent
        self.first: Text = delta
        self.last: Text = delta
        self.parts = [delta.text]
        self.bytes = self._own_bytes() + _text_bytes(delta.text)
        self.chars = len(delta.text)
        self.tokens = delta.tokens

    def takes(self, delta: Text) -> bool:
        return (
            type(delta) is type(self.first)
            and delta.turn_id == self.first.turn_id
            and delta.first_seq == self.last.seq + 1
            and delta.off == self.first.off + self.chars
            and self.chars + len(delta.text) <= MERGED_CHARS
        )

    def grow(self, delta: Text) -> int:
        """Append the next delta; return the bytes that it adds, less what joining the parts saves."""
        before = self.bytes
        self.last = delta
        self.parts.append(delta.text)
        self.bytes += _text_bytes(delta.text)
        self.chars += len(delta.text)
        self.tokens += delta.tokens
        if len(self.parts) >= _MOST_PARTS:  # each string has an overhead of fifty bytes
            self.parts = ["".join(self.parts)]
            self.bytes = self._own_bytes() + _text_bytes(self.parts[0])
        return self.bytes - before

    def _own_bytes(self) -> int:
        """Return the bytes apart from the text; only the conversation's id has a variable length."""
        return _FRAME_BYTES + _text_bytes(self.first.conversation_id)

    def cover(self, first_seq: int) -> None:
        """Let the delta cover all seqs from `first_seq` on."""
        was_alone = self.first is self.last
        self.first = msgspec.structs.replace(self.first, first_seq=first_seq)
        if was_alone:
            self.last = self.first

    def delta(self) -> Text:
        if self.first is self.last:
            return self.first
        return merge_text(self.first, self.last, text="".join(self.parts), tokens=self.tokens)


class _SingleFrame:
    """A waiting frame that does not change. Its size is computed once."""

    __slots__ = ("bytes", "frame")

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.bytes = _FRAME_BYTES + len(codec.encode(frame))  # successive readers share the encoding


class Outbox:
    """The frames on their way to one transport."""

    __slots__ = (
        "_bytes",
        "_fresh",
        "_growing",
        "_max_bytes",
        "_merged",
        "_statuses",
        "_waiting",
        "_withdrawn",
        "made_at",
    )

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._waiting: deque[_MergedDelta | _SingleFrame] = deque()
        self._fresh: list[tuple[Text, float | None, SentOffsets | None]] = []  # the newest, not merged yet
        self._growing: dict[str, _MergedDelta] = {}  # by conversation: the delta that is its newest event
        self._statuses: dict[str, _SingleFrame] = {}  # by turn: the status that waits
        # by conversation: the first seq that its next event has to cover
        self._withdrawn: dict[str, int] = {}
        self._bytes = 0
        self._merged = 0
        self.made_at: float | None = None
        """When the oldest part of the last taken frame was made, if it is text with a known time."""

    @property
    def bytes(self) -> int:
        """The size of what waits, without a few short unmerged deltas."""
        return self._bytes

    @property
    def is_over_limit(self) -> bool:
        """Whether the bound is exceeded. One frame always fits; the few short unmerged deltas don't count."""
        return self._bytes > self._max_bytes and len(self._waiting) > 1

    def put_nowait(self, frame: Frame, made_at: float | None = None, sent: SentOffsets | None = None) -> None:
        """Add a frame. `made_at`, `sent`: for text, when it was made, and where to report it once the transport has it.

        The connection enforces the bound: nothing is dropped here.
        """
        if isinstance(frame, Text):
            self._fresh.append((self._following(frame), made_at, sent))
            if len(self._fresh) >= _MOST_FRESH or len(frame.text) > _SHORT_CHARS:
                self._merge()
            return
        self._merge()
        match frame:
            case _ if isinstance(frame, ControlEvent):
                self._close(frame.conversation_id)
                self._put(_SingleFrame(self._covering(frame)))
            case Cancelled():
                self._put_before_deltas(_SingleFrame(frame))
            case Status():
                self._put_status(frame)
            case _:
                self._close(getattr(frame, "conversation_id", ""))
                self._put(_SingleFrame(frame))

    def pass_nowait(self, frame: Frame, sent: SentOffsets | None = None) -> Frame | None:
        """Pass a frame through if nothing waits before it, as if added and taken; None if it has to be added."""
        if self._fresh or self._waiting:
            return None
        if isinstance(frame, Text):
            text = self._following(frame)
            _report(text, sent)
            return text
        return self._covering(frame) if isinstance(frame, ControlEvent) else frame

    def leave_out(self, event: Text | ControlEvent) -> None:
        """Leave out an event that the reader does not understand: the next one covers its seqs."""
        self._withdrawn.setdefault(event.conversation_id, first_seq_of(event))

    def take_nowait(self) -> Frame | None:
        """Take the next frame; it counts as handed to the transport."""
        self._merge()
        if not self._waiting:
            return None
        slot = self._waiting.popleft()
        self._bytes -= slot.bytes
        self.made_at = None
        if isinstance(slot, _SingleFrame):
            if isinstance(slot.frame, Status):
                del self._statuses[slot.frame.turn_id]
            return slot.frame
        if self._growing.get(slot.first.conversation_id) is slot:
            del self._growing[slot.first.conversation_id]
        self.made_at = slot.made_at
        text = slot.delta()
        _report(text, slot.sent)
        return text

    def withdraw(self, turn_id: str, chars: int, reasoning_off: int) -> None:
        """Withdraw a turn's waiting text and calls beyond `chars`, and its reasoning beyond `reasoning_off`.

        The next event covers their seqs.
        """
        self._merge()
        left_out, self._withdrawn = self._withdrawn, {}
        kept: deque[_MergedDelta | _SingleFrame] = deque()
        for slot in self._waiting:
            if (left := self._left_of(slot, turn_id, chars, reasoning_off)) is not None:
                kept.append(left)
        self._waiting = kept
        for conversation_id, first_seq in left_out.items():
            self._withdrawn.setdefault(conversation_id, first_seq)

    def statistics(self) -> OutboxStatistics:
        """Return the current counts."""
        self._merge()
        return OutboxStatistics(len(self._waiting), self._bytes, self._merged)

    def _merge(self) -> None:
        for delta, made_at, sent in self._fresh:
            self._put_delta(delta, made_at, sent)
        self._fresh.clear()

    def _put_delta(self, delta: Text, made_at: float | None, sent: SentOffsets | None) -> None:
        growing = self._growing.get(delta.conversation_id)
        if growing is not None and growing.takes(delta):
            self._bytes += growing.grow(delta)
            self._merged += 1
        else:
            self._growing[delta.conversation_id] = text = _MergedDelta(delta, made_at, sent)
            self._put(text)

    def _put_status(self, status: Status) -> None:
        if (older := self._statuses.pop(status.turn_id, None)) is not None:
            self._waiting.remove(older)
            self._bytes -= older.bytes
            self._merged += 1
        self._close(status.conversation_id)
        self._statuses[status.turn_id] = newest = _SingleFrame(status)
        self._put(newest)

    def _put(self, slot: _MergedDelta | _SingleFrame) -> None:
        self._waiting.append(slot)
        self._bytes += slot.bytes

    def _put_before_deltas(self, slot: _SingleFrame) -> None:
        place = len(self._waiting)
        while place and isinstance(self._waiting[place - 1], _MergedDelta):
            place -= 1
        self._waiting.insert(place, slot)
        self._bytes += slot.bytes

    def _close(self, conversation_id: str) -> None:
        self._growing.pop(conversation_id, None)

    def _left_of(
        self, slot: _MergedDelta | _SingleFrame, turn_id: str, chars: int, reasoning_off: int
    ) -> _MergedDelta | _SingleFrame | None:
        """Return what remains of a waiting frame, which then covers the seqs withdrawn before it; None: nothing."""
        left: _MergedDelta | _SingleFrame | None = slot
        if isinstance(slot, _MergedDelta) and slot.first.turn_id == turn_id:
            self._growing.pop(slot.first.conversation_id, None)
            left = _truncated(slot, chars if type(slot.first) is Delta else reasoning_off)
        elif isinstance(slot, _MergedDelta):
            left = slot
        elif _is_beyond(slot.frame, turn_id, chars):
            left = None
        self._bytes += (0 if left is None else left.bytes) - slot.bytes
        if left is None:
            self._withhold(slot)
        elif isinstance(left, _MergedDelta):
            if (first := self._withdrawn.pop(left.first.conversation_id, None)) is not None:
                left.cover(first)
        elif isinstance(left.frame, ControlEvent):
            left.frame = self._covering(left.frame)
        return left

    def _withhold(self, slot: _MergedDelta | _SingleFrame) -> None:
        event = slot.first if isinstance(slot, _MergedDelta) else slot.frame
        if isinstance(event, Text | ToolCall):
            self.leave_out(event)

    def _following(self, text: Text) -> Text:
        """Return the text, which covers the seqs left out before it."""
        if not self._withdrawn or (first := self._withdrawn.pop(text.conversation_id, None)) is None:
            return text
        return covering(text, first)

    def _covering(self, event: ControlEvent) -> ControlEvent:
        if isinstance(event, Accepted) and event.duplicate:  # a repeated one comes out of order
            return event
        first = self._withdrawn.pop(event.conversation_id, None)
        return event if first is None else covering(event, first)


def _report(text: Text, sent: SentOffsets | None) -> None:
    """Report that text was handed to the transport."""
    if sent is None:
        return
    end = text.off + len(text.text)
    if type(text) is Delta:
        sent.text = max(sent.text, end)
    else:
        sent.reasoning = max(sent.reasoning, end)


def _is_beyond(frame: Frame, turn_id: str, chars: int) -> bool:
    """Return whether a frame belongs to the part of a turn that is cut off."""
    if isinstance(frame, ToolCall):
        return frame.turn_id == turn_id and frame.off > chars
    return isinstance(frame, ReplySound) and frame.turn_id == turn_id


def _text_bytes(text: str) -> int:
    """Return the size of a part of a growing text: encoded or in memory, whichever is larger.

    It is at least the bytes on the wire, and apart from the string's own overhead at most six times as many. Non-ASCII strings
    are not encoded as JSON for this, since each would keep a second copy of itself.
    """
    if text.isascii():
        return _STRING_BYTES + len(_encoded(text))
    escapes = sum(1 if one in _SHORT_ESCAPES else 5 for one in _ESCAPED.findall(text))
    return max(sys.getsizeof(text), _STRING_BYTES + len(text.encode(errors="surrogatepass")) + escapes)


def _truncated(slot: _MergedDelta, chars: int) -> _MergedDelta | None:
    delta = slot.delta()
    if delta.off >= chars:
        return None
    return _MergedDelta(
        msgspec.structs.replace(delta, text=delta.text[: chars - delta.off]), slot.made_at, slot.sent
    )
