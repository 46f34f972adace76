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
from typing import Any, NamedTuple, Protocol, cast

import regex

_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")
_INVALID = "\ufffd"

_MOST_PENDING = 4
"""The most tokens that one character may span: a UTF-8 sequence has at most four bytes."""


class Spelled(NamedTuple):
    """A token's readable text, with hexadecimal escapes for incomplete characters, and its bytes.

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
        """Return this vocabulary with the special tokens `names` decoded as their names; None: all special tokens."""
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
        return Spelled(raw.decode(errors="backslashreplace"), raw)

    def _added(self, token_id: int) -> bytes:
        """Return the bytes that a token adds when repeated, since tokenizers may strip a space from a text's front."""
        once = self.decode([token_id])
        return self.decode([token_id, token_id])[len(once) :].encode()


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
    """Return the byte that each letter of byte-level BPE encodes (GPT-2, Radford et al. 2019).

    Bytes that are visible Latin-1 characters stand for themselves; the others, in order, are U+0100 and up.
    """
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + n): byte for n, byte in enumerate(hidden)}


class Detokenizer(Protocol):
    """Decodes one reply."""

    def push(self, token_id: int) -> str:
        """Take the next token; return the text that is certain by now, possibly none."""
        ...

    def flush(self) -> str:
        """Return the rest at the end: U+FFFD for bytes that form no character."""
        ...

    @property
    def holds(self) -> bool:
        """Whether the last token ends within a character."""
        ...


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


MOST_HELD = 64
"""The most code points of an unfinished cluster that are held back."""

_UNFINISHED = regex.compile(
    r"[\p{Extended_Pictographic}\p{Emoji_Modifier}\p{Regional_Indicator}\p{Join_Control}\p{Variation_Selector}"
    r"\p{Indic_Syllabic_Category=Virama}\p{Indic_Syllabic_Category=Invisible_Stacker}"
    r"\p{Hangul_Syllable_Type=L}\p{Hangul_Syllable_Type=V}\p{Hangul_Syllable_Type=T}"
    r"\U000E0020-\U000E007F]"
)
_CLUSTER = regex.compile(r"\X")
_LEANS_BACK = regex.compile(r"[\p{Grapheme_Cluster_Break=Extend}\u200d]")
_FIRST_UNFINISHED = "\xa9"


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
    """Return the start of the cluster that contains the code point at `index`."""
    anchor = index
    while not _surely_starts(text, anchor):
        anchor -= 1
    if anchor == index:
        return index
    *_, last = _CLUSTER.finditer(text[anchor : index + 1])
    return anchor + last.start()


def _surely_starts(text: str, index: int) -> bool:
    """Return whether a cluster starts at `index`, judged by the two code points around it.

    Rules that look further back (emoji joined by U+200D, conjuncts, pairs of regional indicators) are never contradicted: if
    they could apply, the answer is no.
    """
    if index == 0:
        return True
    before, after = text[index - 1], text[index]
    if before.isascii() and after.isascii():
        return (before, after) != ("\r", "\n")
    first = _CLUSTER.match(before + after)
    return first is not None and first.end() == 1 and not _LEANS_BACK.match(before)
