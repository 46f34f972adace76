"""Keys and values in pages in random order, and attention to them spelled out in plain torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from engine.kv_cache import LayerPages
from engine.model.attention import AttentionParams
from engine.step_layout import StepLayout
from tests.engine.conftest import computing_on

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass(frozen=True)
class Shape:
    heads: int
    kv_heads: int
    size: int
    value_size: int | None = None


@dataclass(frozen=True, eq=False)
class Case:
    """A step over pages. `keys`, `values`: each request's, (length, KV heads, size), before they were put into pages."""

    step: StepLayout
    queries: Tensor
    stored: LayerPages
    keys: list[Tensor]
    values: list[Tensor]


def paged(
    made: Shape,
    *,
    lengths: Sequence[int],
    queries: Sequence[int],
    page: int,
    dtype: torch.dtype = torch.float32,
    spare: int = 0,
    seed: int = 0,
) -> Case:
    """Lay requests out in shuffled pages. Places that no request owns hold NaN, so that reading them is noticed.

    `spare`: pages that the longest context could have beyond the longest one here.
    """
    dice = torch.Generator().manual_seed(seed)
    value_size = made.value_size or made.size
    counts = [-(-length // page) for length in lengths]
    numbers = torch.randperm(sum(counts) + 2, generator=dice).tolist()
    stored_keys = torch.full((len(numbers), page, made.kv_heads, made.size), torch.nan)
    stored_values = torch.full((len(numbers), page, made.kv_heads, value_size), torch.nan)
    tables = torch.full((len(lengths), max(counts, default=1) + spare), 2**30, dtype=torch.int32)
    keys, values = [], []
    for request, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        own = [numbers.pop() for _ in range(count)]
        tables[request, :count] = torch.tensor(own, dtype=torch.int32)
        keys.append(torch.randn(length, made.kv_heads, made.size, generator=dice).to(dtype).float())
        values.append(torch.randn(length, made.kv_heads, value_size, generator=dice).to(dtype).float())
        for place in range(length):
            stored_keys[own[place // page], place % page] = keys[-1][place]
            stored_values[own[place // page], place % page] = values[-1][place]
    query_rows = torch.randn(sum(queries), made.heads, made.size, generator=dice).to(dtype)
    step = step_of(lengths, queries, tables, page)
    stored = LayerPages(stored_keys.to(DEVICE, dtype), stored_values.to(DEVICE, dtype))
    return Case(step, query_rows.to(DEVICE), stored, keys, values)


def step_of(lengths: Sequence[int], queries: Sequence[int], tables: Tensor, page: int) -> StepLayout:
    """Return the step of requests whose last `queries` keys are new. A length of 0 is an idle row."""
    single = next((row for row, count in enumerate(queries) if count != 1), len(queries))
    positions = [
        (request, place)
        for request, (length, count) in enumerate(zip(lengths, queries, strict=True))
        for place in range(length - count, length)
    ]
    pages = [int(tables[request, place // page]) if place >= 0 else -1 for request, place in positions]

    def sent(numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int32, device=DEVICE)

    return StepLayout(
        input_ids=torch.zeros(1, len(positions), dtype=torch.int64, device=DEVICE),
        position_ids=torch.tensor([[max(place, 0) for _, place in positions]], device=DEVICE),
        sampled_rows=None,
        decode_rows=single,
        rows=len(positions),
        spans=tuple((length - count, length) for length, count in zip(lengths, queries, strict=True)),
        tables=tables.to(DEVICE),
        query_starts=sent([0, *accumulate(queries)]),
        lengths=sent(list(lengths)),
        pages=sent(pages),
        offsets=sent([max(place, 0) % page for _, place in positions]),
    )


def attended_by_hand(case: Case, terms: AttentionParams) -> Tensor:
    """Attend in float32, one request after the other, on one thread: (tokens, heads, value size)."""
    starts = case.step.query_starts.tolist()
    parts = []
    for request, (keys, values) in enumerate(zip(case.keys, case.values, strict=True)):
        query_rows = case.queries[starts[request] : starts[request + 1]].float().cpu()
        with computing_on(1):
            parts.append(_one_request(query_rows, keys, values, terms))
    return torch.cat(parts).to(DEVICE)


def _one_request(query_rows: Tensor, keys: Tensor, values: Tensor, terms: AttentionParams) -> Tensor:
    count, heads, _ = query_rows.shape
    if not len(keys):
        return query_rows.new_zeros(count, heads, values.shape[2])
    sharing = heads // keys.shape[1]
    keys, values = keys.repeat_interleave(sharing, 1), values.repeat_interleave(sharing, 1)
    scores = torch.einsum("qhd,khd->hqk", query_rows, keys) * terms.scale
    if terms.softcap is not None:
        scores = torch.tanh(scores / terms.softcap) * terms.softcap
    key, query = torch.arange(len(keys)), torch.arange(len(keys) - count, len(keys))[:, None]
    visible = key <= query
    if terms.window is not None:
        visible &= key > query - terms.window
    scores = scores.masked_fill(~visible, -torch.inf)
    return torch.einsum("hqk,khd->qhd", scores.softmax(dim=-1), values)
