"""Where the source of a translation is: in the first pages of its request, before the tokens of the target.

A source is encoded in one piece, since every word of it sees all others. Its pages hold what the decoder's cross-attention
reads of it, and the target begins in a page of its own. So sources and targets share pages, budget and cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256

import torch

from engine.cache.layout import Span, StepLayout, lay_out


def salted(salt: str, source: Sequence[int]) -> str:
    """Return the salt of a translation, since keys and values depend on the whole source, even if it begins alike."""
    return f"{salt}\x1f{sha256(' '.join(map(str, source)).encode()).hexdigest()}"


def begins(span: Span) -> bool:
    """Whether a span begins with its source."""
    return span.source is not None and not span.start


def source_of(span: Span) -> Span:
    """Return the source that a span begins with, as a span of its own."""
    assert span.source is not None  # noqa: S101 - who asks has looked
    return Span(span.slot, 0, span.tokens[: span.source.length], samples=False, pages=span.pages)


def target_tokens(span: Span) -> int:
    """Return how many tokens of a target a span has: its last ones."""
    return max(0, span.stop - max(span.start, _reserved(span)))


@dataclass(slots=True, eq=False)
class TranslationLayout:
    """A step's rows of targets, with the two contexts that each attends to.

    `own` and `cross` have the same rows, each of them with a table and a length of its own. `sampled`: which of the rows
    give logits.
    """

    own: StepLayout
    cross: StepLayout
    sampled: list[int]


def lay_out_targets(spans: Sequence[Span], *, page_size: int, device: torch.device) -> TranslationLayout:
    """Lay out the tokens of targets that spans have; one of them has some."""
    rows = [row for span in spans for row in _rows(span, page_size)]
    sampled: list[int] = []
    place = 0
    for span in spans:
        place += target_tokens(span)
        if span.samples:
            sampled += range(place - 1 - span.drafted, place)
    own, cross = (
        lay_out([pair[which] for pair in rows], page_size=page_size, device=device) for which in (0, 1)
    )
    return TranslationLayout(own, cross, sampled)


def _reserved(span: Span) -> int:
    return 0 if span.source is None else span.source.reserved


def _rows(span: Span, page_size: int) -> Iterator[tuple[Span, Span]]:
    """Yield two spans for each token of a target: one over the target's pages, and one at the end of its source."""
    assert span.source is not None  # noqa: S101 - only translations are laid out here
    length, reserved = span.source
    first = max(span.start, reserved)
    target = span.pages[reserved // page_size :]
    cross = Span(span.slot, length - 1, (0,), samples=True, pages=span.pages[: reserved // page_size])
    for place in range(first, span.stop):
        yield (
            Span(span.slot, place - reserved, (span.tokens[place - span.start],), samples=True, pages=target),
            cross,
        )
