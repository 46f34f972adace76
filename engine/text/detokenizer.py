"""Decodes tokens one at a time, with the same result as decoding the whole reply at once.

Unknown ids, and special tokens that the vocabulary does not show, are left out. The work for a token does not grow with the reply.
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
    """Decodes one reply."""

    def push(self, token_id: int) -> str:
        """Take the next token; return the text that is certain by now, possibly none."""
        ...

    def flush(self) -> str:
        """Return the rest at the end: U+FFFD for bytes that are no character."""
        ...

    @property
    def holds(self) -> bool:
        """Whether the last token ends within a character."""
        ...

    def spell(self, token_id: int) -> Spelled:
        """Return the text of a single token of the vocabulary."""
        ...


def detokenizers_for(tokenizer: Any) -> Callable[[], Detokenizer]:
    """Return a factory of detokenizers for this transformers tokenizer."""
    vocabulary = Vocabulary(tokenizer)
    return lambda: detokenizer_of(vocabulary)


def detokenizer_of(vocabulary: Vocabulary) -> Detokenizer:
    """Return a new detokenizer."""
    if vocabulary.is_byte_level:
        return ByteLevelDetokenizer(vocabulary)
    return WindowedDetokenizer(vocabulary)


class ByteLevelDetokenizer:
    """For byte-level BPE (GPT-2, Llama 3, Qwen): tokens are bytes of UTF-8."""

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
    """For all other tokenizers: a token's text is what it adds when decoded after the token before it.

    So a space that the tokenizer strips from the front of a text is stripped once, at the reply's front. Byte fallback tokens
    are decoded separately as UTF-8. If a run of them has both valid and invalid bytes, tokenizers drop the whole run. Here the
    valid characters are kept, since they may have been shown already, and each invalid byte becomes U+FFFD.
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
    """Decodes fallback bytes as UTF-8; each invalid byte becomes one U+FFFD, as in tokenizers."""

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
