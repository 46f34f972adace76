"""Replaces the token ids of replies in a prompt by those that the model wrote, if they are remembered.

So the prompt begins with the tokens whose keys and values are cached. A replacement that might change the text is not
made: for example, if a reply has special tokens and the prompt has others. Pure.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from engine.text.reply_memory import WrittenReply

_AROUND = 8
"""Tokens that are decoded on either side of a reply: more than can form one character with it."""

_ATTEMPTS = 8
"""The most places of a reply, and ends of its known part, that are tried."""


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
