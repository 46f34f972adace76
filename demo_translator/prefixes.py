"""How much of a translation a source determines that was cut off: what all sentences that begin so have in common. Pure.

The language is finite but for its names, so that this is exact. Sums are not computed: a result that was not heard is open.
"""

import random
import re
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import takewhile
from typing import NamedTuple

from demo_model.values import FIRST_NAMES
from demo_translator.numerals import chinese, chinese_quantity, english
from demo_translator.pairs import LARGEST, QUANTITIES, Pair
from demo_translator.sentences import SKILLS, WORDS

_PARTS = re.compile(r"(\{\w+\})")
_NAME = re.compile(r"[A-Z][a-z]+")
_SPACELESS = r"\u3000-\u303f\u4e00-\u9fff\uff01-\uff65"
_UNIT = re.compile(rf"\s*(?:[{_SPACELESS}]|[^\s{_SPACELESS}]+)")
_LETTER = re.compile(r"[A-Za-z0-9'\-]")
ENDS = ".!?。！？"
_NAMES = frozenset(FIRST_NAMES)


class _Sentence(NamedTuple):
    """Literals and holes of both sides, the source's first."""

    source: tuple[str, ...]
    target: tuple[str, ...]


class _Match(NamedTuple):
    """What fills a hole: `chars` of the source. `target`: its translation, or as much of that as is sure."""

    chars: int
    target: str
    is_whole: bool


def cuts(sentence: str) -> list[int]:
    """Return where a sentence may be cut off: behind each word, of Chinese behind each character; never behind its last mark."""
    text = sentence.rstrip(ENDS)
    inside = [
        place
        for place in range(1, len(text))
        if text[place - 1] != " " and _may_end(text[:place], text[place])
    ]
    return [*inside, len(text)]


def source_prefix(rng: random.Random, pair: Pair, source: int) -> Pair:
    """Return a sentence that is cut off at random on one side, 0 for English, and what that determines of the other."""
    cut = pair[source][: rng.choice(cuts(pair[source]))]
    translation = determined(cut, source)
    return Pair(cut, translation) if source == 0 else Pair(translation, cut)


def determined(cut: str, source: int) -> str:
    """Return the words that the translations of all sentences begin with that begin with `cut`, without the mark at their end.

    `source`: the side that was cut, 0 for English. Empty, too, where no sentence begins so.
    """
    found = [
        translation for sentence in _sentences(source) for translation in _translations(sentence, cut, source)
    ]
    return common(found).rstrip().rstrip(ENDS) if found else ""


@cache
def _sentences(source: int) -> tuple[_Sentence, ...]:
    pairs = [pair for sentences in SKILLS.values() for pair in sentences]
    return tuple(
        _Sentence(*(tuple(filter(None, _PARTS.split(pair[side]))) for side in (source, 1 - source)))
        for pair in pairs
    )


def _translations(sentence: _Sentence, cut: str, source: int) -> Iterator[str]:
    """How the translation begins, for each way to read the cut source as the beginning of a sentence."""
    begins_with_hole = sentence.source[0][0] == "{"
    read = cut[0].lower() + cut[1:] if begins_with_hole and sentence.source[0] != "{name}" else cut
    for heard in _readings(sentence.source, read, source):
        text = _translated(sentence, heard)
        yield text[:1].upper() + text[1:]


def _readings(parts: Sequence[str], rest: str, source: int) -> Iterator[list[_Match]]:
    """What fills the holes of these parts, for each way in which the rest of a cut source begins them."""
    if not rest:
        yield []
    elif parts and parts[0][0] == "{":
        for heard in _fillings(parts[0][1:-1], rest, source):
            behind = _readings(parts[1:], rest[heard.chars :], source) if heard.is_whole else iter([[]])
            yield from ([heard, *others] for others in behind)
    elif parts and rest.startswith(parts[0]):
        yield from _readings(parts[1:], rest[len(parts[0]) :], source)
    elif parts and _begins(rest, parts[0]):
        yield []


def _fillings(hole: str, rest: str, source: int) -> list[_Match]:
    """The ways to fill a hole with what comes: by a whole value, or by the beginning of one."""
    if hole == "name":
        word = _NAME.match(rest)
        is_name = word is not None and (word[0] in _NAMES or word[0] not in _first_words())
        return [_Match(word.end(), word[0], is_whole=True)] if word is not None and is_name else []
    known = _values(hole, source)
    lengths = range(1, min(len(rest), _longest(hole, source)) + 1)
    found = [
        _Match(length, known[rest[:length]], is_whole=True) for length in lengths if rest[:length] in known
    ]
    begun = _begun(hole, rest, source) if len(rest) < _longest(hole, source) else None
    return found if begun is None else [*found, _Match(len(rest), begun, is_whole=False)]


@cache
def _begun(hole: str, rest: str, source: int) -> str | None:
    """What the translations of all values have in common that go on behind what was heard; None where there is no such."""
    longer = [
        translation
        for value, translation in _values(hole, source).items()
        if value != rest and _begins(rest, value)
    ]
    return common(longer) if longer else None


@cache
def _values(hole: str, source: int) -> dict[str, str]:
    """The values of a hole as the source has them, with their translations."""
    if hole in WORDS:
        pairs = list(WORDS[hole].items())
    else:
        words = chinese_quantity if hole in QUANTITIES else chinese
        numbers = range(QUANTITIES.get(hole, LARGEST) + 1)
        pairs = [(english(number), words(number)) for number in numbers]
        pairs += [(str(number), str(number)) for number in numbers]
    return {pair[source]: pair[1 - source] for pair in pairs}


@cache
def _longest(hole: str, source: int) -> int:
    return max(map(len, _values(hole, source)))


@cache
def _first_words() -> frozenset[str]:
    """Words that begin an English sentence, which are no names: an invented one that is such a word is read as the word."""
    firsts = (_NAME.match(sentence.source[0]) for sentence in _sentences(0))
    return frozenset(word[0] for word in firsts if word is not None)


def _translated(sentence: _Sentence, heard: Sequence[_Match]) -> str:
    """A target up to the first hole for which nothing was heard, or not all."""
    holes = [part for part in sentence.source if part[0] == "{"]
    given: dict[str, list[_Match]] = {}
    for hole, one in zip(holes, heard, strict=False):
        given.setdefault(hole, []).append(one)
    text = ""
    for part in sentence.target:
        if part[0] != "{":
            text += part
        elif given.get(part):
            one = given[part].pop(0)
            text += one.target
            if not one.is_whole:
                break
        else:
            break
    return text


def _begins(rest: str, whole: str) -> bool:
    """Whether a text goes on behind what was heard, whose last word has come to its end."""
    return whole.startswith(rest) and (rest == whole or _may_end(rest, whole[len(rest)]))


def _may_end(heard: str, following: str) -> bool:
    """Whether a word ends between these."""
    return not (_LETTER.match(heard[-1]) and _LETTER.match(following))


def units(text: str) -> list[str]:
    """Return the words of a text, each with the blank before it; of Chinese the characters."""
    return _UNIT.findall(text)


def common(texts: Sequence[str]) -> str:
    """Return the words that all texts begin with, of Chinese the characters."""
    same = takewhile(lambda column: len(set(column)) == 1, zip(*map(units, texts), strict=False))
    return "".join(column[0] for column in same)
