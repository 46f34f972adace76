"""An encoder-decoder's steps on CPUs, each half's in one call: `sources.c` and `targets.c`.

Knows its weights, and where tokens, keys and values are; not why these tokens run, nor what becomes of the logits.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.activations import GELUActivation, SiLUActivation

from engine.kv_cache import LayerPages
from engine.model.cpu import kernels as cpu_kernels
from engine.model.cpu.decoder import InvalidStep, check, matrix_of, places
from engine.model.cpu.kernels import CpuLinear, Matrix, has_tiles
from engine.model.encoder_decoder import DecoderLayer, Embedding, EncoderDecoder, Layer, Seq2SeqModel
from engine.step_layout import Span, target_tokens

MOST_ROWS = 256
"""Steps with more tokens of targets go the way of the layers: those of long prefixes, whose products take all of the time."""

MOST_ROWS_BESIDE_TILES = 64
"""Of sources or of targets, where torch has tiles for products of many rows (AMX, bfloat16)."""

_ACTIVATIONS: dict[type[nn.Module], int] = {nn.ReLU: 1, nn.SiLU: 2, SiLUActivation: 2, GELUActivation: 3}
"""`enum activation` of elements.h."""

_POINTER, _COUNT = ctypes.c_void_p, ctypes.c_ssize_t


class _Norm(ctypes.Structure):
    _fields_ = (("weight", _POINTER), ("bias", _POINTER))


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, _Norm) for name in ("norm", "cross_norm", "mlp_norm")),
        *((name, Matrix) for name in ("qkv", "output", "widen", "narrow")),
        *((name, Matrix) for name in ("cross_queries", "cross_pairs", "cross_output")),
        *((name, _POINTER) for name in ("keys", "values")),
    )


class _Stack(ctypes.Structure):
    _fields_ = (
        *((name, _POINTER) for name in ("embedding", "positions")),
        *((name, _Norm) for name in ("first", "last")),
        ("layers", _POINTER),
        *((name, _COUNT) for name in ("layer_count", "heads", "size", "vocabulary", "position_count")),
        *((name, ctypes.c_float) for name in ("embedding_scale", "scale")),
        ("activation", ctypes.c_int64),
    )


class _Model(ctypes.Structure):
    _fields_ = (
        *((name, _Stack) for name in ("source", "target")),
        ("head", Matrix),
        *((name, _COUNT) for name in ("hidden", "pages", "page_size")),
        ("epsilon", ctypes.c_float),
        *((name, ctypes.c_int64) for name in ("before", "half")),
    )


class _Sources(ctypes.Structure):
    _fields_ = (
        *((name, _POINTER) for name in ("tokens", "starts", "table", "room")),
        *((name, _COUNT) for name in ("rows", "sources", "columns", "threads", "room_bytes")),
    )


class _Targets(ctypes.Structure):
    _fields_ = (
        *((name, _POINTER) for name in ("tokens", "positions", "lengths", "begins")),
        *((name, _POINTER) for name in ("table", "kept", "logits", "room")),
        *((name, _COUNT) for name in ("rows", "columns", "kept_count", "threads", "room_bytes")),
    )


class CpuEncoderDecoder:
    """What kernels compute of a model. Whoever makes it keeps the model's weights where they are."""

    def __init__(self, model: EncoderDecoder) -> None:
        """Take a model that `is_known` says yes to."""
        self._model = model
        encoder, decoder = _layers(model.encoder), _layers(model.decoder)
        self._encoder, self._decoder = (
            (_Layer * len(layers))(*map(_described, layers)) for layers in (encoder, decoder)
        )
        first = decoder[0]
        self._described = _Model(
            source=_stack(model.source, encoder[0], model.encoder_norm, self._encoder),
            target=_stack(model.target, first, model.decoder_norm, self._decoder),
            head=matrix_of(model.head),
            hidden=model.head.weight.shape[1],
            epsilon=first.norm.eps,
            before=first.before,
            half=model.dtype is torch.bfloat16,
        )
        self.layers = len(decoder)
        self.heads = torch.empty(0, first.heads, first.size, dtype=model.dtype)
        """Keys and values of no rows, of the shape that they have in each of the decoder's `layers`."""
        self._most_rows = MOST_ROWS_BESIDE_TILES if _has_tiles_for(model) else None
        self._bound: Sequence[LayerPages] | None = None
        self._room = torch.empty(0, dtype=torch.uint8)

    @classmethod
    def of(cls, module: Seq2SeqModel) -> CpuEncoderDecoder | None:
        """Return what kernels compute of a model; None where the layers compute all of it."""
        return cls(module) if isinstance(module, EncoderDecoder) and is_known(module) else None

    def encodes(self, rows: int) -> bool:
        """Whether sources of so many tokens are encoded sooner than by the layers."""
        return self._most_rows is None or rows <= self._most_rows

    def translates(self, rows: int) -> bool:
        """Whether so many tokens of targets are computed sooner than by the layers."""
        return rows <= (self._most_rows or MOST_ROWS)

    def encode(self, sources: Sequence[Span], layers: Sequence[LayerPages]) -> None:
        """Encode sources, each from position 0 on, and store what the decoder reads of them. No two may share a page.

        Raises InvalidStep for tokens, lengths and pages that can't be.
        """
        page = self._bind(layers)
        columns = _columns(sources, page)
        table = _table(_line(span, page, columns) for span in sources)
        starts = list(accumulate((len(span.tokens) for span in sources), initial=0))
        numbers = torch.tensor([*chain.from_iterable(span.tokens for span in sources), *starts])
        rows = starts[-1]
        room = self._room_for(cpu_kernels.library().midstream_encode_room, rows)
        step = _Sources(
            tokens=numbers.data_ptr(),
            starts=numbers.data_ptr() + rows * numbers.itemsize,
            table=table.data_ptr(),
            room=room.data_ptr(),
            rows=rows,
            sources=len(sources),
            columns=columns,
            threads=torch.get_num_threads(),
            room_bytes=room.numel(),
        )
        check(cpu_kernels.library().midstream_encode(ctypes.byref(self._described), ctypes.byref(step)))

    def translate(self, spans: Sequence[Span], layers: Sequence[LayerPages]) -> Tensor:
        """Compute the tokens of targets, and store their keys and values. Each span has some, behind its source or without.

        Returns the logits behind the last token of each span that samples, (rows, vocabulary). Raises InvalidStep for
        tokens, positions and pages that can't be.
        """
        page = self._bind(layers)
        columns, rows = _columns(spans, page), _rows(spans, page)
        table = _table(_line(span, page, columns) * target_tokens(span) for span in spans)
        numbers, count = torch.tensor([*chain(*rows)]), len(rows.tokens)
        logits = torch.empty(len(rows.kept), self._described.head.outputs, dtype=self._model.dtype)
        room = self._room_for(cpu_kernels.library().midstream_translate_room, count)
        lie = (numbers.data_ptr() + place * count * numbers.itemsize for place in range(len(rows)))
        step = _Targets(
            **dict(zip(_Rows._fields, lie, strict=True)),
            table=table.data_ptr(),
            logits=logits.data_ptr(),
            room=room.data_ptr(),
            rows=count,
            columns=columns,
            kept_count=len(rows.kept),
            threads=torch.get_num_threads(),
            room_bytes=room.numel(),
        )
        check(cpu_kernels.library().midstream_translate(ctypes.byref(self._described), ctypes.byref(step)))
        return logits

    def _bind(self, layers: Sequence[LayerPages]) -> int:
        """Tell the kernels where keys and values are. They stay there, so that it is done once. Returns the size of a page."""
        if self._bound is layers:
            known: int = self._described.page_size
            return known
        if len(layers) != self.layers:
            raise InvalidStep("keys and values of another number of layers")
        _, heads, size = self.heads.shape
        found = [places(layer, heads, size, self._model.dtype) for layer in layers]
        if len({(pages, page) for *_, pages, page in found}) != 1:
            raise InvalidStep("keys and values of other shapes")
        for described, (keys, values, pages, page) in zip(self._decoder, found, strict=True):
            described.keys, described.values = keys, values
            self._described.pages, self._described.page_size = pages, page
        self._bound = layers
        return page

    def _room_for(self, needed: Any, rows: int) -> Tensor:
        """Return room that a step of so many rows may write to; the next step writes there, too."""
        size = needed(ctypes.byref(self._described), rows)
        if self._room.numel() < size:
            self._room = torch.empty(size, dtype=torch.uint8)
        return self._room


