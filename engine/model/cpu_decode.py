"""Decode steps of few rows on CPUs, a whole one in one call: `cpu_decode.c`.

Knows a fused model's weights and where keys and values lie; not why these tokens run, nor what becomes of the logits.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from engine.attention import cpu_kernels
from engine.model.cpu_linear import CpuLinear, Matrix, matrix, serve
from engine.model.fused_decoder import FusedDecoder, FusedLayer, RMSNorm
from engine.model.int8_linear import Int8Linear

MOST_ROWS = 64
"""Steps of more rows are left to the layers: by then the products take all of the time."""

_POINTER, _COUNT = ctypes.c_void_p, ctypes.c_ssize_t
_REFUSALS = (
    "",
    "sizes that can't be",
    "weights that do not fit together",
    "too little room",
    "a token beyond the vocabulary",
    "a position beyond the pages or the angles",
    "a page that is not there",
    "two rows that write to one page",
)


class RefusedStep(ValueError):
    """A step that would read or write where it must not. Nothing was computed."""


class Pages(NamedTuple):
    """Keys or values of a layer, as the kernels find them: element (page, head, position) is `size` numbers.

    Made from a tensor with these three dimensions and the numbers, in any order but with the numbers contiguous.
    """

    number: int
    positions: int
    strides: tuple[int, int, int]

    @classmethod
    def of(cls, store: Tensor) -> Pages:
        """Describe a tensor of shape (pages, heads, positions, size), which may be a transposed view."""
        page, head, position, number = store.stride()
        if number != 1:
            raise RefusedStep("the numbers of a head must lie side by side")
        return cls(store.shape[0], store.shape[2], (page, head, position))


class KeysAndValues(Protocol):
    """One layer's keys and values, each (pages, KV heads, positions, size). A slot is a page."""

    @property
    def keys(self) -> Tensor: ...  # noqa: D102 - the class says it

    @property
    def values(self) -> Tensor: ...  # noqa: D102


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, _POINTER) for name in ("attention_norm", "mlp_norm", "query_norm", "key_norm")),
        *((name, Matrix) for name in ("qkv", "output", "gate_up", "down")),
        *((name, _POINTER) for name in ("keys", "values")),
        *((name, _COUNT) for name in ("pages", "page_size", "page_stride", "head_stride", "position_stride")),
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


class _Step(ctypes.Structure):
    _fields_ = (
        *((name, _POINTER) for name in ("tokens", "positions", "table", "logits", "room")),
        *((name, _COUNT) for name in ("rows", "columns", "threads", "room_bytes")),
    )


