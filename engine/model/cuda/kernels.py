"""Triton kernels: attention over block tables, for decode steps and for prompts, storing to pages, and drawing tokens.

A block table is a row of page numbers for each request: the key at position p lies in page `table[p // PAGE]`, at the
offset `p % PAGE`. Queries that share a KV head are computed together, so that keys and values are read once for all of
them. Sources: online softmax is Milakov and Gimelshein 2018, in blocks FlashAttention (Dao et al. 2022); splitting long
contexts between programs is Flash-Decoding (Dao et al. 2023).

A position that no query may see is never read, so what an older request left in a page can't reach a sum. Tables and
lengths are parts of one tensor, at any alignment. Kernels do not specialize on that, so none is compiled again.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def _first_visible(position, WINDOW: tl.constexpr):
    """Return the first position that a query at `position` may see. A window of 0 means none."""
    first = position * 0
    if WINDOW > 0:
        first = tl.maximum(first, position - (WINDOW - 1))
    return first


@triton.jit
def _partition(length, PARTS: tl.constexpr, SMALLEST: tl.constexpr):
    """Return how many keys a partition has: a multiple of 64, so that `PARTS` partitions hold the context."""
    return tl.maximum(SMALLEST, tl.cdiv(length, PARTS * 64) * 64)


@triton.jit
def _in_pages(table, positions, wanted, page_stride, offset_stride, PAGE: tl.constexpr):
    """Return the offsets, in elements, of the keys at these positions. Only `wanted` ones are looked up."""
    pages = tl.load(table + positions // PAGE, mask=wanted, other=0)
    return pages.to(tl.int64) * page_stride + (positions % PAGE) * offset_stride


@triton.jit
def _product(left, right, PRECISION: tl.constexpr):
    """Return a matrix product with float32 sums. With "ieee" the factors are float32, too."""
    if PRECISION == "ieee":
        left, right = left.to(tl.float32), right.to(tl.float32)
    return tl.dot(left, right, input_precision=PRECISION)


@triton.jit
def _scores(queries, keys, scale, softcap, CAPPED: tl.constexpr, PRECISION: tl.constexpr):
    """Return scores as exponents of two, since exp2 is what the device computes."""
    scores = _product(queries, keys, PRECISION) * scale
    if CAPPED:
        # tanh(x) is 1 - 2 / (exp(2x) + 1), which is right for infinite exponentials too.
        scores = softcap * (1 - 2 / (tl.exp(2 * scores / softcap) + 1))
    return scores * LOG2_E


@triton.jit
def _block(
    state,
    queries,
    keys,
    values,
    table,
    positions,
    first,
    last,
    strides,
    scale,
    softcap,
    SIZE: tl.constexpr,
    SIZE_PADDED: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    VALUE_PADDED: tl.constexpr,
    PAGE: tl.constexpr,
    CAPPED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Add one block of keys and values to the sums. Query rows see the positions from `first` to `last`, both included."""
    top, total, mixed = state
    key_page, key_offset, value_page, value_offset = strides
    wanted = (positions >= tl.min(first)) & (positions <= tl.max(last))
    sizes, value_sizes = tl.arange(0, SIZE_PADDED), tl.arange(0, VALUE_PADDED)
    at_keys = _in_pages(table, positions, wanted, key_page, key_offset, PAGE)
    at_values = _in_pages(table, positions, wanted, value_page, value_offset, PAGE)
    turned = tl.load(
        keys + at_keys[None, :] + sizes[:, None], mask=wanted[None, :] & (sizes < SIZE)[:, None], other=0.0
    )
    scores = _scores(queries, turned, scale, softcap, CAPPED, PRECISION)
    visible = (positions[None, :] >= first[:, None]) & (positions[None, :] <= last[:, None])
    scores = tl.where(visible, scores, -float("inf"))
    higher = tl.maximum(top, tl.max(scores, 1))
    # A row that has seen nothing yet has no top: -inf minus -inf would be NaN.
    base = tl.where(higher == -float("inf"), 0.0, higher)
    weights = tl.exp2(scores - base[:, None])
    faded = tl.exp2(top - base)
    taken = tl.load(
        values + at_values[:, None] + value_sizes[None, :],
        mask=wanted[:, None] & (value_sizes < VALUE_SIZE)[None, :],
        other=0.0,
    )
    mixed = mixed * faded[:, None] + _product(weights.to(taken.dtype), taken, PRECISION)
    return higher, total * faded + tl.sum(weights, 1), mixed


