"""Whole steps of a fused model on CPUs, each in one call of C: decode steps (`decode.c`) and prompts (`prefill.c`).

Knows a model's weights, and where tokens, keys and values are. Does not know what becomes of the logits.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any

import torch
from torch import Tensor, nn

from engine.kv_cache import LayerPages
from engine.model.attention import AttentionParams
from engine.model.cpu import kernels as cpu_kernels
from engine.model.cpu.kernels import Int8Linear, Matrix, has_tiles, matrix, serve_linear
from engine.model.fused_decoder import FusedDecoder, FusedLayer, RMSNorm
from engine.step_layout import Span, block_tables

_POINTER, _COUNT = ctypes.c_void_p, ctypes.c_ssize_t

_REFUSALS = (
    "",
    "sizes that are out of range",
    "weights that do not fit together",
    "too little room",
    "a token beyond the vocabulary",
    "a position beyond the pages or the angles",
    "a page that does not exist",
    "two rows that write to the same page",
)

MOST_ROWS = 64
"""Steps of more rows are computed like prompts, since their products take nearly all of the time."""


class InvalidStep(ValueError):
    """A step that would read or write where it must not. Nothing was computed."""


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, _POINTER) for name in ("attention_norm", "mlp_norm", "query_norm", "key_norm")),
        *((name, Matrix) for name in ("qkv", "output", "gate_up", "down")),
        *((name, _POINTER) for name in ("keys", "values")),
        *((name, _COUNT) for name in ("pages", "page_size")),
    )


class _Model(ctypes.Structure):
    _fields_ = (
        *((name, _POINTER) for name in ("embedding", "norm", "cosine", "sine", "layers")),
        ("head", Matrix),
        *((name, _COUNT) for name in ("layer_count", "hidden", "heads", "kv_heads", "size")),
        *((name, _COUNT) for name in ("vocabulary", "positions")),
        *((name, ctypes.c_float) for name in ("epsilon", "scale")),
        ("half", ctypes.c_int64),
    )


class _DecodeStep(ctypes.Structure):
    _fields_ = (
        *((name, _POINTER) for name in ("tokens", "positions", "table", "logits", "room")),
        *((name, _COUNT) for name in ("rows", "columns", "threads", "room_bytes")),
    )


class _PrefillStep(ctypes.Structure):
    _fields_ = (
        *((name, _POINTER) for name in ("tokens", "spans", "table", "kept", "logits", "room")),
        *((name, _COUNT) for name in ("rows", "span_count", "columns", "kept_count")),
        *((name, _COUNT) for name in ("threads", "room_bytes")),
    )


class CpuModel:
    """Computes a model's steps, with pointers to its weights, which must not move while it is used."""

    def __init__(self, decoder: FusedDecoder) -> None:
        """Take a model that `is_known` accepts."""
        self._decoder = decoder
        self.prefills = prefills(decoder)
        """Whether steps with prompts, or of many rows, are computed here sooner than by the layers."""
        layers: list[FusedLayer] = list(decoder.layers)  # type: ignore[arg-type] # a ModuleList knows no kinds
        self._layers = (_Layer * len(layers))(*(_described(layer) for layer in layers))
        first = layers[0]
        self._described = _Model(
            embedding=decoder.embedding.weight.data_ptr(),
            norm=decoder.norm.weight.data_ptr(),
            layers=ctypes.addressof(self._layers),
            head=_matrix_of(decoder.head),
            layer_count=len(layers),
            hidden=decoder.embedding.embedding_dim,
            vocabulary=decoder.embedding.num_embeddings,
            heads=first.heads,
            kv_heads=first.kv_heads,
            size=first.size,
            epsilon=decoder.norm.epsilon,
            scale=first.terms.scale,
            half=decoder.dtype is torch.bfloat16,
        )
        self._angles: tuple[Tensor, Tensor] | None = None
        self._bound: Sequence[LayerPages] = ()
        self._bound_layers = 0
        self._room = torch.empty(0, dtype=torch.uint8)

    @staticmethod
    def decodes(spans: Sequence[Span]) -> bool:
        """Whether `decode` computes a step."""
        return len(spans) <= MOST_ROWS and all(span.samples and len(span.tokens) == 1 for span in spans)

    def decode(self, spans: Sequence[Span], layers: Sequence[LayerPages]) -> Tensor:
        """Compute the token of each span, and store its keys and values. No two spans may write to the same page.

        Returns logits, (rows, vocabulary). Raises InvalidStep if a token, position or page is out of range.
        """
        table = self._prepared(spans, layers)
        rows, threads, library = len(spans), torch.get_num_threads(), cpu_kernels.library()
        given = torch.tensor(([span.tokens[0] for span in spans], [span.start for span in spans]))
        logits = self._logits(rows)
        step = _DecodeStep(
            tokens=given.data_ptr(),
            positions=given[1].data_ptr(),
            table=table.data_ptr(),
            logits=logits.data_ptr(),
            rows=rows,
            columns=table.shape[1],
            threads=threads,
        )
        model = ctypes.byref(self._described)
        self._take_room(step, library.midstream_decode_room(model, rows, threads))
        _check(library.midstream_decode(model, ctypes.byref(step)))
        return logits

    def prefill(self, spans: Sequence[Span], layers: Sequence[LayerPages]) -> Tensor:
        """Compute the tokens of spans, and store their keys and values. No two spans may write to the same page.

        Returns the logits behind the last token of each span that samples, (rows, vocabulary). Raises InvalidStep if
        a token, position or page is out of range.
        """
        if not all(span.tokens for span in spans):
            raise InvalidStep("a span of no tokens")
        table = self._prepared(spans, layers)
        counts = [len(span.tokens) for span in spans]
        stops = list(accumulate(counts))
        rows = zip(stops, counts, spans, strict=True)
        places = torch.tensor([(stop - count, span.start, count) for stop, count, span in rows])
        tokens = torch.tensor(list(chain.from_iterable(span.tokens for span in spans)))
        sampled = [stop - 1 for stop, span in zip(stops, spans, strict=True) if span.samples]
        kept = torch.tensor(sampled, dtype=torch.int64)
        logits = self._logits(len(kept))
        step = _PrefillStep(
            tokens=tokens.data_ptr(),
            spans=places.data_ptr(),
            table=table.data_ptr(),
            kept=kept.data_ptr(),
            logits=logits.data_ptr(),
            rows=len(tokens),
            span_count=len(spans),
            columns=table.shape[1],
            kept_count=len(kept),
            threads=torch.get_num_threads(),
        )
        library, model = cpu_kernels.library(), ctypes.byref(self._described)
        self._take_room(step, library.midstream_prefill_room(model, ctypes.byref(step)))
        _check(library.midstream_prefill(model, ctypes.byref(step)))
        return logits

    def _prepared(self, spans: Sequence[Span], layers: Sequence[LayerPages]) -> Tensor:
        """Tell the kernels where keys, values and angles are. This is done again only when they have moved.

        Returns the block tables of spans, (spans, pages of the longest), int32. Raises InvalidStep.
        """
        self._bind(layers)
        page = layers[0].keys.shape[1]
        if not spans:
            raise InvalidStep("a step of no rows")
        if any(span.start < 0 or span.stop > page * len(span.pages) for span in spans):
            raise InvalidStep("a position beyond the pages of its row")
        extent = max(span.stop for span in spans)
        self._look_up(extent)
        return block_tables(spans, -(-extent // page), page)

    def _logits(self, rows: int) -> Tensor:
        return torch.empty(rows, self._described.head.outputs, dtype=self._decoder.dtype)

    def _take_room(self, step: Any, needed: int) -> None:
        """Give a step at least `needed` bytes that it may write to. The next step reuses them."""
        if self._room.numel() < needed:
            self._room = torch.empty(needed, dtype=torch.uint8)
        step.room, step.room_bytes = self._room.data_ptr(), self._room.numel()

    def _look_up(self, extent: int) -> None:
        """Make sure that there are angles for `extent` positions."""
        angles = self._decoder.rotary.tables(extent, self._decoder.device, self._decoder.dtype)
        if self._angles is None or angles[0] is not self._angles[0]:
            self._angles = angles
            self._described.cosine, self._described.sine = angles[0].data_ptr(), angles[1].data_ptr()
            self._described.positions = len(angles[0])

    def _bind(self, layers: Sequence[LayerPages]) -> None:
        """Tell the kernels where keys and values are."""
        if self._bound is layers and self._bound_layers == len(layers):
            return
        if len(layers) != len(self._layers):
            raise InvalidStep("keys and values for another number of layers")
        for described, layer in zip(self._layers, layers, strict=True):
            self._bind_layer(described, layer)
        self._bound, self._bound_layers = layers, len(layers)

    def _bind_layer(self, described: Any, layer: LayerPages) -> None:
        keys, values = layer.keys.transpose(1, 2), layer.values.transpose(1, 2)
        pages, page = keys.shape[0], keys.shape[2]
        shape = (pages, self._described.kv_heads, page, self._described.size)
        alike = keys.dtype == values.dtype == self._decoder.dtype and keys.shape == values.shape == shape
        if not alike or not keys.is_contiguous() or not values.is_contiguous():
            raise InvalidStep("keys and values of other shapes")
        described.keys, described.values = keys.data_ptr(), values.data_ptr()
        described.pages, described.page_size = pages, page


def _check(refusal: int) -> None:
    """Raise InvalidStep if a kernel refused a step."""
    if refusal:
        raise InvalidStep(_REFUSALS[refusal])


def is_known(decoder: FusedDecoder) -> bool:
    """Whether the kernels know all kinds of a model's layers, with alike heads, norms and activations."""
    if not cpu_kernels.serve(decoder.embedding.weight) or not len(decoder.layers):
        return False
    layers: list[FusedLayer] = list(decoder.layers)  # type: ignore[arg-type] # as above
    linears = [decoder.head, *(linear for layer in layers for linear in _linears(layer))]
    norms = [decoder.norm, *(norm for layer in layers for norm in _norms(layer) if norm is not None)]
    alike = {(layer.heads, layer.kv_heads, layer.size, layer.terms) for layer in layers}
    return (
        all(_is_known(linear, decoder.embedding.weight) for linear in linears)
        and {norm.epsilon for norm in norms} == {decoder.norm.epsilon}
        and all(layer.is_silu for layer in layers)
        and alike
        == {(layers[0].heads, layers[0].kv_heads, layers[0].size, AttentionParams(layers[0].terms.scale))}
    )


def _linears(layer: FusedLayer) -> tuple[nn.Module, ...]:
    return layer.qkv, layer.output, layer.gate_up, layer.down


def _norms(layer: FusedLayer) -> tuple[RMSNorm | None, ...]:
    return layer.before_attention, layer.before_mlp, layer.query_norm, layer.key_norm


def _is_known(linear: nn.Module, like: Tensor) -> bool:
    return type(linear) in {nn.Linear, Int8Linear} and serve_linear(like, linear.weight)  # type: ignore[arg-type] # both have weights


def _matrix_of(linear: Any) -> Matrix:
    """Describe a linear layer to the kernels."""
    return matrix(linear.weight, linear.bias, getattr(linear, "scale", None))


def _described(layer: FusedLayer) -> _Layer:
    norms = (None if norm is None else norm.weight.data_ptr() for norm in _norms(layer))
    return _Layer(*norms, *(_matrix_of(linear) for linear in _linears(layer)))


def prefills(decoder: FusedDecoder) -> bool:
    """Whether the kernel serves a model that `is_known` (`engine.model.cpu.decoder`) faster than the layers do.

    Measured with bfloat16 in pairs, and float32 in AVX-512 and AVX2. torch uses AMX tiles if the processor has them, and
    bfloat16 without pairs takes as long as float32. int8 would have to be widened for each block of rows: 1.2 times the
    layers' time.
    """
    widths = {decoder.embedding.embedding_dim, *(layer.down.weight.shape[1] for layer in decoder.layers)}  # type: ignore[union-attr, index] # a ModuleList knows no kinds
    if any(width % 2 for width in widths) or any(isinstance(part, Int8Linear) for part in decoder.modules()):
        return False
    if decoder.dtype is torch.float32:
        return cpu_kernels.has_wide_vectors()
    return cpu_kernels.has_pairs() and not has_tiles()
