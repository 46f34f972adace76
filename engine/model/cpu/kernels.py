"""C kernels for CPUs: attention over pages, and linear layers of few rows.

The library also holds the kernels for whole steps (`engine.model.cpu.decoder`).
All are compiled when the package is installed, if there is a C compiler with OpenMP. If there was none, and for tensors
that the kernels do not serve, torch's operations do the same: call `serve` first. They share torch's threads: the
library takes OpenMP from what torch has loaded, so torch is imported first. Rows are contiguous, unless said otherwise.

Linear layers of few rows are bound by memory, so weights are read once, as they are stored (`linear.c`).
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from itertools import accumulate
from random import Random

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from engine.errors import ModelNotUsable
from engine.kv_cache import LayerPages
from engine.model.attention import AttentionParams, Reference
from engine.step_layout import StepLayout

VERSION = 10
"""The version of the signatures below. The library must have the same."""

_DTYPES = frozenset({torch.bfloat16, torch.float32})
_POINTER, _COUNT, _FLOAT, _FLAG = ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_float, ctypes.c_int
_SIGNATURES = {
    "attend": (
        _FLAG,
        (
            _POINTER,
            *2 * (_COUNT,),
            *4 * (_POINTER,),
            *8 * (_COUNT,),
            *2 * (_FLOAT,),
            _COUNT,
            _FLAG,
            _POINTER,
        ),
    ),
    "draw": (None, (*3 * (_POINTER,), _COUNT, _COUNT, _POINTER)),
    "linear": (_FLAG, (*2 * (_POINTER,), _COUNT, _FLAG, _POINTER)),
    "vectors": (_FLAG, (_FLAG,)),
    "has_pairs": (_FLAG, ()),
    "has_wide_vectors": (_FLAG, ()),
    "decode": (_FLAG, (_POINTER, _POINTER)),
    "prefill": (_FLAG, (_POINTER, _POINTER)),
}
"""What each function returns, and what it takes. Flags say whether it did its work, or what was wrong."""


class NoKernels(Exception):
    """There are no kernels. The message says why, for the operator."""


def load(module: str = "..._cpu_kernels") -> ctypes.CDLL:
    """Load the compiled library. Raises NoKernels."""
    found = find_spec(module, __package__)
    if found is None or found.origin is None:
        raise NoKernels(
            "they were not compiled when the package was installed, which takes a C compiler with OpenMP (gcc); "
            "`touch engine/model/cpu/kernels.c && make install` compiles them again"
        )
    try:
        library = ctypes.CDLL(found.origin)
        version = ctypes.c_int.in_dll(library, "midstream_version").value
    except (OSError, ValueError) as error:  # compiled for another machine, for example
        raise NoKernels(f"they can't be loaded: {error}") from error
    if version != VERSION:
        raise NoKernels(
            "they were compiled from another version of the source; "
            "`touch engine/model/cpu/kernels.c && make install` compiles them again"
        )
    for name, (returns, takes) in _SIGNATURES.items():
        function = getattr(library, f"midstream_{name}")
        function.restype, function.argtypes = returns, takes
    return library


@cache
def _library() -> ctypes.CDLL | NoKernels:
    try:
        return load()
    except NoKernels as why:
        return why


def trouble() -> str:
    """Return why there are no kernels; an empty string if there are."""
    library = _library()
    return str(library) if isinstance(library, NoKernels) else ""


def serve(tensor: Tensor, *others: Tensor) -> bool:
    """Whether there are kernels for a tensor and `others`, which must have its dtype and be contiguous."""
    if tensor.dtype not in _DTYPES or tensor.device.type != "cpu" or isinstance(_library(), NoKernels):
        return False
    return all(other.dtype is tensor.dtype and other.is_contiguous() for other in others)


class BadTable(ValueError):
    """A table or an offset points outside the pages, or shapes do not fit together. Nothing was read or written."""


def attend(
    queries: Tensor,
    layer: LayerPages,
    tables: Tensor,
    spans: Sequence[tuple[int, int]],
    terms: AttentionParams,
) -> Tensor:
    """Attend with queries, (rows, heads, size), which may have strides, each to all positions up to its own.

    `spans`: which positions the queries of each request are at, (start, stop); `tables`: its pages, (requests, pages of the
    longest), int32. Returns (rows, heads, value size), with zeros for rows after the last span's. Raises BadTable.
    """
    rows, heads, size = queries.shape
    pages, page, kv_heads, value_size = _sizes(layer, size)
    ends = [0, *accumulate(stop - start for start, stop in spans)]
    if tables.shape[0] != len(spans) or ends[-1] > rows or heads % kv_heads:
        raise BadTable(f"{len(tables)} tables and {len(spans)} spans for {rows} rows of {heads} heads")
    queries = queries if queries.stride(2) == 1 else queries.contiguous()
    mixed = (queries.new_empty if rows == ends[-1] else queries.new_zeros)(rows, heads, value_size)
    places = array("q")
    for row, (start, stop) in zip(ends, spans, strict=False):
        places.extend((row, start, stop - start))
    refusal = library().midstream_attend(
        *(queries.data_ptr(), queries.stride(0), queries.stride(1), layer.keys.data_ptr()),
        *(layer.values.data_ptr(), _whole(tables), places.buffer_info()[0], pages, tables.shape[1]),
        *(len(spans), heads, kv_heads, page, size, value_size, terms.scale, terms.softcap or 0.0),
        *(terms.window or 0, queries.dtype is torch.bfloat16, mixed.data_ptr()),
    )
    if refusal:
        leads_out = BadTable("a block table leads out of the pages of the cache, or heads are too wide")
        raise (leads_out if refusal == 1 else RuntimeError("can't allocate memory"))
    return mixed


def draw(scores: Tensor, top_p: Tensor | None, randoms: Sequence[Random]) -> Tensor:
    """Draw a token of each row of scores, as `engine.execution.sampler.draw` does. Each row takes 8 random bytes.

    The scores are float32, and overwritten; `top_p` has a row for each.
    """
    scores = scores.contiguous()
    shares = torch.full((len(scores),), torch.inf) if top_p is None else top_p.flatten()
    seeds = torch.frombuffer(
        bytearray(b"".join(random.randbytes(8) for random in randoms)), dtype=torch.int64
    )
    tokens = torch.empty(len(scores), 1, dtype=torch.int64)
    library().midstream_draw(
        *(scores.data_ptr(), shares.data_ptr(), seeds.data_ptr(), *scores.shape, tokens.data_ptr())
    )
    return tokens


def has_pairs() -> bool:
    """Whether the processor multiplies pairs of bfloat16 (AVX512-BF16)."""
    return bool(library().midstream_has_pairs())


def has_wide_vectors() -> bool:
    """Whether the processor has AVX2 or wider vectors, and the compiler knew them."""
    return bool(library().midstream_has_wide_vectors())


def library() -> ctypes.CDLL:
    """Return the compiled library. Raises NoKernels."""
    library = _library()
    if isinstance(library, NoKernels):
        raise library
    return library


def _sizes(layer: LayerPages, size: int) -> tuple[int, int, int, int]:
    """Return the number of pages, their size, KV heads and the size of values. Raises BadTable for another layout."""
    pages, page, kv_heads, key_size = _paged(layer.keys)
    if _paged(layer.values)[:3] != (pages, page, kv_heads) or key_size != size:
        raise BadTable(f"queries of {size} for {tuple(layer.keys.shape)} and {tuple(layer.values.shape)}")
    return pages, page, kv_heads, layer.values.shape[3]


def _paged(store: Tensor) -> tuple[int, int, int, int]:
    pages, page, heads, size = store.shape
    if store.stride() != (heads * page * size, size, page * size, 1):
        raise BadTable(f"pages of {tuple(store.shape)} with strides {store.stride()}")
    return pages, page, heads, size


def _whole(numbers: Tensor) -> int:
    """Return the address of numbers. Raises BadTable unless they are contiguous, int32, and on the CPU."""
    if numbers.dtype is not torch.int32 or not numbers.is_contiguous() or numbers.device.type != "cpu":
        raise BadTable(f"numbers of {numbers.dtype} on {numbers.device} with strides {numbers.stride()}")
    return numbers.data_ptr()


class Cpu(Reference):
    """A `Backend` that uses these kernels, for bfloat16 and float32."""

    def attend(self, queries: Tensor, layer: LayerPages, step: StepLayout, terms: AttentionParams) -> Tensor:
        """See `Backend`."""
        return attend(queries, layer, step.tables, step.spans, terms)


MOST_ROWS = 96
"""Up to this many rows these kernels are as fast as torch's, or faster."""

_KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}
LARGEST_CODE = 127

INT8_MOST_ROWS = 64
"""Up to this many rows the kernels are faster than widening the weights first: more than twice as fast at 16."""

SMALLEST_SHARE = 0.5
"""The share of a model's weights that must be in linear layers. With less, `--quantize` would promise too much."""


class Matrix(ctypes.Structure):
    """The `struct matrix` of linear.h."""

    _fields_ = (
        ("weight", ctypes.c_void_p),
        ("scale", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("outputs", ctypes.c_ssize_t),
        ("inputs", ctypes.c_ssize_t),
        ("kind", ctypes.c_int64),
    )


def matrix(weight: Tensor, bias: Tensor | None = None, scale: Tensor | None = None) -> Matrix:
    """Describe weights, (outputs, inputs), contiguous, to the kernels. The tensors must outlive the result."""
    outputs, inputs = weight.shape
    return Matrix(
        weight.data_ptr(),
        None if scale is None else scale.data_ptr(),
        None if bias is None else bias.data_ptr(),
        outputs,
        inputs,
        _KINDS[weight.dtype],
    )


def serve_linear(given: Tensor, weight: Tensor) -> bool:
    """Whether there are kernels for rows, (…, inputs), and weights, (outputs, inputs)."""
    kinds = (given.dtype, torch.int8)
    return serve(given) and weight.dtype in kinds and weight.is_contiguous()


def multiply(by: Matrix, given: Tensor) -> Tensor:
    """Return rows, (rows, inputs), times a matrix, plus its bias. Raises ValueError."""
    rows, inputs = given.shape
    if inputs != by.inputs:
        raise ValueError("the shapes of rows and weights do not fit together")
    given = given.contiguous()
    made = given.new_empty(rows, by.outputs)
    half = given.dtype is torch.bfloat16
    served = library().midstream_linear(ctypes.addressof(by), given.data_ptr(), rows, half, made.data_ptr())
    if not served:
        raise ValueError("the dtypes of rows and weights do not fit together")
    return made


class CpuLinear(nn.Module):
    """A linear layer, (…, in) to (…, out). Weights, (out, in), may be int8, with a scale for each output."""

    def __init__(self, weight: Tensor, bias: Tensor | None, scale: Tensor | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.detach().contiguous(), requires_grad=False)
        self.bias, self.scale = (
            None if given is None else nn.Parameter(given.detach(), requires_grad=False)
            for given in (bias, scale)
        )
        self._matrix = matrix(self.weight, self.bias, self.scale)

    def forward(self, given: Tensor) -> Tensor:
        """Multiply, and add the bias if there is one."""
        rows = given.reshape(-1, given.shape[-1])
        most = MOST_ROWS if self.scale is None else INT8_MOST_ROWS
        if 0 < len(rows) <= most and serve_linear(rows, self.weight):
            return multiply(self._matrix, rows).view(*given.shape[:-1], -1)
        if self.scale is None:
            return functional.linear(given, self.weight, self.bias)
        made = functional.linear(given, self.weight.to(given.dtype)) * self.scale
        return made if self.bias is None else made + self.bias


def take_over(module: nn.Module) -> None:
    """Replace the linear layers of a module by `CpuLinear`, in place. `serve_linear` must hold for their weights."""
    for parent, name, weight, bias in list(_linear_layers(module)):
        setattr(parent, name, CpuLinear(weight, bias))


def has_tiles() -> bool:
    """Whether the processor multiplies tiles of bfloat16 (AMX), which torch then uses."""
    tiles: bool = torch.cpu._is_amx_tile_supported()  # noqa: SLF001 - its only name
    return tiles


def quantized(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return int8 codes and scales, (out, in) and (out,): a weight is its code times its row's scale."""
    wide = weight.detach().float()
    scale = (wide.abs().amax(dim=1) / LARGEST_CODE).to(weight.dtype)
    # Codes are computed with the scale as it is stored, rounded. A row of zeros has no scale to divide by.
    codes = (wide / scale.float().clamp(min=torch.finfo(weight.dtype).tiny).unsqueeze(1)).round()
    return codes.clamp(-LARGEST_CODE, LARGEST_CODE).to(torch.int8), scale


def quantize(module: nn.Module) -> None:
    """Turn the linear layers of a model into int8, in place. Raises ModelNotUsable if they hold too few of its weights."""
    layers = list(_linear_layers(module))
    inside = sum(weight.numel() for _, _, weight, _ in layers)
    share = inside / max(1, sum(weight.numel() for weight in module.parameters()))
    if share < SMALLEST_SHARE:
        raise ModelNotUsable(
            f"--quantize int8 quantizes linear layers, which hold only {share:.0%} of the weights of "
            f"{type(module).__name__}."
        )
    for parent, name, weight, bias in layers:
        codes, scale = quantized(weight)
        setattr(parent, name, CpuLinear(codes, bias, scale))


def _linear_layers(module: nn.Module) -> Iterator[tuple[nn.Module, str, Tensor, Tensor | None]]:
    """Yield (parent, name, weight, bias). Subclasses are skipped, since they may compute something else."""
    for parent in module.modules():
        for name, child in parent.named_children():
            if type(child) is nn.Linear:
                yield parent, name, child.weight, child.bias
            elif type(child) is Conv1D:
                yield parent, name, child.weight.t(), child.bias
