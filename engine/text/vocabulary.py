"""The texts of a tokenizer's tokens, looked up once each.

Uses only methods of transformers' tokenizers, and imports none of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from copy import copy
from functools import cache
from typing import Any, NamedTuple, cast

_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")


class Spelled(NamedTuple):
    """A token's readable text, with hexadecimal numbers for incomplete characters, and its bytes.

    `raw` is None for tokens without text: special tokens, and unknown ids.
    """

    token: str
    raw: bytes | None


class Vocabulary:
    """Looks up tokens. `is_byte_level`: tokens are bytes (GPT-2, Llama 3, Qwen), and decoding only joins them."""

    def __init__(self, tokenizer: Any) -> None:
        """Take a transformers tokenizer, fast or slow."""
        self._tokenizer = tokenizer
        self._backend = getattr(tokenizer, "backend_tokenizer", None)
        steps = _decoder_steps(self._backend)
        self.is_byte_level = steps == ["ByteLevel"]
        self._has_byte_tokens = "ByteFallback" in steps
        self._special = {id_ for id_, token in tokenizer.added_tokens_decoder.items() if token.special}
        self._special |= set(tokenizer.all_special_ids)
        self.piece = cache(self._piece)
        self.byte = cache(self._byte)
        self.spell = cache(self._spell)

    @property
    def special_names(self) -> frozenset[str]:
        """The names of special tokens, which stand for no text."""
        names = (self._tokenizer.convert_ids_to_tokens(id_) for id_ in self._special)
        return frozenset(name for name in names if name)

    def showing(self, names: Collection[str] | None) -> Vocabulary:
        """Return the same vocabulary, in which special tokens of these names have their name as text; None: all have."""
        named = {id_: self._tokenizer.convert_ids_to_tokens(id_) for id_ in self._special}
        shown = {id_: name for id_, name in named.items() if name and (names is None or name in names)}
        if not shown:
            return self
        spelled = {id_: Spelled(name, name.encode()) for id_, name in shown.items()}
        other: Any = copy(self)
        other.piece = lambda token_id: shown.get(token_id) or self.piece(token_id)
        other.spell = lambda token_id: spelled.get(token_id) or self.spell(token_id)
        return cast("Vocabulary", other)

    def decode(self, token_ids: list[int]) -> str:
        """Decode visible tokens together, without a clean-up of spaces, by the fast backend if there is one."""
        if self._backend is not None:
            text: str = self._backend.decode(token_ids, skip_special_tokens=False)
        else:
            text = self._tokenizer.decode(token_ids, clean_up_tokenization_spaces=False)
        return text

    def _piece(self, token_id: int) -> str | None:
        """Return the token as the vocabulary spells it; None if it has no text."""
        if token_id in self._special:
            return None
        piece: str | None = self._tokenizer.convert_ids_to_tokens(token_id)
        return piece or None

    def _byte(self, token_id: int) -> bytes | None:
        """Return the byte of a fallback token like `<0xE4>`; None for all other tokens."""
        piece = self.piece(token_id) if self._has_byte_tokens else None
        written = _BYTE_TOKEN.fullmatch(piece) if piece else None
        return bytes.fromhex(written[1]) if written else None

    def _spell(self, token_id: int) -> Spelled:
        """Return how a token reads in the middle of a text."""
        piece = self.piece(token_id)
        if piece is None:
            return Spelled(self._tokenizer.convert_ids_to_tokens(token_id) or "", None)
        raw = bytes_of(piece) if self.is_byte_level else self.byte(token_id) or self._added(token_id)
        return Spelled(readable(raw), raw)

    def _added(self, token_id: int) -> bytes:
        """Return what a token adds after itself, since tokenizers may strip a space from the front of a text."""
        once = self.decode([token_id])
        return self.decode([token_id, token_id])[len(once) :].encode()


def readable(raw: bytes) -> str:
    """Return the text of a token's bytes."""
    return raw.decode(errors="backslashreplace")


@cache
def bytes_of(piece: str) -> bytes:
    """Return the bytes of a piece of byte-level BPE. Added tokens, which may be outside its alphabet, are plain UTF-8."""
    alphabet = _alphabet()
    try:
        return bytes(alphabet[letter] for letter in piece)
    except KeyError:
        return piece.encode()


def _decoder_steps(backend: Any) -> list[str]:
    """Return the kinds of a fast tokenizer's decoders in order; none for a tokenizer without a fast backend."""
    if backend is None:
        return []
    decoder = json.loads(backend.to_str())["decoder"] or {"type": "none"}
    return [step["type"] for step in decoder.get("decoders", [decoder])]


@cache
def _alphabet() -> dict[str, int]:
    """Return the byte behind each letter of byte-level BPE (GPT-2, Radford et al. 2019).

    Bytes that are visible characters in Latin-1 are written as these; the others, in order, from U+0100 on.
    """
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + n): byte for n, byte in enumerate(hidden)}
