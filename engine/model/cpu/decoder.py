"""Whole steps of a fused model on CPUs, each in one call of C: decode steps (`decode.c`) and prompts (`prefill.c`).

Knows a model's weights, and where tokens, keys and values are. Does not know what becomes of the logits.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from engine.kv_cache import LayerPages
from engine.model.attention import AttentionParams
from engine.model.cpu import kernels as cpu_kernels
from engine.model.cpu.kernels import CpuLinear, Matrix, has_tiles, matrix, serve_linear
from engine.model.fused_decoder import FusedDecoder, FusedLayer
from engine.step_layout import Span, block_tables

_POINTER, _COUNT = ctypes.c_void_p, ctypes.c_ssize_t
_NO_MEMORY = 3  # its index in _REFUSALS

_REFUSALS = (
    "",
    "sizes that are out of range",
    "weights that do not fit together",
    "too little memory",
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
    )


class _Model(ctypes.Structure):
    _fields_ = (
        *((name, _POINTER) for name in ("embedding", "norm", "cosine", "sine", "layers")),
        ("head", Matrix),
        *((name, _COUNT) for name in ("layer_count", "hidden", "heads", "kv_heads", "size")),
        *((name, _COUNT) for name in ("vocabulary", "positions", "pages", "page_size")),
        *((name, ctypes.c_float) for name in ("epsilon", "scale")),
        ("half", ctypes.c_int64),
    )


class _Step(ctypes.Structure):
    _fields_ = (
        *((name, _POINTER) for name in ("tokens", "spans", "table", "kept", "logits")),
        *((name, _COUNT) for name in ("rows", "span_count", "columns", "kept_count", "threads")),
    )


class CpuModel:
    """Computes a model's steps, with pointers to its weights, which must not move while it is used."""

    def __init__(self, decoder: FusedDecoder) -> None:
        """Take a model that `is_known` accepts."""
        self._decoder = decoder
        self.prefills = prefills(decoder)
        """Whether steps with prompts, or of many rows, are computed faster here than by the layers."""
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
            epsilon=decoder.norm.eps,
            scale=first.terms.scale,
            half=decoder.dtype is torch.bfloat16,
        )
        self._angles: tuple[Tensor, Tensor] | None = None
        self._bound: Sequence[LayerPages] = ()
        self._bound_layers = 0

    @staticmethod
    def decodes(spans: Sequence[Span]) -> bool:
        """Whether `decode` can compute a step."""
        return len(spans) <= MOST_ROWS and all(span.samples and len(span.tokens) == 1 for span in spans)

    def decode(self, spans: Sequence[Span], layers: Sequence[LayerPages]) -> Tensor:
        """Compute the token of each span, and store its keys and values. No two spans may write to the same page.

        Returns logits, (rows, vocabulary). Raises InvalidStep if a token, position or page is out of range.
        """
        return self._compute("midstream_decode", spans, layers)

    def prefill(self, spans: Sequence[Span], layers: Sequence[LayerPages]) -> Tensor:
        """Compute the tokens of spans, and store their keys and values. No two spans may write to the same page.

        Returns the logits after the last token of each span that samples, (rows, vocabulary). Raises InvalidStep if
        a token, position or page is out of range.
        """
        return self._compute("midstream_prefill", spans, layers)

    def _compute(self, kernel: str, spans: Sequence[Span], layers: Sequence[LayerPages]) -> Tensor:
        """Run a kernel on weights, keys, values and angles, and return its logits."""
        if not spans or not all(span.tokens for span in spans):
            raise InvalidStep("a span of no tokens" if spans else "a step of no rows")
        self._bind(layers)
        page = self._described.page_size
        if any(span.start < 0 or span.stop > page * len(span.pages) for span in spans):
            raise InvalidStep("a position beyond the pages of its row")
        extent = max(span.stop for span in spans)
        self._look_up(extent)
        table = block_tables(spans, -(-extent // page), page)
        tokens, places, kept = array("q"), array("q"), array("q")
        for span in spans:
            places.extend((len(tokens), span.start, len(span.tokens)))
            tokens.extend(span.tokens)
            if span.samples:
                kept.append(len(tokens) - 1)
        logits = torch.empty(len(kept), self._described.head.outputs, dtype=self._decoder.dtype)
        step = _Step(
            *(numbers.buffer_info()[0] for numbers in (tokens, places)),
            *(table.data_ptr(), kept.buffer_info()[0], logits.data_ptr()),
            *(len(tokens), len(spans), table.shape[1], len(kept), torch.get_num_threads()),
        )
        call = getattr(cpu_kernels.library(), kernel)
        if refusal := call(ctypes.byref(self._described), ctypes.byref(step)):
            if refusal == _NO_MEMORY:
                raise RuntimeError("can't allocate memory")
            raise InvalidStep(_REFUSALS[refusal])
        return logits

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
        self._bound = ()
        pages, page, _, _ = layers[0].keys.shape
        shape = (pages, self._described.kv_heads, page, self._described.size)
        for described, layer in zip(self._layers, layers, strict=True):
            stores = [store.transpose(1, 2) for store in layer]
            if not all(
                store.shape == shape and store.dtype == self._decoder.dtype and store.is_contiguous()
                for store in stores
            ):
                raise InvalidStep("keys and values of other shapes")
            described.keys, described.values = (store.data_ptr() for store in stores)
        self._described.pages, self._described.page_size = pages, page
        self._bound, self._bound_layers = layers, len(layers)


def is_known(decoder: FusedDecoder) -> bool:
    """Whether the kernels support a model: known kinds of layers, with the same heads, norms and activations."""
    if not cpu_kernels.serve(decoder.embedding.weight) or not len(decoder.layers):
        return False
    layers: list[FusedLayer] = list(decoder.layers)  # type: ignore[arg-type] # as above
    linears = [decoder.head, *(linear for layer in layers for linear in _linears(layer))]
    norms = [decoder.norm, *(norm for layer in layers for norm in _norms(layer) if norm is not None)]
    alike = {(layer.heads, layer.kv_heads, layer.size, layer.terms) for layer in layers}
    return (
        all(
            type(linear) in {nn.Linear, CpuLinear} and serve_linear(decoder.embedding.weight, linear.weight)
            for linear in linears
        )
        and {norm.eps for norm in norms} == {decoder.norm.eps}
        and all(layer.is_silu for layer in layers)
        and alike
        == {(layers[0].heads, layers[0].kv_heads, layers[0].size, AttentionParams(layers[0].terms.scale))}
    )


def _linears(layer: FusedLayer) -> tuple[nn.Module, ...]:
    return layer.qkv, layer.output, layer.gate_up, layer.down


def _norms(layer: FusedLayer) -> tuple[nn.RMSNorm | None, ...]:
    return layer.before_attention, layer.before_mlp, layer.query_norm, layer.key_norm


def _matrix_of(linear: Any) -> Matrix:
    """Describe a linear layer to the kernels."""
    return matrix(linear.weight, linear.bias, getattr(linear, "scale", None))


def _described(layer: FusedLayer) -> _Layer:
    norms = (None if norm is None else norm.weight.data_ptr() for norm in _norms(layer))
    return _Layer(*norms, *(_matrix_of(linear) for linear in _linears(layer)))


def prefills(decoder: FusedDecoder) -> bool:
    """Whether the kernel computes a model that `is_known` accepts faster than the layers do.

    Measured faster: bfloat16 in pairs, and float32 in AVX-512 and AVX2. torch uses AMX tiles if the processor has them, and
    bfloat16 without pairs takes as long as float32. int8 would have to be widened for each block of rows: 1.2 times the
    layers' time.
    """
    widths = {decoder.embedding.embedding_dim, *(layer.down.weight.shape[1] for layer in decoder.layers)}  # type: ignore[union-attr, index] # a ModuleList knows no kinds
    if any(width % 2 for width in widths) or any(isinstance(part, CpuLinear) for part in decoder.modules()):
        return False
    if decoder.dtype is torch.float32:
        return cpu_kernels.has_wide_vectors()
    return cpu_kernels.has_pairs() and not has_tiles()
