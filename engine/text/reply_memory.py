"""Remembers the token ids of replies, and puts them into prompts that repeat their text.

A text has many tokenizations; cached keys and values are found by the one that the model wrote. A replacement that might
change the text is not made: for example, if a reply has special tokens and the prompt has others. Knows no tokenizer.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import NamedTuple

MOST_REPLIES = 4096

MOST_TOKENS = 1_000_000
"""Some 15 bytes each."""

_AROUND = 8
"""Tokens that are decoded on either side of a reply: more than can form one character with it."""

_ATTEMPTS = 8
"""The most places of a reply, and ends of its known part, that are tried."""


@dataclass(frozen=True, slots=True, eq=False)
class WrittenReply:
    """A reply as it was written: after `token_ids[: n + 1]` the first `ends[n]` characters of `text` were certain.

    `text` is all that was decoded, including a stop string and what a cancel cut.
    """

    text: str
    token_ids: array[int]
    ends: array[int]


class ReplyRecorder:
    """Records one running reply. For one thread; closed once, at the reply's end."""

    def __init__(self, keep: Callable[[WrittenReply], None]) -> None:
        """Take the receiver of the finished reply."""
        self._keep = keep
        self._token_ids: list[int] = []
        self._pieces: list[str] = []

    def add(self, token_id: int, text: str) -> None:
        """Record a token, and the text that became certain by it."""
        self._token_ids.append(token_id)
        self._pieces.append(text)

    def close(self, rest: str = "") -> None:
        """Pass the reply on, unless it is empty. `rest` is text that belongs to no single token."""
        text = "".join(self._pieces) + rest
        if text:
            ends = array("i", accumulate(map(len, self._pieces)))
            self._keep(WrittenReply(text, array("i", self._token_ids), ends))


