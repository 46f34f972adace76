"""Writes pairs of texts that are each other's translation, anew from a seed.

Held out is a tenth of the names, of the numbers, and of the pairs of a sentence and a word in it, by a hash of the value itself.
"""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from demo_model import values
from demo_model.holdout import Split, chance, held_out
from demo_translator.numerals import chinese, chinese_quantity, english
from demo_translator.sentences import SKILLS, WORDS

LARGEST = 500
QUANTITIES = {"n": LARGEST, "few": 60}
_HOLE = re.compile(r"\{(\w+)\}")
_TRIES = 400
_LONGEST = 5
_RARER = (8, 3, 2, 1, 1)
_BARE = 0.15
_SHARES = {"greetings": 2, "names": 4, "numbers": 5, "sums": 4, "weather": 4, "small talk": 3}


class Pair(NamedTuple):
    """The same in both languages."""

    english: str
    chinese: str


@dataclass(frozen=True, slots=True)
class Filled:
    """A value for a hole. `fresh`: whether training never sees it there."""

    pair: Pair
    fresh: bool


def sentence(rng: random.Random, split: Split, skill: str | None = None) -> Pair:
    """Return a sentence of a skill's, or of any. One that is held out has at least one value that training never sees there.

    Raises ValueError for a skill none of whose sentences has a hole, where one is to be held out.
    """
    for _ in range(_TRIES):
        chosen = skill or rng.choices(tuple(_SHARES), tuple(_SHARES.values()))[0]
        made, fresh = _filled(rng, rng.choice(SKILLS[chosen]))
        if fresh == (split is Split.HELD_OUT):
            return made
    raise ValueError(f"nothing of {skill} is {split.value}")


def text(rng: random.Random, split: Split, *, least: int = 1) -> Pair:
    """Return one to five sentences, `least` at least; more are rarer."""
    counts = range(least, _LONGEST + 1)
    count = rng.choices(counts, _RARER[: len(counts)])[0]
    parts = [sentence(rng, split) for _ in range(count)]
    return Pair(" ".join(part.english for part in parts), "".join(part.chinese for part in parts))


def as_typed(rng: random.Random, source: str) -> str:
    """Return a source as people type or say it: now and then in small letters and without its last mark."""
    return source.rstrip(".!?。！？").lower() if chance(rng, _BARE) else source


def _filled(rng: random.Random, template: tuple[str, str]) -> tuple[Pair, bool]:
    holes = _HOLE.findall(template[0])
    in_words = chance(rng, 0.5)
    found = _sum(rng, template[0], in_words) if {"a", "b", "c"} <= set(holes) else {}
    names = [_value(rng, template, "name", in_words) for hole in holes if hole == "name"]
    foods = [_value(rng, template, "food", in_words) for hole in holes if hole == "food"]
    for hole in holes:
        if hole not in {"name", "food"}:
            found.setdefault(hole, _value(rng, template, hole, in_words))
    filled = [*found.values(), *names, *foods]
    sides = [
        _put(side, {**{hole: [one] for hole, one in found.items()}, "name": names, "food": foods}, place)
        for place, side in enumerate(template)
    ]
    return Pair(sides[0][0].upper() + sides[0][1:], sides[1]), any(one.fresh for one in filled)


def _put(side: str, found: dict[str, list[Filled]], place: int) -> str:
    given = {hole: iter(ones) for hole, ones in found.items()}

    def value(match: re.Match[str]) -> str:
        return next(given[match[1]]).pair[place]

    return _HOLE.sub(value, side)


def _sum(rng: random.Random, template: str, in_words: bool) -> dict[str, Filled]:  # noqa: FBT001 - of this module alone
    """Return numbers that add up where the sentence says so."""
    one, other = sorted((rng.randint(0, LARGEST // 2), rng.randint(0, LARGEST // 2)), reverse=True)
    result = one - other if "minus" in template else one + other
    return {
        name: _number(number, in_words, chinese)
        for name, number in zip("abc", (one, other, result), strict=True)
    }


def _value(rng: random.Random, template: tuple[str, str], hole: str, in_words: bool) -> Filled:  # noqa: FBT001 - as above
    if hole == "name":
        return _name(rng)
    if hole in WORDS:
        word = rng.choice(tuple(WORDS[hole]))
        return Filled(Pair(word, WORDS[hole][word]), held_out(f"translated:{template[0]}:{word}"))
    if hole in QUANTITIES:
        return _number(rng.randint(2, QUANTITIES[hole]), in_words, chinese_quantity)
    return _number(rng.randint(0, LARGEST), in_words, chinese)


def _name(rng: random.Random) -> Filled:
    drawn = rng.choice(values.FIRST_NAMES) if chance(rng, 0.5) else values.invented(rng, 1, 3).capitalize()
    return Filled(Pair(drawn, drawn), held_out(f"name:{drawn}"))


def _number(number: int, in_words: bool, words: Callable[[int], str]) -> Filled:  # noqa: FBT001 - as above
    pair = Pair(english(number), words(number)) if in_words else Pair(str(number), str(number))
    return Filled(pair, held_out(f"translated number:{number}"))
