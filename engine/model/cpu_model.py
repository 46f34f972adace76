"""Describes a fused model to the kernels for whole steps on CPUs: `cpu_model.h`.

Knows its weights and where keys and values are. Does not know what a step computes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from engine.attention import cpu_kernels
from engine.attention.backend import AttentionParams
from engine.cache.layout import Span
from engine.cache.paged_cache import LayerPages
from engine.model.cpu_linear import CpuLinear, Matrix, matrix, serve
from engine.model.fused_decoder import FusedDecoder, FusedLayer, RMSNorm
from engine.model.int8_linear import Int8Linear

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


class CpuModel:
    """Holds pointers to a model's weights for the kernels. The weights must not move while it is used."""

    def __init__(self, decoder: FusedDecoder) -> None:
        """Take a model that `is_known` accepts."""
        self._decoder = decoder
        layers: list[FusedLayer] = list(decoder.layers)  # type: ignore[arg-type] # a ModuleList knows no kinds
        self._layers = (_Layer * len(layers))(*(_described(layer) for layer in layers))
        first = layers[0]
        self.described = _Model(
            embedding=decoder.embedding.weight.data_ptr(),
            norm=decoder.norm.weight.data_ptr(),
            layers=ctypes.addressof(self._layers),
            head=matrix_of(decoder.head),
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

    def prepare(self, spans: Sequence[Span], layers: Sequence[LayerPages]) -> Tensor:
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
        columns = -(-extent // page)
        return torch.tensor([_padded(span.pages[:columns], columns) for span in spans], dtype=torch.int32)

    def logits(self, rows: int) -> Tensor:
        """Return an empty tensor for logits, (rows, vocabulary)."""
        return torch.empty(rows, self.described.head.outputs, dtype=self._decoder.dtype)

    def room(self, needed: int) -> Tensor:
        """Return at least `needed` bytes that a step may write to. The next step reuses them."""
        if self._room.numel() < needed:
            self._room = torch.empty(needed, dtype=torch.uint8)
        return self._room

    def _look_up(self, extent: int) -> None:
        """Make sure that there are angles for `extent` positions."""
        angles = self._decoder.rotary.tables(extent, self._decoder.device, self._decoder.dtype)
        if self._angles is None or angles[0] is not self._angles[0]:
            self._angles = angles
            self.described.cosine, self.described.sine = angles[0].data_ptr(), angles[1].data_ptr()
            self.described.positions = len(angles[0])

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
        found = places(layer, self.described.kv_heads, self.described.size, self._decoder.dtype)
        described.keys, described.values, described.pages, described.page_size = found


def places(layer: LayerPages, heads: int, size: int, dtype: torch.dtype) -> tuple[int, int, int, int]:
    """Return where the keys and the values of a layer lie, and how many pages of which size. Raises InvalidStep."""
    keys, values = layer.keys.transpose(1, 2), layer.values.transpose(1, 2)
    pages, page = keys.shape[0], keys.shape[2]
    alike = keys.dtype == values.dtype == dtype and keys.shape == values.shape == (pages, heads, page, size)
    if not alike or not keys.is_contiguous() or not values.is_contiguous():
        raise InvalidStep("keys and values of other shapes")
    return keys.data_ptr(), values.data_ptr(), pages, page


def check(refusal: int) -> None:
    """Raise InvalidStep if a kernel refused a step."""
    if refusal:
        raise InvalidStep(_REFUSALS[refusal])


def _padded(pages: Sequence[int], columns: int) -> list[int]:
    """Return a row of a table, padded with entries that are never read."""
    return [*pages, *(0,) * (columns - len(pages))]


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
    known = type(linear) is nn.Linear or isinstance(linear, CpuLinear | Int8Linear)
    return known and serve(like, linear.weight)  # type: ignore[arg-type] # each of them has weights


def matrix_of(linear: Any) -> Matrix:
    """Describe a linear layer to the kernels."""
    return matrix(linear.weight, linear.bias, getattr(linear, "scale", None))


def _described(layer: FusedLayer) -> _Layer:
    norms = (None if norm is None else norm.weight.data_ptr() for norm in _norms(layer))
    return _Layer(*norms, *(matrix_of(linear) for linear in _linears(layer)))
