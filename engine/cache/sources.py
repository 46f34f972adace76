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


@dataclass(slots=True, eq=False)
class TranslationLayout:
    """A step of translations: sources to be encoded, and rows of targets with the two contexts that each attends to.

    `sources`: the layout of the sources, or None if none begins. `own` and `cross` have the same rows, each with a table
    and a length of its own; None if no target has a row. `sampled`: the rows whose logits are wanted.
    """

    sources: StepLayout | None
    own: StepLayout | None
    cross: StepLayout | None
    sampled: list[int]


def lay_out_translations(spans: Sequence[Span], *, page_size: int, device: torch.device) -> TranslationLayout:
    """Lay out spans of translations."""
    sources = [_source_of(span) for span in spans if begins(span)]
    rows = [row for span in spans for row in _rows(span, page_size)]
    place, sampled = 0, []
    for span in spans:
        place += span.stop - max(span.start, _reserved(span))
        if span.samples:
            sampled.append(place - 1)
    laid = [
        lay_out(some, page_size=page_size, device=device) if some else None
        for some in (sources, [own for own, _ in rows], [cross for _, cross in rows])
    ]
    return TranslationLayout(laid[0], laid[1], laid[2], sampled)


def _reserved(span: Span) -> int:
    return 0 if span.source is None else span.source.reserved


def _source_of(span: Span) -> Span:
    assert span.source is not None  # noqa: S101 - callers have checked it
    return Span(span.slot, 0, span.tokens[: span.source.length], samples=False, pages=span.pages)


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