class ReplyCache:
    """The newest replies by salt and text, bounded in number and tokens; the least recently used is dropped first.

    Of equal texts under one salt the last one counts. Thread-safe.
    """

    def __init__(self, *, most_replies: int = MOST_REPLIES, most_tokens: int = MOST_TOKENS) -> None:
        """Take the bounds."""
        self._most_replies = most_replies
        self._most_tokens = most_tokens
        self._tokens = 0
        self._kept: OrderedDict[tuple[str, str], WrittenReply] = OrderedDict()
        self._texts: dict[str, list[str]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def tokens(self) -> int:
        """How many tokens are remembered."""
        return self._tokens

    def of(self, salt: str) -> TenantReplies | None:
        """Return the replies of a salt, or None."""
        return TenantReplies(self, salt) if salt in self._texts else None

    def notes(self, salt: str) -> ReplyRecorder:
        """Return the recorder of a new reply."""
        return ReplyRecorder(lambda reply: self.keep(salt, reply))

    def keep(self, salt: str, reply: WrittenReply) -> None:
        """Remember a reply, and drop others for it if needed."""
        with self._lock:
            self._drop((salt, reply.text))
            self._kept[salt, reply.text] = reply
            self._tokens += len(reply.token_ids)
            insort(self._texts.setdefault(salt, []), reply.text)
            while len(self._kept) > self._most_replies or self._tokens > self._most_tokens:
                self._drop(next(iter(self._kept)))

    def recall(self, salt: str, text: str) -> WrittenReply | None:
        """Return the reply of this text, else one that begins with it (the text of a cut reply), or None."""
        with self._lock:
            texts = self._texts.get(salt, [])
            # among all that begin with a text, the text itself sorts first
            place = bisect_left(texts, text)
            if not text or place == len(texts) or not (found := texts[place]).startswith(text):
                return None
            self._kept.move_to_end((salt, found))
            return self._kept[salt, found]

    def forget(self, salt: str, reply: WrittenReply) -> None:
        """Drop a reply, if it is still the one that is remembered for its text."""
        with self._lock:
            if self._kept.get((salt, reply.text)) is reply:
                self._drop((salt, reply.text))

    def _drop(self, key: tuple[str, str]) -> None:
        reply = self._kept.pop(key, None)
        if reply is None:
            return
        salt, text = key
        self._tokens -= len(reply.token_ids)
        texts = self._texts[salt]
        del texts[bisect_left(texts, text)]
        if not texts:
            del self._texts[salt]


class TenantReplies:
    """The replies of one salt: only prompts of that salt use them."""

    def __init__(self, memory: ReplyCache, salt: str) -> None:
        self._memory = memory
        self._salt = salt

    def recall(self, text: str) -> WrittenReply | None:
        """See `ReplyCache.recall`."""
        return self._memory.recall(self._salt, text)

    def forget(self, reply: WrittenReply) -> None:
        """See `ReplyCache.forget`."""
        self._memory.forget(self._salt, reply)


@dataclass(frozen=True, slots=True)
class Tokenized:
    """A rendered prompt and its tokens: each covers the characters from its `start` to its `end`."""

    text: str
    token_ids: list[int]
    starts: list[int]
    ends: list[int]

    def border(self, at: int) -> int | None:
        """Return how many tokens are before a character; None if a token reaches over that place."""
        place = bisect_left(self.starts, at)
        return None if place and self.ends[place - 1] > at else place


@dataclass(frozen=True, slots=True)
class Letters:
    """Decodes token ids. `special`: ids of tokens that mean more than their text."""

    decode: Callable[[Sequence[int]], str]
    special: frozenset[int]


class Passage(NamedTuple):
    """A message's content, and the remembered reply that it is, or begins."""

    content: str
    reply: WrittenReply | None


class Change(NamedTuple):
    """The prompt's tokens from `start` to `end` become `token_ids`, which are the whole reply, or its beginning."""

    start: int
    end: int
    token_ids: list[int]
    reply: WrittenReply


def changes(prompt: Tokenized, passages: Sequence[Passage], letters: Letters) -> Iterator[Change]:
    """Yield, in order, the replacements for remembered replies of a prompt; some may change nothing.

    `passages` are all messages in order: each is searched after those before it.
    """
    behind = 0
    for passage in passages:
        # Many templates trim what they write.
        for content in (passage.content, passage.content.rstrip()):
            places = list(islice(_places(prompt.text, content, behind), _ATTEMPTS))
            if not places:
                continue
            behind = places[0] + len(content)
            if passage.reply is not None:
                change = _first_change(prompt, places, len(content), passage.reply, letters)
                if change is not None:
                    behind = prompt.ends[change.end - 1]
                    yield change
            break


def spelled(token_ids: Sequence[int], changed: Sequence[Change]) -> list[int]:
    """Return token ids with the changes, which are in order and do not overlap."""
    made: list[int] = []
    done = 0
    for change in changed:
        made += token_ids[done : change.start]
        made += change.token_ids
        done = change.end
    return [*made, *token_ids[done:]]


def _places(text: str, content: str, behind: int) -> Iterator[int]:
    """Yield the places of a content: a short one may also occur in the template's own text."""
    at = text.find(content, behind)
    while at >= 0:
        yield at
        at = text.find(content, at + 1)


def _first_change(
    prompt: Tokenized, places: Sequence[int], length: int, reply: WrittenReply, letters: Letters
) -> Change | None:
    """Return the change at the first possible place, if any."""
    found = (_longest_change(prompt, at, length, reply, letters) for at in places)
    return next((change for change in found if change is not None), None)


def _longest_change(
    prompt: Tokenized, at: int, length: int, reply: WrittenReply, letters: Letters
) -> Change | None:
    """Return the longest possible change by a reply to the text from `at` on, if any."""
    start = prompt.border(at)
    if start is None:
        return None
    possible = (
        Change(start, end, reply.token_ids[:count].tolist(), reply)
        for count in range(bisect_right(reply.ends, length), 0, -1)
        if (end := prompt.border(at + reply.ends[count - 1])) is not None and end > start
    )
    tried = islice(possible, _ATTEMPTS)
    return next((each for each in tried if _decodes_alike(prompt.token_ids, each, letters)), None)


def _decodes_alike(token_ids: list[int], change: Change, letters: Letters) -> bool:
    before = token_ids[max(0, change.start - _AROUND) : change.start]
    plain = token_ids[change.start : change.end]
    after = token_ids[change.end : change.end + _AROUND]
    if plain == change.token_ids:
        return True
    if not _has_same_special_tokens(plain, change.token_ids, letters):
        return False
    return letters.decode(before + plain + after) == letters.decode(before + change.token_ids + after)


def _has_same_special_tokens(plain: list[int], written: list[int], letters: Letters) -> bool:
    """Return whether two spellings have the same special tokens, with the same text between them."""
    here, there = (_apart(token_ids, letters.special) for token_ids in (plain, written))
    if [token for _, token in here] != [token for _, token in there]:
        return False
    between = zip(here, there, strict=True)
    return len(here) == 1 or all(
        letters.decode(one) == letters.decode(other) for (one, _), (other, _) in between
    )


def _apart(token_ids: list[int], special: frozenset[int]) -> list[tuple[list[int], int | None]]:
    """Return the stretches of a spelling, each with the special token that ends it; the last has none."""
    stretches: list[tuple[list[int], int | None]] = []
    begin = 0
    for place, token in enumerate(token_ids):
        if token in special:
            stretches.append((token_ids[begin:place], token))
            begin = place + 1
    return [*stretches, (token_ids[begin:], None)]
