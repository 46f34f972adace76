"""Tokens into text, one at a time: any reply comes out as if it had been decoded at once.

Special tokens and ids that the tokenizer does not know are left out. The work for a token does not
grow with the reply. Knows tokenizers of transformers by their methods alone, and imports none of them.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

_INVALID = "\ufffd"
_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")
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


def detokenizers_for(tokenizer: Any) -> Callable[[], Detokenizer]:
    """Return what makes a new detokenizer for each reply of this transformers tokenizer's model."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    steps = _decoder_steps(backend)
    vocabulary = _Vocabulary(tokenizer, backend, has_byte_tokens="ByteFallback" in steps)
    if steps == ["ByteLevel"]:
        return lambda: ByteLevelDetokenizer(vocabulary)
    return lambda: WindowedDetokenizer(vocabulary)


class _Vocabulary:
    """What the tokens of one tokenizer stand for, looked up once each."""

    def __init__(self, tokenizer: Any, backend: Any, *, has_byte_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._backend = backend
        self._has_byte_tokens = has_byte_tokens
        self._special = {id_ for id_, token in tokenizer.added_tokens_decoder.items() if token.special}
        self._special |= set(tokenizer.all_special_ids)
        self.piece = cache(self._piece)
        self.byte = cache(self._byte)

    def decode(self, token_ids: list[int]) -> str:
        """Decode visible tokens together, by the fast backend where there is one: no clean-up of spaces."""
        if self._backend is not None:
            text: str = self._backend.decode(token_ids, skip_special_tokens=False)
        else:
            text = self._tokenizer.decode(token_ids, clean_up_tokenization_spaces=False)
        return text

    def _piece(self, token_id: int) -> str | None:
        """Return the token as the vocabulary spells it, None where it stands for no text."""
        if token_id in self._special:
            return None
        piece: str | None = self._tokenizer.convert_ids_to_tokens(token_id)
        return piece or None

    def _byte(self, token_id: int) -> bytes | None:
        """Return the byte that a fallback token like `<0xE4>` stands for, None for all other tokens."""
        piece = self.piece(token_id) if self._has_byte_tokens else None
        written = _BYTE_TOKEN.fullmatch(piece) if piece else None
        return bytes.fromhex(written[1]) if written else None


class ByteLevelDetokenizer:
    """For byte-level BPE (GPT-2, Llama 3, Qwen): tokens are bytes, which UTF-8 puts together."""

    def __init__(self, vocabulary: _Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """See `Detokenizer`."""
        piece = self._vocabulary.piece(token_id)
        return self._decoder.decode(_spelled(piece)) if piece else ""

    def flush(self) -> str:
        """See `Detokenizer`."""
        return self._decoder.decode(b"", final=True)


class WindowedDetokenizer:
    """For all other tokenizers: a token's text is what it adds when it is decoded behind the token before it.

    So a space that the tokenizer strips from the front of a text is stripped once, at the reply's front.
    Byte fallback tokens are put together as UTF-8 beside that. Where a run of them holds both valid and invalid
    bytes, tokenizers give up the whole run; here the valid characters stand, for they may have been
    shown already, and each invalid byte becomes U+FFFD.
    """

    def __init__(self, vocabulary: _Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._before: list[int] = []
        self._pending: list[int] = []
        self._bytes = _ByteRun()

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
        self._waiting = b""

    def push(self, byte: bytes) -> str:
        waiting = self._waiting + byte
        try:
            text, used = codecs.utf_8_decode(waiting, "strict", False)
        except UnicodeDecodeError as error:
            self._waiting = b""
            return _INVALID * error.end + self.push(waiting[error.end :])
        self._waiting = waiting[used:]
        return text

    def end(self) -> str:
        waiting, self._waiting = self._waiting, b""
        return _INVALID * len(waiting)


def _decoder_steps(backend: Any) -> list[str]:
    """Return the kinds of a fast tokenizer's decoders in order, none for a tokenizer without such a backend."""
    if backend is None:
        return []
    decoder = json.loads(backend.to_str())["decoder"] or {"type": "none"}
    return [step["type"] for step in decoder.get("decoders", [decoder])]


@cache
def _alphabet() -> dict[str, int]:
    """Return the byte behind each letter of byte-level BPE (GPT-2, Radford et al. 2019).

    Bytes that Latin-1 shows as a visible character are written as it; the others, in order, from U+0100 on.
    """
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + n): byte for n, byte in enumerate(hidden)}


@cache
def _spelled(piece: str) -> bytes:
    """Return the bytes of a piece in that alphabet; added tokens, which may be written outside it, are plain UTF-8."""
    alphabet = _alphabet()
    try:
        return bytes(alphabet[letter] for letter in piece)
    except KeyError:
        return piece.encode()
