"""Where a translation's source lies: in the first pages of its request, before the tokens of the target.

A source is encoded in one piece, as every word of it sees all others. What a decoder's cross-attention reads of it lies in
the pages of its positions; the target begins in a page of its own. So sources and targets share pages, budget and cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256

import torch

from engine.cache.layout import Span, StepLayout, lay_out


def salted(salt: str, source: Sequence[int]) -> str:
    """Return the salt of a translation: keys and values of no token are those of another source, wherever they agree."""
    return f"{salt}\x1f{sha256(' '.join(map(str, source)).encode()).hexdigest()}"


def begins(span: Span) -> bool:
    """Whether a span begins with its source."""
    return span.source is not None and not span.start


@dataclass(slots=True, eq=False)
class TranslationLayout:
    """A step of translations: sources to be encoded, and rows of targets with the two contexts that each attends to.

    `sources`: None where none begins; its spans are theirs. `own` and `cross` have the same rows, each of them with a
    table and a length of its own; None where no target has a row. `sampled`: which of the rows give logits.
    """

    sources: StepLayout | None
    own: StepLayout | None
    cross: StepLayout | None
    sampled: list[int]


def lay_out_translations(spans: Sequence[Span], *, page_size: int, device: torch.device) -> TranslationLayout:
    """Lay out spans of translations."""
    sources = [_source_of(span) for span in spans if begins(span)]
    rows = [row for span in spans for row in _rows(span, page_size)]
    sampled: list[int] = []
    place = 0
    for span in spans:
        place += span.stop - max(span.start, _reserved(span))
        if span.samples:
            sampled += range(place - 1 - span.drafted, place)
    laid = [
        lay_out(some, page_size=page_size, device=device) if some else None
        for some in (sources, [own for own, _ in rows], [cross for _, cross in rows])
    ]
    return TranslationLayout(laid[0], laid[1], laid[2], sampled)


def _reserved(span: Span) -> int:
    return 0 if span.source is None else span.source.reserved


def _source_of(span: Span) -> Span:
    assert span.source is not None  # noqa: S101 - who asks has looked
    return Span(span.slot, 0, span.tokens[: span.source.length], samples=False, pages=span.pages)


def _rows(span: Span, page_size: int) -> Iterator[tuple[Span, Span]]:
    """Yield each token of a target as a span of its own, over the target's pages, and one that stands at the source's end."""
    assert span.source is not None  # noqa: S101 - translations alone are laid out here
    length, reserved = span.source
    first = max(span.start, reserved)
    target = span.pages[reserved // page_size :]
    cross = Span(span.slot, length - 1, (0,), samples=True, pages=span.pages[: reserved // page_size])
    for place in range(first, span.stop):
        yield (
            Span(span.slot, place - reserved, (span.tokens[place - span.start],), samples=True, pages=target),
            cross,
        )
