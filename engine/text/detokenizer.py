"""Decodes a tokenizer's tokens one at a time, and finds where a text may be cut.

The result is the same as decoding the whole reply at once. Unknown ids, and special tokens that the vocabulary does not
show, are left out. The work for a token does not grow with the reply. Calls methods of transformers' tokenizers, but does
not import transformers. User-perceived characters (UAX #29's extended grapheme clusters) are never split.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Collection
from copy import copy
from functools import cache
from typing import Any, NamedTuple

import regex


class Spelled(NamedTuple):
    """A token's readable text, with hexadecimal escapes for incomplete characters, and its bytes.

    `raw` is None for tokens without text: special tokens, and unknown ids.
    """

    token: str
    raw: bytes | None


class Vocabulary:
    """Looks up the bytes of tokens."""

    def __init__(self, tokenizer: Any) -> None:
        """Take a transformers tokenizer, fast or slow."""
        self._tokenizer = tokenizer
        self._backend = getattr(tokenizer, "backend_tokenizer", None)
        steps = _decoder_steps(self._backend)
        self._is_byte_level = steps == ["ByteLevel"]
        self._has_byte_tokens = "ByteFallback" in steps
        self.special = {id_ for id_, token in tokenizer.added_tokens_decoder.items() if token.special}
        """The ids of special tokens, which stand for no text."""
        self.special |= set(tokenizer.all_special_ids)
        self._bytes = cache(self._decoded_bytes)

    @property
    def special_names(self) -> frozenset[str]:
        """The names of the special tokens."""
        return frozenset(filter(None, map(self._name, self.special)))

    def showing(self, names: Collection[str] | None) -> Vocabulary:
        """Return this vocabulary with the special tokens `names` decoded as their names; None: all special tokens."""
        shown = {id_ for id_ in self.special if names is None or self._name(id_) in names}
        if not shown:
            return self
        other = copy(self)
        other.special = self.special - shown
        return other

    def raw(self, token_id: int) -> bytes | None:
        """Return the bytes that a token adds to a text, which may end within a character; None if it has no text."""
        return None if token_id in self.special else self._bytes(token_id)

    def spell(self, token_id: int) -> Spelled:
        """Return how a token reads in the middle of a text."""
        raw = self.raw(token_id)
        name = self._name(token_id) if raw is None else raw.decode(errors="backslashreplace")
        return Spelled(name, raw)

    def first(self, token_id: int) -> bytes:
        """Return the bytes of a token with text at a text's front, where tokenizers may strip a space."""
        spelled = self._spelled(self._name(token_id))
        return self._decode(token_id).encode() if spelled is None or spelled == b" " else spelled

    def _decoded_bytes(self, token_id: int) -> bytes | None:
        if not (name := self._name(token_id)):
            return None
        spelled = self._spelled(name)
        if spelled is not None:
            return spelled
        return self._decode(token_id, token_id)[len(self._decode(token_id)) :].encode()

    def _spelled(self, name: str) -> bytes | None:
        """Return the bytes that a token's name spells; None if only decoding the token gives them."""
        if self._is_byte_level:
            return _bytes_of(name)
        written = _BYTE_TOKEN.fullmatch(name) if self._has_byte_tokens else None
        return bytes.fromhex(written[1]) if written else None

    def _name(self, token_id: int) -> str:
        """Return the token as the vocabulary spells it, or an empty string."""
        name: str | None = self._tokenizer.convert_ids_to_tokens(token_id)
        return name or ""

    def _decode(self, *token_ids: int) -> str:
        """Decode tokens together, without a clean-up of spaces, by the fast backend if there is one."""
        if self._backend is not None:
            text: str = self._backend.decode(list(token_ids), skip_special_tokens=False)
        else:
            text = self._tokenizer.decode(list(token_ids), clean_up_tokenization_spaces=False)
        return text


_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")


def _bytes_of(piece: str) -> bytes:
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
    """Return the byte that each letter of byte-level BPE encodes (GPT-2, Radford et al. 2019).

    Bytes that are visible Latin-1 characters stand for themselves; the others, in order, are U+0100 and up.
    """
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + n): byte for n, byte in enumerate(hidden)}


class Detokenizer:
    """Decodes one reply: joins the bytes of its tokens, and passes on whole code points.

    If a run of fallback bytes has both valid and invalid ones, tokenizers drop the whole run. Here the valid characters
    are kept, since they may have been shown already.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._has_begun = False

    def push(self, token_id: int) -> str:
        """Take the next token; return the text that is certain by now, possibly none."""
        raw = self._vocabulary.raw(token_id)
        if raw is None:
            return ""
        if not self._has_begun:
            self._has_begun, raw = True, self._vocabulary.first(token_id)
        return self._decoder.decode(raw)

    def flush(self) -> str:
        """Return the rest at the end: U+FFFD for bytes that form no character."""
        return self._decoder.decode(b"", final=True)

    @property
    def holds(self) -> bool:
        """Whether the last token ends within a character."""
        return bool(self._decoder.getstate()[0])


MOST_HELD = 64
"""The most code points of an unfinished cluster that are held back."""

_UNFINISHED = regex.compile(
    r"[\p{Extended_Pictographic}\p{Emoji_Modifier}\p{Regional_Indicator}\p{Join_Control}\p{Variation_Selector}"
    r"\p{Indic_Syllabic_Category=Virama}\p{Indic_Syllabic_Category=Invisible_Stacker}"
    r"\p{Hangul_Syllable_Type=L}\p{Hangul_Syllable_Type=V}\p{Hangul_Syllable_Type=T}"
    r"\U000E0020-\U000E007F]"
)
_CLUSTER = regex.compile(r"\X")
_REGIONAL = regex.compile(r"\p{Regional_Indicator}")
_FIRST_UNFINISHED = "\xa9"
_NEAR = 256


def whole_length(text: str) -> int:
    """Return how many code points of `text`, the unshown part of a reply, may be shown now.

    If the last code point may be continued (an emoji, its modifier or its tag, half a flag, a joiner, a variation selector, a
    virama, a jamo), its cluster waits. A cluster of `MOST_HELD` code points waits no longer.
    """
    if not text or text[-1] < _FIRST_UNFINISHED or not _UNFINISHED.match(text[-1]):
        return len(text)
    start = _cluster_start(text, len(text) - 1)
    return len(text) if len(text) - start >= MOST_HELD else start


def floor_boundary(text: str, offset: int) -> int:
    """Return the largest offset that is at most `offset` and inside no cluster. Looks only at text near it."""
    if offset <= 0:
        return 0
    if offset >= len(text):
        return len(text)
    return _cluster_start(text, offset)


def ceil_boundary(text: str, offset: int) -> int:
    """Return the smallest offset that is at least `offset` and inside no cluster, or the text's end."""
    start = floor_boundary(text, offset)
    whole = None if start >= offset else _CLUSTER.match(text, start)
    return start if whole is None else whole.end()


def _cluster_start(text: str, index: int) -> int:
    """Return the start of the cluster that contains the code point at `index`. It is looked for in the `_NEAR` before."""
    begin = max(0, index - _NEAR)
    while begin and _REGIONAL.match(text[begin]):  # flags are pairs, counted from the first
        begin -= 1
    *_, last = _CLUSTER.finditer(text[begin : index + 1])
    return begin + last.start()
