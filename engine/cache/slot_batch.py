"""One step's tokens, laid out for a single forward pass over the slots of the KV cache.

All tokens of a step form one row of a batch of one: first one token for each running reply, by rising
slot, then chunks of prompts. Linear layers see a flat list of tokens; only attention sees the slots.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

SPLIT_COST = 384
"""How many cached positions attention may read in vain before a second call is cheaper. Measured on a CPU."""

EXTENT_STEP = 64
"""Extents are rounded up to this many positions, so that shapes (and with them allocations) repeat."""

ROWS_STEP = 16
"""Steps with prompts are padded to a multiple of this many rows: every new number of rows costs kernels that are kept."""


NOBODY = -1
"""The slot of an idle row."""


@dataclass(frozen=True, slots=True)
class Span:
    """Neighbouring tokens of one slot: `tokens[i]` is at position `start + i`. `samples`: its last logits are wanted."""

    slot: int
    start: int
    tokens: Sequence[int]
    samples: bool

    @property
    def stop(self) -> int:
        """The position behind the last token."""
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Running replies whose slots are read by one attention call: `rows` of the step over `slots` of the cache.

    `members`, where slots in between are idle: the place of each row among the slots.
    `query_positions`: int64, one for each slot of the group, 0 for idle ones.
    """

    rows: slice
    slots: slice
    extent: int
    members: Tensor | None
    query_positions: Tensor


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """A part of one prompt: `rows` of the step are the positions from `start` to `stop` of one slot."""

    rows: slice
    slot: int
    start: int
    stop: int
    query_positions: Tensor


class SlotBatch:
    """The layout of one step, on the device. Attention masks are kept for the layers that share them.

    The last `idle_rows` belong to nobody.
    """

    def __init__(self, spans: Sequence[Span], *, tokens: int, device: torch.device) -> None:
        """Lay out spans: the ones of a single token first, by rising slot. `tokens`: positions in a slot."""
        single = _decoding(spans)
        self.decode_rows = single
        ids = [token for span in spans for token in span.tokens]
        positions = [place for span in spans for place in range(span.start, span.stop)]
        self.idle_rows = -len(ids) % ROWS_STEP if len(spans) > single else 0
        ids += [0] * self.idle_rows
        positions += [0] * self.idle_rows
        slots = [span.slot for span in spans for _ in span.tokens] + [NOBODY] * self.idle_rows
        groups = _decode_groups(spans[:single], tokens)
        wanted = _sampled_rows(spans) if self.idle_rows or not _all_sample(spans) else None
        laid_out = [torch.tensor([ids, positions]), torch.tensor(slots, dtype=torch.int64)]
        sent = send([*laid_out, *_tensors(groups), *([] if wanted is None else [wanted])], device)
        self.input_ids, self.position_ids = sent[0][0:1], sent[0][1:2]
        self.row_slots = sent[1]
        self.decode_slots = self.row_slots[:single]
        self.decode_positions = self.position_ids[0, :single]
        self.stops = tuple((span.slot, span.stop) for span in spans)
        self.highest_slot = max(span.slot for span in spans)
        self.groups = groups if device.type == "cpu" else _moved(groups, iter(sent[2:]))
        self.chunks = _prefill_chunks(spans[single:], single, self.position_ids[0])
        self.extent = max([group.extent for group in self.groups] + [chunk.stop for chunk in self.chunks])
        self.sampled_rows = None if wanted is None else sent[-1]
        self.masks: dict[Any, Tensor] = {}
        self._places: dict[tuple[int, int], Tensor] = {}

    def decode_places(self, heads: int, tokens: int) -> Tensor:
        """Return where the running replies write, for rows of all slots, heads and `tokens` positions: (rows * heads,)."""
        if (heads, tokens) not in self._places:
            first = self.decode_slots * (heads * tokens) + self.decode_positions
            steps = torch.arange(heads, device=first.device) * tokens
            self._places[heads, tokens] = (first.unsqueeze(1) + steps).view(-1)
        return self._places[heads, tokens]


