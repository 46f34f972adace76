"""The pieces of a reply that wait for its reader: text with its tokens' log-probabilities, reasoning, calls. Pure."""

from __future__ import annotations

import sys
from collections import deque

import msgspec

from engine.messages import ChosenToken, ToolCall
from sessions.filters.chain import ReleasedText

MAX_PIECE_LOGPROBS = 64
"""Most tokens of a piece: their log-probabilities may be twenty times as long as the text, and encoding them blocks others."""
_LIKELY_BYTES = 192
_CALL_BYTES = 256
"""Memory of a piece beside its texts."""


class TextPiece(msgspec.Struct, frozen=True):
    """Text, none perhaps, and what is told of tokens whose text has been told by now."""

    text: str
    logprobs: tuple[ChosenToken, ...] = ()


class ReasoningPiece(msgspec.Struct, frozen=True):
    """Reasoning, never empty."""

    text: str


Piece = TextPiece | ReasoningPiece | ToolCall


class _BufferedRun:
    """Neighbours of one kind, which are taken together."""

    __slots__ = ("bytes", "is_reasoning", "logprobs", "texts")

    def __init__(self, *, is_reasoning: bool) -> None:
        self.is_reasoning = is_reasoning
        self.texts: list[str] = []
        self.logprobs: list[ChosenToken] = []
        self.bytes = 0

    def put(self, released: ReleasedText) -> None:
        self.texts.append(released.text)
        self.logprobs += released.logprobs
        self.bytes += sys.getsizeof(released.text) + sum(map(_size, released.logprobs))

    def take(self) -> TextPiece | ReasoningPiece:
        """Return all of the text, and as many tokens as a piece may have."""
        text, logprobs = "".join(self.texts), tuple(self.logprobs[:MAX_PIECE_LOGPROBS])
        self.texts.clear()
        del self.logprobs[:MAX_PIECE_LOGPROBS]
        self.bytes = sum(map(_size, self.logprobs))
        return ReasoningPiece(text) if self.is_reasoning else TextPiece(text, logprobs)


class ReplyBuffer:
    """Keeps the order; text and reasoning merge with their neighbours while the reader is late. `bytes`: approximate memory."""

    def __init__(self) -> None:
        self._pieces: deque[_BufferedRun | ToolCall] = deque()
        self.bytes = 0

    def add_text(self, released: ReleasedText) -> None:
        """Add text."""
        self._put(released, is_reasoning=False)

    def add_reasoning(self, released: ReleasedText) -> None:
        """Add reasoning."""
        self._put(released, is_reasoning=True)

    def call(self, call: ToolCall) -> None:
        """Add a call."""
        self._pieces.append(call)
        self.bytes += _call_size(call)

    def take(self) -> Piece | None:
        """Return the oldest piece, or None. A text with many tokens gives some of them later, perhaps without text."""
        if not self._pieces:
            return None
        first = self._pieces[0]
        if isinstance(first, ToolCall):
            self._pieces.popleft()
            self.bytes -= _call_size(first)
            return first
        self.bytes -= first.bytes
        piece = first.take()
        self.bytes += first.bytes
        if not first.logprobs:
            self._pieces.popleft()
        return piece

    def clear(self) -> None:
        """Drop all."""
        self._pieces.clear()
        self.bytes = 0

    def _put(self, released: ReleasedText, *, is_reasoning: bool) -> None:
        last = self._pieces[-1] if self._pieces else None
        if not isinstance(last, _BufferedRun) or last.is_reasoning is not is_reasoning:
            last = _BufferedRun(is_reasoning=is_reasoning)
            self._pieces.append(last)
        self.bytes -= last.bytes
        last.put(released)
        self.bytes += last.bytes


def _size(token: ChosenToken) -> int:
    return _LIKELY_BYTES * (1 + len(token.top))


def _call_size(call: ToolCall) -> int:
    return _CALL_BYTES + sum(map(sys.getsizeof, (call.call_id, call.name, call.arguments)))
