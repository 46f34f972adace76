"""Attention over the pages of the KV cache, and sampling, by Triton kernels on a CUDA device.

The kernels are torch operators, so a step can be traced without a device to check its shapes. This module lays each kernel
out over the device's multiprocessors. It checks tensors' shapes, but trusts the cache's page numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import torch
from torch import Tensor

from engine.kv_cache import LayerPages
from engine.model.attention import AttentionParams
from engine.model.devices import sent
from engine.step_layout import StepLayout

SMALLEST_PARTITION = 256
"""The fewest keys in a partition of a context. A longer context has larger ones, whatever the other contexts are."""

MOST_PARTITIONS = 64

PROGRAMS_PER_PROCESSOR = 4
"""How many programs each multiprocessor should get, so that short programs balance long ones."""

SMALLEST_PRODUCT = 16
"""The fewest rows that a device multiplies as a matrix. The heads of a single query are padded to that."""

PROMPT_ROWS = 128
"""Rows of scores that one program computes: tokens of a prompt times the heads that share a KV head."""

LARGE_HEAD = 256
"""Bytes of a key. Larger keys halve a program's rows and keys, since a multiprocessor's shared memory holds no more."""

_library: Any = torch.library.Library("midstream", "DEF")  # type: ignore[no-untyped-call]

ROUNDS = 32
"""The most draws of a row. Drawing from a nucleus of mass p rejects at most ln(1/p) times on average."""

BLOCK = 4096
"""Scores that a row's program reads at a time."""


class Cuda:
    """A `Backend` for a CUDA device with `processors` multiprocessors. It supports all attention parameters."""

    def __init__(self, *, processors: int) -> None:
        self._processors = processors

    def store(self, layer: LayerPages, step: StepLayout, keys: Tensor, values: Tensor) -> None:
        """See `Backend`."""
        torch.ops.midstream.store_rows(keys, values, step.pages, step.offsets, *layer)

    def attend(self, queries: Tensor, layer: LayerPages, step: StepLayout, terms: AttentionParams) -> Tensor:
        """See `Backend`. Makes at most three launches, whatever the lengths are, and does not wait for the device.

        Idle rows after the prompts hold undefined values.
        """
        out = queries.new_empty(*queries.shape[:2], layer.values.shape[3])
        numbers = terms.scale, terms.window or 0, terms.softcap or 0.0
        if rows := step.decode_rows:
            torch.ops.midstream.attend_decode(
                queries[:rows],
                *layer,
                step.tables[:rows],
                out[:rows],
                step.lengths[:rows],
                *numbers,
                self._processors,
            )
        if step.longest_prompt:
            torch.ops.midstream.attend_prompts(
                queries,
                *layer,
                step.tables[rows:],
                out,
                step.query_starts[rows:],
                step.lengths[rows:],
                *numbers,
                step.longest_prompt,
            )
        return out


def _kernels() -> Any:
    # Triton comes with torch for CUDA only, and is slow to import.
    from engine.model.cuda import kernels  # noqa: PLC0415

    return kernels


def _padded(size: int) -> int:
    """Return the power of two that a size is padded to, since Triton's blocks have no other sizes."""
    return max(SMALLEST_PRODUCT, 1 << (size - 1).bit_length())


def _sizes(keys: Tensor, values: Tensor) -> dict[str, int]:
    size, value_size = keys.shape[-1], values.shape[-1]
    return {
        "SIZE": size,
        "SIZE_PADDED": _padded(size),
        "VALUE_SIZE": value_size,
        "VALUE_PADDED": _padded(value_size),
    }


def _block(keys: Tensor) -> int:
    """Return how many keys a program attends to at a time."""
    return 32 if _is_large(keys) else 64


def _is_large(keys: Tensor) -> bool:
    return keys.shape[-1] * keys.element_size() > LARGE_HEAD


def _precision(queries: Tensor) -> str:
    # On a CPU, exact for all dtypes: Triton's interpreter would multiply the bits of bfloat16 as integers.
    return "ieee" if queries.dtype is torch.float32 or queries.device.type == "cpu" else "tf32"