def send(tensors: Sequence[Tensor], device: torch.device) -> Sequence[Tensor]:
    """Return tensors of int64 on a device, sent in one copy. From pinned memory: nobody waits for it on CUDA."""
    if device.type == "cpu":
        return tensors
    sizes, pinned = [one.numel() for one in tensors], device.type == "cuda"
    host = torch.empty(sum(sizes), dtype=torch.int64, pin_memory=pinned)
    torch.cat([one.reshape(-1) for one in tensors], out=host)
    # The allocator of pinned memory lends it out again only once the copy is done.
    parts = torch.split(host.to(device, non_blocking=pinned), sizes)
    return [part.view(one.shape) for part, one in zip(parts, tensors, strict=True)]


def _decoding(spans: Sequence[Span]) -> int:
    """Count the spans at the front that are of one token each, by rising slot.

    What is left of a prompt may be a single token too: in a lower slot it does not belong to them.
    """
    for place, span in enumerate(spans):
        if len(span.tokens) != 1 or (place and span.slot < spans[place - 1].slot):
            return place
    return len(spans)


def partition(slots: Sequence[int], lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Cut rows, sorted by slot, into ranges so that few cached positions are read in vain.

    A range reads every slot from its first to its last up to the longest length in it. Ranges are joined,
    from left to right, wherever that costs less than `SPLIT_COST` positions.
    """
    ranges: list[tuple[int, int]] = []
    begin, longest = 0, 0
    for row, length in enumerate(lengths):
        apart = (slots[row - 1] - slots[begin] + 1) * longest + length + SPLIT_COST
        together = (slots[row] - slots[begin] + 1) * max(longest, length)
        if row > begin and together > apart:
            ranges.append((begin, row))
            begin, longest = row, 0
        longest = max(longest, length)
    if lengths:
        ranges.append((begin, len(lengths)))
    return ranges


def _decode_groups(spans: Sequence[Span], tokens: int) -> list[DecodeGroup]:
    cuts = partition([span.slot for span in spans], [span.stop for span in spans])
    return [_decode_group(spans[begin:end], begin, tokens) for begin, end in cuts]


def _decode_group(spans: Sequence[Span], row: int, tokens: int) -> DecodeGroup:
    low, high = spans[0].slot, spans[-1].slot + 1
    longest = max(span.stop for span in spans)
    places = [span.slot - low for span in spans]
    positions = [0] * (high - low)
    for place, span in zip(places, spans, strict=True):
        positions[place] = span.start
    dense = len(spans) == high - low
    return DecodeGroup(
        rows=slice(row, row + len(spans)),
        slots=slice(low, high),
        extent=min(tokens, -(-longest // EXTENT_STEP) * EXTENT_STEP),
        members=None if dense else torch.tensor(places),
        query_positions=torch.tensor(positions),
    )


def _tensors(groups: Sequence[DecodeGroup]) -> Iterator[Tensor]:
    """Yield what of the groups belongs on the device."""
    for group in groups:
        yield group.query_positions
        if group.members is not None:
            yield group.members


def _moved(groups: Sequence[DecodeGroup], sent: Iterator[Tensor]) -> list[DecodeGroup]:
    """Return the groups with what was sent in the place of `_tensors`, in the same order."""
    return [
        replace(group, query_positions=next(sent), members=None if group.members is None else next(sent))
        for group in groups
    ]


def _prefill_chunks(spans: Sequence[Span], row: int, positions: Tensor) -> list[PrefillChunk]:
    chunks = []
    for span in spans:
        rows = slice(row, row + len(span.tokens))
        chunks.append(PrefillChunk(rows, span.slot, span.start, span.stop, positions[rows]))
        row = rows.stop
    return chunks


def _all_sample(spans: Sequence[Span]) -> bool:
    return all(span.samples and len(span.tokens) == 1 for span in spans)


def _sampled_rows(spans: Sequence[Span]) -> Tensor:
    """Return the rows whose logits are wanted."""
    rows, row = [], 0
    for span in spans:
        row += len(span.tokens)
        if span.samples:
            rows.append(row - 1)
    return torch.tensor(rows, dtype=torch.int64)