class CpuDecode:
    """A model's decode steps. Whoever makes it keeps the model's weights where they are."""

    def __init__(self, decoder: FusedDecoder) -> None:
        """Take a model that `decodes` says yes to."""
        self._decoder = decoder
        layers: list[FusedLayer] = list(decoder.layers)  # type: ignore[arg-type] # a ModuleList knows no kinds
        self._layers = (_Layer * len(layers))(*(_described(layer) for layer in layers))
        first = layers[0]
        self._model = _Model(
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
            scale=first.scaling,
            half=decoder.dtype is torch.bfloat16,
        )
        self._angles: tuple[Tensor, Tensor] | None = None
        self._stores: list[tuple[Tensor, Tensor]] = []
        self._room = torch.empty(0, dtype=torch.uint8)
        self._room_bytes: dict[tuple[int, int], int] = {}

    def run(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        table: Sequence[Sequence[int]],
        stores: Sequence[KeysAndValues],
    ) -> Tensor:
        """Compute a token for each row, at its position, and store its keys and values there.

        `table`: the pages of each row, by position; rows are of equal length. Returns logits, (rows, vocabulary).
        Raises RefusedStep for tokens, positions and pages that can't be.
        """
        rows, columns = len(tokens), len(table[0]) if table else 0
        if len(positions) != rows or any(len(row) != columns for row in table) or len(table) != rows:
            raise RefusedStep("tokens, positions and tables of different lengths")
        self._bind(stores)
        extent = max(positions, default=0) + 1
        if extent > columns * max(store.keys.shape[2] for store in stores) and rows:
            raise RefusedStep("a position beyond the pages of its row")
        self._look_up(extent)
        threads = torch.get_num_threads()
        room = self._room_for(rows, threads)
        given = torch.tensor((tokens, positions), dtype=torch.int64)
        pages = torch.tensor(table, dtype=torch.int32)
        logits = torch.empty(rows, self._model.head.outputs, dtype=self._decoder.dtype)
        step = _Step(
            *(given.data_ptr(), given.data_ptr() + rows * given.element_size(), pages.data_ptr()),
            *(logits.data_ptr(), room.data_ptr(), rows, columns, threads, room.numel()),
        )
        refusal = cpu_kernels.library().midstream_decode(ctypes.byref(self._model), ctypes.byref(step))
        if refusal:
            raise RefusedStep(_REFUSALS[refusal])
        return logits

    def _look_up(self, extent: int) -> None:
        """See that there are angles for so many positions."""
        angles = self._decoder.rotary.tables(extent, self._decoder.device, self._decoder.dtype)
        if self._angles is None or angles[0] is not self._angles[0]:
            self._angles = angles
            self._model.cosine, self._model.sine = angles[0].data_ptr(), angles[1].data_ptr()
            self._model.positions = len(angles[0])

    def _bind(self, stores: Sequence[KeysAndValues]) -> None:
        """See that the layers know where keys and values are, which may have moved."""
        if len(stores) != len(self._layers):
            raise RefusedStep("keys and values of another number of layers")
        for number, (layer, store) in enumerate(zip(self._layers, stores, strict=True)):
            bound = self._stores[number] if number < len(self._stores) else None
            if bound is None or bound[0] is not store.keys or bound[1] is not store.values:
                self._bind_layer(layer, store)
        self._stores = [(store.keys, store.values) for store in stores]

    def _bind_layer(self, layer: Any, store: KeysAndValues) -> None:
        pages, model = Pages.of(store.keys), self._model
        expected = (pages.number, model.kv_heads, pages.positions, model.size)
        alike = store.keys.shape == store.values.shape == expected and Pages.of(store.values) == pages
        if not alike or not store.keys.dtype == store.values.dtype == self._decoder.dtype:
            raise RefusedStep("keys and values of other shapes")
        layer.keys, layer.values = store.keys.data_ptr(), store.values.data_ptr()
        layer.pages, layer.page_size = pages.number, pages.positions
        layer.page_stride, layer.head_stride, layer.position_stride = pages.strides

    def _room_for(self, rows: int, threads: int) -> Tensor:
        known = self._room_bytes.get((rows, threads))
        if known is None:
            room = cpu_kernels.library().midstream_decode_room
            known = self._room_bytes[rows, threads] = room(ctypes.byref(self._model), rows, threads)
        if self._room.numel() < known:
            self._room = torch.empty(known, dtype=torch.uint8)
        return self._room


def decodes(decoder: FusedDecoder) -> bool:
    """Whether all of a model's weights are of kinds that the kernels know."""
    if not cpu_kernels.serve(decoder.embedding.weight) or not len(decoder.layers):
        return False
    layers: list[FusedLayer] = list(decoder.layers)  # type: ignore[arg-type] # as above
    linears = [decoder.head, *(linear for layer in layers for linear in _linears(layer))]
    norms = [decoder.norm, *(norm for layer in layers for norm in _norms(layer) if norm is not None)]
    alike = {(layer.heads, layer.kv_heads, layer.size, layer.scaling) for layer in layers}
    return (
        all(_is_known(linear, decoder.embedding.weight) for linear in linears)
        and {norm.epsilon for norm in norms} == {decoder.norm.epsilon}
        and all(layer.is_silu for layer in layers)
        and len(alike) == 1
    )


def _linears(layer: FusedLayer) -> tuple[nn.Module, ...]:
    return layer.qkv, layer.output, layer.gate_up, layer.down


def _norms(layer: FusedLayer) -> tuple[RMSNorm | None, ...]:
    return layer.before_attention, layer.before_mlp, layer.query_norm, layer.key_norm


def _is_known(linear: nn.Module, like: Tensor) -> bool:
    known = type(linear) is nn.Linear or isinstance(linear, CpuLinear | Int8Linear)
    return known and serve(like, linear.weight)  # type: ignore[arg-type] # each of them has weights


def _matrix_of(linear: Any) -> Matrix:
    return matrix(linear.weight, linear.bias, getattr(linear, "scale", None))


def _described(layer: FusedLayer) -> _Layer:
    norms = (None if norm is None else norm.weight.data_ptr() for norm in _norms(layer))
    return _Layer(*norms, *(_matrix_of(linear) for linear in _linears(layer)))