def _check_attention(
    queries: Tensor, keys: Tensor, values: Tensor, tables: Tensor, out: Tensor, *rest: Any
) -> None:
    """Raise ValueError if tensors do not fit together: a kernel would read beyond them."""
    tensors = [queries, keys, values, tables, out, *(one for one in rest if isinstance(one, Tensor))]
    if len({one.device for one in tensors}) > 1:
        raise ValueError(f"tensors are on different devices: {sorted({str(one.device) for one in tensors})}")
    fits = (
        queries.shape[:2] == out.shape[:2]
        and keys.shape[:3] == values.shape[:3]
        and queries.shape[2] == keys.shape[3]
        and out.shape[2] == values.shape[3]
        and queries.shape[1] % keys.shape[2] == 0
        and all(one.stride(-1) == 1 for one in tensors)
    )
    if not fits:
        raise ValueError(f"shapes do not fit together: {[tuple(one.shape) for one in tensors]}")


def _launch_decode(  # noqa: PLR0917 - the operator's parameters
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    tables: Tensor,
    out: Tensor,
    lengths: Tensor,
    scale: float,
    window: int,
    softcap: float,
    processors: int,
) -> None:
    _check_attention(queries, keys, values, tables, out, lengths)
    rows, heads, _ = queries.shape
    page, kv_heads = keys.shape[1:3]
    parts = max(1, min(MOST_PARTITIONS, -(-tables.shape[1] * page // SMALLEST_PARTITION)))
    sizes = _sizes(keys, values)
    mixed = torch.empty(rows, heads, parts, values.shape[3], dtype=torch.float32, device=out.device)
    weights = torch.empty(rows, heads, parts, dtype=torch.float32, device=out.device)
    splits = min(parts, -(-processors * PROGRAMS_PER_PROCESSOR // (rows * kv_heads)))
    constants = {"SMALLEST": SMALLEST_PARTITION, "WINDOW": window}
    kernels = _kernels()
    kernels.decode_partitions[rows, kv_heads, splits](
        *(queries, keys, values, tables, lengths, mixed, weights, scale, softcap),
        *queries.stride()[:2],
        *keys.stride()[:3],
        *values.stride()[:3],
        tables.stride(0),
        PARTS=parts,
        GROUP=heads // kv_heads,
        ROWS=_padded(heads // kv_heads),
        PAGE=page,
        BLOCK=_block(keys),
        CAPPED=softcap > 0,
        PRECISION=_precision(queries),
        num_stages=2,
        **sizes,
        **constants,
    )
    kernels.merge_partitions[rows, heads](
        *(mixed, weights, lengths, out),
        *out.stride()[:2],
        PARTS=parts,
        PARTS_PADDED=1 << (parts - 1).bit_length(),
        VALUE_SIZE=sizes["VALUE_SIZE"],
        VALUE_PADDED=sizes["VALUE_PADDED"],
        **constants,
    )


def _launch_prompts(  # noqa: PLR0917 - the operator's parameters
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    tables: Tensor,
    out: Tensor,
    query_starts: Tensor,
    lengths: Tensor,
    scale: float,
    window: int,
    softcap: float,
    longest: int,
) -> None:
    _check_attention(queries, keys, values, tables, out, query_starts, lengths)
    page, kv_heads = keys.shape[1:3]
    group = queries.shape[1] // kv_heads
    rows = max(PROMPT_ROWS // 2 if _is_large(keys) else PROMPT_ROWS, _padded(group))
    tiles = -(-longest // (rows // group))
    _kernels().attend_prompts[tiles, kv_heads, len(tables)](
        *(queries, keys, values, tables, query_starts, lengths, out, scale, softcap),
        *queries.stride()[:2],
        *keys.stride()[:3],
        *values.stride()[:3],
        tables.stride(0),
        *out.stride()[:2],
        GROUP=group,
        ROWS=rows,
        PAGE=page,
        BLOCK=_block(keys),
        WINDOW=window,
        CAPPED=softcap > 0,
        PRECISION=_precision(queries),
        num_warps=8,
        **_sizes(keys, values),
    )


def _launch_store(  # noqa: PLR0917 - the operator's parameters
    keys: Tensor, values: Tensor, pages: Tensor, offsets: Tensor, stored_keys: Tensor, stored_values: Tensor
) -> None:
    _check_store(keys, values, pages, offsets, stored_keys, stored_values)
    _kernels().store_rows[(len(keys),)](
        *(keys, values, pages, offsets, stored_keys, stored_values),
        *keys.stride()[:2],
        *values.stride()[:2],
        *stored_keys.stride()[:3],
        *stored_values.stride()[:3],
        HEADS=keys.shape[1],
        HEADS_PADDED=1 << (keys.shape[1] - 1).bit_length(),
        **_sizes(keys, values),
    )


def _check_store(keys: Tensor, values: Tensor, *rest: Tensor) -> None:
    pages, offsets, stored_keys, stored_values = rest
    if len({one.device for one in (keys, values, *rest)}) > 1:
        raise ValueError("keys, values and pages are on different devices")
    fits = (
        keys.shape[1:] == stored_keys.shape[2:]
        and values.shape[1:] == stored_values.shape[2:]
        and len(keys) == len(values) == len(pages) == len(offsets)
        and all(one.stride(-1) == 1 for one in (keys, values, *rest))
    )
    if not fits:
        raise ValueError(f"shapes do not fit together: {[tuple(one.shape) for one in (keys, values, *rest)]}")


def draw(scores: Tensor, top_p: Tensor | None, randoms: Sequence[Random]) -> Tensor:
    """Draw a token of each row of scores, (rows, vocabulary) of float32, from its nucleus: (rows, 1) of int64.

    `top_p`, (rows, 1): infinite for a row without a nucleus; None if no row has one. A row with NaN gives -1. Each row
    consumes the same number of random numbers, however many it needs.
    """
    limits = scores.new_full((len(scores), 1), math.inf) if top_p is None else top_p
    numbers = bytearray(b"".join(random.randbytes(4 * ROUNDS) for random in randoms))
    levels = sent(torch.frombuffer(numbers, dtype=torch.int32).view(len(randoms), ROUNDS), scores.device)
    return torch.ops.midstream.draw(scores, limits, levels)  # type: ignore[no-any-return]


def _launch_draw(scores: Tensor, top_p: Tensor, levels: Tensor) -> Tensor:
    rows, vocabulary = scores.shape
    tokens = torch.empty(rows, 1, dtype=torch.int64, device=scores.device)
    _kernels().draw_rows[(rows,)](
        scores, top_p, levels, tokens, scores.stride(0), vocabulary, ROUNDS=ROUNDS, BLOCK=BLOCK, num_warps=16
    )
    return tokens


def _fake_draw(scores: Tensor, top_p: Tensor, levels: Tensor) -> Tensor:
    if not scores.device == top_p.device == levels.device:
        raise ValueError("scores, limits and levels are on different devices")
    return scores.new_empty((len(scores), 1), dtype=torch.int64)


def _register(schema: str, launch: Callable[..., object], fake: Callable[..., object]) -> None:
    _library.define(schema)
    name = schema.partition("(")[0]
    # On the CPU, too, where tests run the kernels in Triton's interpreter.
    for device in ("CUDA", "CPU"):
        _library.impl(name, launch, device)
    torch.library.register_fake(f"midstream::{name}", fake, lib=_library)


_register(
    "attend_decode(Tensor queries, Tensor keys, Tensor values, Tensor tables, Tensor(a!) out, Tensor lengths, "
    "float scale, int window, float softcap, int processors) -> ()",
    _launch_decode,
    _check_attention,
)
_register(
    "attend_prompts(Tensor queries, Tensor keys, Tensor values, Tensor tables, Tensor(a!) out, Tensor query_starts, "
    "Tensor lengths, float scale, int window, float softcap, int longest) -> ()",
    _launch_prompts,
    _check_attention,
)
_register(
    "store_rows(Tensor keys, Tensor values, Tensor pages, Tensor offsets, Tensor(a!) stored_keys, "
    "Tensor(b!) stored_values) -> ()",
    _launch_store,
    _check_store,
)
_register("draw(Tensor scores, Tensor top_p, Tensor levels) -> Tensor", _launch_draw, _fake_draw)
