"""One step's tokens, laid out for a single forward pass over the pages of the KV cache.

All tokens of a step form one row of a batch of one: first one token for each running reply, then chunks of prompts.
Linear layers see a flat list of tokens; only attention sees the pages.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

ROWS_STEP = 16
"""Steps with prompts are padded to a multiple of this many rows, since each new number of rows adds kernels to caches."""

LARGEST_PREFILL = 4096
"""The most tokens of prompts that a step computes."""

NO_SLOT = -1
"""The page of an idle row."""


def unknown(slot: int) -> int:
    """Return the id that stands for the last token of a slot while only the device knows it."""
    return -1 - slot


def fed(input_ids: Tensor, last: Tensor) -> Tensor:
    """Return token ids with the unknown ones filled in. `last`: the token of slot s at `last[-1 - s]`."""
    return torch.where(input_ids < 0, last[input_ids.clamp(max=-1)], input_ids)


class Source(NamedTuple):
    """The first `length` of `reserved` positions hold a source. The rest of its last page holds nothing."""

    length: int
    reserved: int

    @classmethod
    def of(cls, tokens: int, page_size: int) -> Source:
        """Return the positions of a source of `tokens` tokens."""
        return cls(tokens, -(-tokens // page_size) * page_size)


@dataclass(frozen=True, slots=True)
class Span:
    """Neighbouring tokens of one request: `tokens[i]` is at position `start + i`. `samples`: its last logits are wanted.

    A token may be `unknown(slot)` if only the device has it.
    `slot`: the request's place among those that run. `pages`: its block table. `source`: where a translation's source lies.
    `shown`: images, each with the index of its first token and the states that replace its tokens, (tokens, hidden).
    """

    slot: int
    start: int
    tokens: Sequence[int]
    samples: bool
    pages: Sequence[int]
    source: Source | None = None
    shown: tuple[tuple[int, Tensor], ...] = ()

    @property
    def stop(self) -> int:
        """The position after the last token."""
        return self.start + len(self.tokens)


@dataclass(slots=True, eq=False)
class StepLayout:
    """Where a step's queries, keys and values are. Tensors are on the device, int32 unless said otherwise.

    The first `decode_rows` requests have one query each. For the others `query_starts` says how many.
    """

    input_ids: Tensor
    """(1, rows) of int64, as modules take them; so are `position_ids`."""
    position_ids: Tensor
    sampled_rows: Tensor | None
    """The rows whose logits are wanted, int64; None means all."""
    decode_rows: int
    rows: int
    """The rows of requests; idle rows follow them."""
    spans: tuple[tuple[int, int], ...]
    """Where each request's queries start and stop, in positions."""
    tables: Tensor
    """(requests, pages of the longest context): the pages of each request, in order."""
    query_starts: Tensor
    """(requests + 1,): where the queries of each request begin."""
    lengths: Tensor
    """(requests,): how many keys each has, those of this step included."""
    pages: Tensor
    """(tokens,): the page that each row's keys and values are stored in; -1 for an idle row."""
    offsets: Tensor
    """(tokens,): the offset in that page."""

    @property
    def longest_prompt(self) -> int:
        """The most queries of a request after those that decode; 0 if there is none."""
        return max((stop - start for start, stop in self.spans[self.decode_rows :]), default=0)

    @property
    def extent(self) -> int:
        """The position after the highest of any request."""
        return max(stop for _, stop in self.spans)


