"""Tokens into text, one at a time: any reply comes out as if it had been decoded at once.

Special tokens, but for those that a vocabulary shows, and ids that the tokenizer does not know are left out. The work for a token does not
grow with the reply.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable
from typing import Any, Protocol

from engine.text.vocabulary import Spelled, Vocabulary, bytes_of

_INVALID = "\ufffd"
_MOST_PENDING = 4
"""Tokens that may make one character together: a UTF-8 sequence has four bytes at most."""


class Detokenizer(Protocol):
    """Makes one reply's text."""

    def push(self, token_id: int) -> str:
        """Take the next token; return the text that became certain by it, possibly none."""
        ...

    def flush(self) -> str:
        """Return what is left at the end: U+FFFD for bytes that became no character."""
        ...

    @property
    def holds(self) -> bool:
        """Whether a part of the last token is no text yet: it is a beginning of a character."""
        ...

    def spell(self, token_id: int) -> Spelled:
        """Return how any token of the vocabulary reads by itself."""
        ...


def detokenizers_for(tokenizer: Any) -> Callable[[], Detokenizer]:
    """Return what makes a new detokenizer for each reply of this transformers tokenizer's model."""
    vocabulary = Vocabulary(tokenizer)
    return lambda: detokenizer_of(vocabulary)


def detokenizer_of(vocabulary: Vocabulary) -> Detokenizer:
    """Return a new detokenizer."""
    if vocabulary.is_byte_level:
        return ByteLevelDetokenizer(vocabulary)
    return WindowedDetokenizer(vocabulary)


class ByteLevelDetokenizer:
    """For byte-level BPE (GPT-2, Llama 3, Qwen): tokens are bytes, which UTF-8 puts together."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.spell = vocabulary.spell

    def push(self, token_id: int) -> str:
        """See `Detokenizer`."""
        piece = self._vocabulary.piece(token_id)
        return self._decoder.decode(bytes_of(piece)) if piece else ""

    def flush(self) -> str:
        """See `Detokenizer`."""
        return self._decoder.decode(b"", final=True)

    @property
    def holds(self) -> bool:
        """See `Detokenizer`."""
        return bool(self._decoder.getstate()[0])


class WindowedDetokenizer:
    """For all other tokenizers: a token's text is what it adds when it is decoded behind the token before it.

    So a space that the tokenizer strips from the front of a text is stripped once, at the reply's front.
    Byte fallback tokens are put together as UTF-8 beside that. Where a run of them holds both valid and invalid
    bytes, tokenizers give up the whole run; here the valid characters stand, for they may have been
    shown already, and each invalid byte becomes U+FFFD.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._before: list[int] = []
        self._pending: list[int] = []
        self._bytes = _ByteRun()
        self.spell = vocabulary.spell

    def push(self, token_id: int) -> str:
        """See `Detokenizer`."""
        if self._vocabulary.piece(token_id) is None:
            return ""
        byte = self._vocabulary.byte(token_id)
        if byte is None:
            return self._bytes.end() + self._push_piece(token_id)
        return self._take_pending() + self._push_byte(token_id, byte)

    def flush(self) -> str:
        """See `Detokenizer`."""
        return self._take_pending() + self._bytes.end()

    @property
    def holds(self) -> bool:
        """See `Detokenizer`."""
        return bool(self._pending or self._bytes.waiting)

    def _push_piece(self, token_id: int) -> str:
        self._pending.append(token_id)
        added = self._added()
        unfinished = added.endswith(_INVALID) and len(self._pending) < _MOST_PENDING
        return "" if unfinished else self._take(added)

    def _push_byte(self, token_id: int, byte: bytes) -> str:
        if self._before:
            return self._bytes.push(byte)
        self._before = [token_id]
        return self._vocabulary.decode([token_id]) if byte == b" " else self._bytes.push(byte)

    def _take_pending(self) -> str:
        return self._take(self._added()) if self._pending else ""

    def _added(self) -> str:
        decode = self._vocabulary.decode
        before = decode(self._before) if self._before else ""
        return decode(self._before + self._pending)[len(before) :]

    def _take(self, added: str) -> str:
        self._before, self._pending = self._pending, []
        return added


class _ByteRun:
    """Puts fallback bytes together as UTF-8; each byte of what is invalid becomes one U+FFFD, as in tokenizers."""

    def __init__(self) -> None:
        self.waiting = b""

    def push(self, byte: bytes) -> str:
        waiting = self.waiting + byte
        try:
            text, used = codecs.utf_8_decode(waiting, "strict", False)
        except UnicodeDecodeError as error:
            self.waiting = b""
            return _INVALID * error.end + self.push(waiting[error.end :])
        self.waiting = waiting[used:]
        return text

    def end(self) -> str:
        waiting, self.waiting = self.waiting, b""
        return _INVALID * len(waiting)