def _columns(spans: Sequence[Span], page: int) -> int:
    """Return how many pages the longest of spans needs."""
    columns = max((-(-span.stop // page) for span in spans), default=0)
    if columns < 1:
        raise InvalidStep("a step of no rows")
    return columns


def _line(span: Span, page: int, columns: int) -> bytes:
    """Return a row of a table; behind its pages nothing is read."""
    needed = -(-span.stop // page)
    if len(span.pages) < needed:
        raise InvalidStep("a position beyond the pages of its row")
    return array("i", span.pages[:needed]).tobytes().ljust(array("i").itemsize * columns, b"\0")


def _table(lines: Iterable[bytes]) -> Tensor:
    return torch.frombuffer(bytearray().join(lines), dtype=torch.int32)


class _Rows(NamedTuple):
    """Tokens of targets, one after the other. `kept`: which of them give logits."""

    tokens: list[int]
    positions: list[int]
    lengths: list[int]
    begins: list[int]
    kept: list[int]


def _rows(spans: Sequence[Span], page: int) -> _Rows:
    rows = _Rows([], [], [], [], [])
    for span in spans:
        assert span.source is not None  # noqa: S101 - translations alone run here
        count, (length, reserved) = target_tokens(span), span.source
        rows.tokens.extend(span.tokens[len(span.tokens) - count :])
        rows.positions.extend(range(span.stop - count - reserved, span.stop - reserved))
        rows.lengths.extend([length] * count)
        rows.begins.extend([reserved // page] * count)
        if span.samples:
            rows.kept.extend(range(len(rows.tokens) - 1 - span.drafted, len(rows.tokens)))
    return rows


def is_known(model: EncoderDecoder) -> bool:
    """Whether all of a model's weights are of kinds that the kernels know."""
    like, halves = model.source.weight, (_layers(model.encoder), _layers(model.decoder))
    layers = [layer for half in halves for layer in half]
    norms = [norm for layer in layers for norm in _norms(layer)]
    norms += [one.norm for one in (model.source, model.target) if one.norm is not None]
    lasts = [one for one in (model.encoder_norm, model.decoder_norm) if not isinstance(one, nn.Identity)]
    return (
        cpu_kernels.serve(like, model.target.weight, model.source.positions, model.target.positions)
        and all(_is_known_linear(one, like) for one in (model.head, *chain(*map(_linears, layers))))
        and all(_is_known_norm(one, like, layers[0].norm.eps) for one in (*norms, *lasts))
        and len(lasts) == (2 if layers[0].before else 0)
        and all(type(layer.activation) in _ACTIVATIONS for layer in layers)
        and all(
            len({(one.heads, one.size, one.scale, type(one.activation)) for one in half}) == 1
            for half in halves
        )
    )


def computes_whole_steps(module: Seq2SeqModel) -> bool:
    """Whether the kernels compute all steps but those of very long prefixes: products of many rows are not torch's then."""
    return isinstance(module, EncoderDecoder) and is_known(module) and not _has_tiles_for(module)


def _has_tiles_for(model: Seq2SeqModel) -> bool:
    return model.dtype is torch.bfloat16 and has_tiles()


def _layers(half: nn.ModuleList) -> list[Layer]:
    return list(half)  # type: ignore[arg-type] # a ModuleList knows no kinds


def _linears(layer: Layer) -> tuple[nn.Module, ...]:
    own = layer.qkv, layer.output, layer.widen, layer.narrow
    if not isinstance(layer, DecoderLayer):
        return own
    return *own, layer.cross_queries, layer.cross_pairs, layer.cross_output


def _norms(layer: Layer) -> tuple[nn.LayerNorm, ...]:
    own = layer.norm, layer.mlp_norm
    return (*own, layer.cross_norm) if isinstance(layer, DecoderLayer) else own


def _is_known_linear(linear: nn.Module, like: Tensor) -> bool:
    known: Any = linear
    if type(linear) not in {nn.Linear, CpuLinear} or not cpu_kernels.serve(like, known.weight):
        return False
    return known.bias is None or cpu_kernels.serve(like, known.bias)


def _is_known_norm(norm: nn.Module, like: Tensor, epsilon: float) -> bool:
    return (
        type(norm) is nn.LayerNorm
        and norm.eps == epsilon
        and norm.weight is not None
        and norm.bias is not None
        and cpu_kernels.serve(like, norm.weight, norm.bias)
    )


def _norm(norm: nn.Module | None) -> _Norm:
    if not isinstance(norm, nn.LayerNorm):
        return _Norm()
    return _Norm(norm.weight.data_ptr(), norm.bias.data_ptr())


def _described(layer: Layer) -> _Layer:
    made = _Layer(
        norm=_norm(layer.norm),
        mlp_norm=_norm(layer.mlp_norm),
        qkv=matrix_of(layer.qkv),
        output=matrix_of(layer.output),
        widen=matrix_of(layer.widen),
        narrow=matrix_of(layer.narrow),
    )
    if isinstance(layer, DecoderLayer):
        made.cross_norm = _norm(layer.cross_norm)
        made.cross_queries, made.cross_pairs = matrix_of(layer.cross_queries), matrix_of(layer.cross_pairs)
        made.cross_output = matrix_of(layer.cross_output)
    return made


def _stack(embedding: Embedding, first: Layer, last: nn.Module, layers: ctypes.Array[_Layer]) -> _Stack:
    """Describe a half. `layers`: those of it, which must outlive it."""
    return _Stack(
        embedding=embedding.weight.data_ptr(),
        positions=embedding.positions.data_ptr(),
        first=_norm(embedding.norm),
        last=_norm(last),
        layers=ctypes.addressof(layers),
        layer_count=len(layers),
        heads=first.heads,
        size=first.size,
        vocabulary=len(embedding.weight),
        position_count=len(embedding.positions),
        embedding_scale=embedding.scale,
        scale=first.scale,
        activation=_ACTIVATIONS[type(first.activation)],
    )