def lay_out(
    spans: Sequence[Span], *, page_size: int, device: torch.device, most_pages: int = 0
) -> StepLayout:
    """Lay out spans, given with those of a single token first. Raises ValueError if a block table is too short.

    `most_pages`: the least width of the block tables, since kernels are compiled for it.
    """
    decoding = next((place for place, span in enumerate(spans) if len(span.tokens) != 1), len(spans))
    ids = [token for span in spans for token in span.tokens]
    rows, positions = len(ids), [place for span in spans for place in range(span.start, span.stop)]
    idle = -rows % ROWS_STEP if len(spans) > decoding else 0
    wanted = None if len(spans) == decoding and all(span.samples for span in spans) else _sampled_rows(spans)
    widest = max(most_pages, *(-(-span.stop // page_size) for span in spans))
    longs = [torch.tensor([ids + [0] * idle, positions + [0] * idle]), *([] if wanted is None else [wanted])]
    tables = block_tables(spans, widest, page_size)
    sent = send([*longs, tables, *_places(spans, page_size, idle), *_counts(spans)], device)
    tables, pages, offsets, query_starts, lengths = sent[len(longs) :]
    return StepLayout(
        input_ids=sent[0][0:1],
        position_ids=sent[0][1:2],
        sampled_rows=None if wanted is None else sent[1],
        decode_rows=decoding,
        rows=rows,
        spans=tuple((span.start, span.stop) for span in spans),
        tables=tables,
        query_starts=query_starts,
        lengths=lengths,
        pages=pages,
        offsets=offsets,
    )


def image_rows(spans: Sequence[Span]) -> list[tuple[int, Tensor]]:
    """Return the first row of each image in a step, with the image's states."""
    rows, row = [], 0
    for span in spans:
        rows += [(row + place, states) for place, states in span.shown]
        row += len(span.tokens)
    return rows


def send(tensors: Sequence[Tensor], device: torch.device) -> Sequence[Tensor]:
    """Return tensors on a device, sent in one copy. On CUDA the copy is from pinned memory, so the host does not wait."""
    if device.type == "cpu":
        return tensors
    pinned = device.type == "cuda"
    host = torch.empty(sum(one.nbytes for one in tensors), dtype=torch.uint8, pin_memory=pinned)
    # The allocator of pinned memory reuses it only after the copy is done.
    return unpacked(packed(tensors, out=host).to(device, non_blocking=pinned), tensors)


def packed(tensors: Sequence[Tensor], *, out: Tensor | None = None) -> Tensor:
    """Return the bytes of all tensors as one tensor. Tensors of int64 must come first, so that all of them are aligned."""
    return torch.cat([one.reshape(-1).view(torch.uint8) for one in tensors], out=out)


def unpacked(memory: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Return views of packed tensors. `like`: tensors of the same dtypes and shapes."""
    parts = torch.split(memory, [one.nbytes for one in like])
    return [part.view(one.dtype).view(one.shape) for part, one in zip(parts, like, strict=True)]


def block_tables(spans: Sequence[Span], widest: int, page_size: int) -> Tensor:
    """Return the block tables, (requests, widest), padded with page 0, which is never read there."""
    packed = bytearray()
    for span in spans:
        needed = -(-span.stop // page_size)
        if len(span.pages) < needed:
            raise ValueError(f"{span.stop} tokens do not fit into {len(span.pages)} pages of {page_size}")
        packed += array("i", span.pages[:needed]).tobytes().ljust(4 * widest, b"\0")
    return torch.frombuffer(packed, dtype=torch.int32).view(len(spans), widest)


def _places(spans: Sequence[Span], page_size: int, idle: int) -> tuple[Tensor, Tensor]:
    """Return the page and the offset that each row is stored at."""
    places = [(span.pages, place) for span in spans for place in range(span.start, span.stop)]
    pages = [table[place // page_size] for table, place in places] + [NO_SLOT] * idle
    offsets = [place % page_size for _, place in places] + [0] * idle
    return torch.tensor(pages, dtype=torch.int32), torch.tensor(offsets, dtype=torch.int32)


def _counts(spans: Sequence[Span]) -> tuple[Tensor, Tensor]:
    """Return where each request's queries start, and how many keys it has."""
    starts = accumulate((len(span.tokens) for span in spans), initial=0)
    numbers = torch.tensor([*starts, *(span.stop for span in spans)], dtype=torch.int32)
    query_starts, lengths = torch.split(numbers, [len(spans) + 1, len(spans)])
    return query_starts, lengths


def _sampled_rows(spans: Sequence[Span]) -> Tensor:
    """Return the rows whose logits are wanted."""
    ends = accumulate(len(span.tokens) for span in spans)
    rows = [end - 1 for span, end in zip(spans, ends, strict=True) if span.samples]
    return torch.tensor(rows, dtype=torch.int64)


def salted(salt: str, source: Sequence[int]) -> str:
    """Return a salt made of both: a target's keys and values depend on its whole source, not only on how that begins."""
    return f"{salt}\x1f{sha256(' '.join(map(str, source)).encode()).hexdigest()}"


def sources_of(spans: Sequence[Span]) -> list[Span]:
    """Return the sources that spans begin with, as spans of their own."""
    return [
        Span(span.slot, 0, span.tokens[: span.source.length], samples=False, pages=span.pages)
        for span in spans
        if span.source is not None and not span.start
    ]


def target_tokens(span: Span) -> int:
    """Return how many tokens of a target a span has: its last ones."""
    return max(0, span.stop - max(span.start, 0 if span.source is None else span.source.reserved))


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
    """Lay out the target tokens of spans; at least one span has some."""
    rows = [row for span in spans for row in _rows(span, page_size)]
    ends = accumulate(map(target_tokens, spans))
    sampled = [end - 1 for span, end in zip(spans, ends, strict=True) if span.samples]
    own, cross = (
        lay_out([pair[which] for pair in rows], page_size=page_size, device=device) for which in (0, 1)
    )
    return TranslationLayout(own, cross, sampled)


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