@triton.jit(do_not_specialize_on_alignment=["tables", "lengths"])
def decode_partitions(
    queries,
    keys,
    values,
    tables,
    lengths,
    mixed,
    weights,
    scale,
    softcap,
    query_row,
    query_head,
    key_page,
    key_offset,
    key_head,
    value_page,
    value_offset,
    value_head,
    table_row,
    PARTS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    SIZE: tl.constexpr,
    SIZE_PADDED: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    VALUE_PADDED: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
    SMALLEST: tl.constexpr,
    WINDOW: tl.constexpr,
    CAPPED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Attend with one query a request to each partition of its context separately, for `merge_partitions`.

    A partition has the same positions whichever program computes it, so a reply's numbers don't depend on its neighbours.
    Program (request, KV head, split) takes every num_programs(2)-th partition.
    """
    request, kv_head = tl.program_id(0), tl.program_id(1)
    length = tl.load(lengths + request)
    if length > 0:
        first = _first_visible(length - 1, WINDOW)
        member = tl.arange(0, ROWS)
        head = kv_head * GROUP + member
        sizes, value_sizes = tl.arange(0, SIZE_PADDED), tl.arange(0, VALUE_PADDED)
        inputs = tl.load(
            queries + request.to(tl.int64) * query_row + head[:, None] * query_head + sizes[None, :],
            mask=(member < GROUP)[:, None] & (sizes < SIZE)[None, :],
            other=0.0,
        )
        table = tables + request.to(tl.int64) * table_row
        begins = tl.zeros([ROWS], tl.int32) + first
        ends = tl.zeros([ROWS], tl.int32) + length - 1
        strides = key_page, key_offset, value_page, value_offset
        partition = _partition(length, PARTS, SMALLEST)
        parts = tl.cdiv(length, partition)
        for part in range(first // partition + tl.program_id(2), parts, tl.num_programs(2)):
            state = (
                tl.full([ROWS], -float("inf"), tl.float32),
                tl.zeros([ROWS], tl.float32),
                tl.zeros([ROWS, VALUE_PADDED], tl.float32),
            )
            begin = tl.maximum(part * partition, first // BLOCK * BLOCK)
            end = tl.minimum((part + 1) * partition, length)
            for start in range(begin, end, BLOCK):
                state = _block(
                    state, inputs, keys + kv_head * key_head, values + kv_head * value_head, table,
                    start + tl.arange(0, BLOCK), begins, ends, strides, scale, softcap,
                    SIZE, SIZE_PADDED, VALUE_SIZE, VALUE_PADDED, PAGE, CAPPED, PRECISION,
                )  # fmt: skip
            top, total, sums = state
            place = (request.to(tl.int64) * GROUP * tl.num_programs(1) + head) * PARTS + part
            tl.store(weights + place, top + tl.log2(total), mask=member < GROUP)
            tl.store(
                mixed + place[:, None] * VALUE_SIZE + value_sizes[None, :],
                sums / total[:, None],
                mask=(member < GROUP)[:, None] & (value_sizes < VALUE_SIZE)[None, :],
            )


@triton.jit(do_not_specialize_on_alignment=["lengths"])
def merge_partitions(
    mixed,
    weights,
    lengths,
    out,
    out_row,
    out_head,
    PARTS: tl.constexpr,
    PARTS_PADDED: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    VALUE_PADDED: tl.constexpr,
    SMALLEST: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """Merge the partitions of each request and head. An idle row, which has no keys, gets zeros."""
    request, head = tl.program_id(0), tl.program_id(1)
    length = tl.load(lengths + request)
    parts, value_sizes = tl.arange(0, PARTS_PADDED), tl.arange(0, VALUE_PADDED)
    first = _first_visible(length - 1, WINDOW)
    partition = _partition(length, PARTS, SMALLEST)
    computed = (parts >= first // partition) & (parts < tl.cdiv(length, partition))
    place = (request.to(tl.int64) * tl.num_programs(1) + head) * PARTS + parts
    powers = tl.load(weights + place, mask=computed, other=-float("inf"))
    top = tl.max(powers, 0)
    base = tl.where(top == -float("inf"), 0.0, top)
    shares = tl.exp2(powers - base)
    total = tl.sum(shares, 0)
    partly = tl.load(
        mixed + place[:, None] * VALUE_SIZE + value_sizes[None, :],
        mask=computed[:, None] & (value_sizes < VALUE_SIZE)[None, :],
        other=0.0,
    )
    whole = tl.sum(partly * shares[:, None], 0) / tl.where(total == 0.0, 1.0, total)
    at = out + request.to(tl.int64) * out_row + head * out_head + value_sizes
    tl.store(at, whole.to(out.dtype.element_ty), mask=value_sizes < VALUE_SIZE)


@triton.jit(do_not_specialize_on_alignment=["tables", "query_starts", "lengths"])
def attend_prompts(
    queries,
    keys,
    values,
    tables,
    query_starts,
    lengths,
    out,
    scale,
    softcap,
    query_row,
    query_head,
    key_page,
    key_offset,
    key_head,
    value_page,
    value_offset,
    value_head,
    table_row,
    out_row,
    out_head,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    SIZE: tl.constexpr,
    SIZE_PADDED: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    VALUE_PADDED: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
    WINDOW: tl.constexpr,
    CAPPED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Attend with many queries a request. Program (tile of queries, KV head, request) reads no block that its tile can't see."""
    kv_head, request = tl.program_id(1), tl.program_id(2)
    start = tl.load(query_starts + request)
    count = tl.load(query_starts + request + 1) - start
    length = tl.load(lengths + request)
    TOKENS: tl.constexpr = ROWS // GROUP
    if tl.program_id(0) * TOKENS < count:
        row = tl.arange(0, ROWS)
        token = tl.program_id(0) * TOKENS + row // GROUP
        head = kv_head * GROUP + row % GROUP
        valid = (row < TOKENS * GROUP) & (token < count)
        sizes, value_sizes = tl.arange(0, SIZE_PADDED), tl.arange(0, VALUE_PADDED)
        at = (start + token).to(tl.int64)
        inputs = tl.load(
            queries + at[:, None] * query_row + head[:, None] * query_head + sizes[None, :],
            mask=valid[:, None] & (sizes < SIZE)[None, :],
            other=0.0,
        )
        # Unused rows take the position of the tile's first token, so they widen nothing that is read.
        position = length - count + tl.where(valid, token, tl.program_id(0) * TOKENS)
        first = _first_visible(position, WINDOW)
        table = tables + request.to(tl.int64) * table_row
        strides = key_page, key_offset, value_page, value_offset
        state = (
            tl.full([ROWS], -float("inf"), tl.float32),
            tl.zeros([ROWS], tl.float32),
            tl.zeros([ROWS, VALUE_PADDED], tl.float32),
        )
        for begin in range(tl.min(first) // BLOCK * BLOCK, tl.max(position) + 1, BLOCK):
            state = _block(
                state, inputs, keys + kv_head * key_head, values + kv_head * value_head, table,
                begin + tl.arange(0, BLOCK), first, position, strides, scale, softcap,
                SIZE, SIZE_PADDED, VALUE_SIZE, VALUE_PADDED, PAGE, CAPPED, PRECISION,
            )  # fmt: skip
        _, total, mixed = state
        tl.store(
            out + at[:, None] * out_row + head[:, None] * out_head + value_sizes[None, :],
            (mixed / total[:, None]).to(out.dtype.element_ty),
            mask=valid[:, None] & (value_sizes < VALUE_SIZE)[None, :],
        )


@triton.jit(do_not_specialize_on_alignment=["pages", "offsets"])
def store_rows(
    keys,
    values,
    pages,
    offsets,
    stored_keys,
    stored_values,
    key_row,
    key_head,
    value_row,
    value_head,
    key_page,
    key_offset,
    key_stored_head,
    value_page,
    value_offset,
    value_stored_head,
    HEADS: tl.constexpr,
    HEADS_PADDED: tl.constexpr,
    SIZE: tl.constexpr,
    SIZE_PADDED: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    VALUE_PADDED: tl.constexpr,
):
    """Write one token's keys and values to (page, offset). An idle row has a page below 0, and stores nothing."""
    token = tl.program_id(0)
    page = tl.load(pages + token).to(tl.int64)
    if page >= 0:
        offset = tl.load(offsets + token)
        heads = tl.arange(0, HEADS_PADDED)[:, None]
        sizes, value_sizes = tl.arange(0, SIZE_PADDED)[None, :], tl.arange(0, VALUE_PADDED)[None, :]
        there = (heads < HEADS) & (sizes < SIZE)
        made = tl.load(keys + token.to(tl.int64) * key_row + heads * key_head + sizes, mask=there)
        at = page * key_page + offset * key_offset + heads * key_stored_head + sizes
        tl.store(stored_keys + at, made, mask=there)
        there = (heads < HEADS) & (value_sizes < VALUE_SIZE)
        made = tl.load(values + token.to(tl.int64) * value_row + heads * value_head + value_sizes, mask=there)
        at = page * value_page + offset * value_offset + heads * value_stored_head + value_sizes
        tl.store(stored_values + at, made, mask=there)


STEP_OF_LEVELS: tl.constexpr = tl.constexpr(1 / 16777216)


@triton.jit
def _weights(row, start, vocabulary, highest, limit, BLOCK: tl.constexpr):
    """Return the weights of a block's tokens that are strictly likelier than the limit. The row's likeliest token weighs 1."""
    place = start + tl.arange(0, BLOCK)
    scores = tl.load(row + place, mask=place < vocabulary, other=-float("inf"))
    return tl.where(scores > limit, tl.exp2((scores - highest) * LOG2_E), 0.0)


@triton.jit
def draw_rows(
    scores, top_ps, levels, tokens, scores_row, vocabulary, ROUNDS: tl.constexpr, BLOCK: tl.constexpr
):
    """Draw a token of each row of scores, whose exponentials are weights. A row with NaN gives -1."""
    number = tl.program_id(0)
    row = scores + number.to(tl.int64) * scores_row
    top_p = tl.load(top_ps + number)
    tops = tl.full([BLOCK], -float("inf"), tl.float32)
    broken = tl.zeros([BLOCK], tl.int32)
    for start in range(0, vocabulary, BLOCK):
        place = start + tl.arange(0, BLOCK)
        some = tl.load(row + place, mask=place < vocabulary, other=-float("inf"))
        tops = tl.maximum(tops, some)
        broken += tl.where(some < float("inf"), 0, 1)  # NaN is not below it either
    highest = tl.max(tops, 0)
    usable = (tl.sum(broken, 0) == 0) & (highest > -float("inf"))
    highest = tl.where(usable, highest, 0.0)
    total = 0.0
    for start in range(0, vocabulary, BLOCK):
        total += tl.sum(_weights(row, start, vocabulary, highest, -float("inf"), BLOCK), 0)
    limit, mass = -float("inf"), total
    drawn, turn = -1, 0
    while usable & (drawn < 0) & (turn < ROUNDS):
        # Levels have 24 bits, so they stay below 1, and their products below `mass`.
        level = (tl.load(levels + number * ROUNDS + turn) & 0xFFFFFF).to(tl.float32) * STEP_OF_LEVELS * mass
        found, passed = -1, 0.0
        for start in range(0, vocabulary, BLOCK):
            weights = _weights(row, start, vocabulary, highest, limit, BLOCK)
            here = tl.sum(weights, 0)
            if here > 0.0:
                if (found < 0) | (passed <= level):
                    # If rounding leaves no token beyond the level, the last one with a weight is taken.
                    place = start + tl.arange(0, BLOCK)
                    beyond = (passed + tl.cumsum(weights, 0) > level) & (weights > 0.0)
                    last = tl.max(tl.where(weights > 0.0, place, -1), 0)
                    found = tl.minimum(tl.min(tl.where(beyond, place, vocabulary), 0), last)
                passed += here
        own = tl.load(row + found)
        likelier = 0.0
        for start in range(0, vocabulary, BLOCK):
            likelier += tl.sum(_weights(row, start, vocabulary, highest, own, BLOCK), 0)
        if (likelier < top_p * total) | (turn == ROUNDS - 1):
            drawn = found
        limit, mass, turn = own, likelier, turn + 1
    tl.store(tokens + number, drawn)
