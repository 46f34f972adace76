"""C kernels for CPUs: attention over pages, rotation, norms, gates; and the linear layers that use them.

The library also holds the kernels of the other modules here, and those that draw tokens (`engine.execution.sampler`).
They are compiled when the package is installed, where there is a C compiler with OpenMP. Where there was none, and for
tensors that they do not serve, torch's operations do the same: ask `serve` first. They share torch's threads: the
library takes OpenMP from what torch has loaded, so torch is imported first. Rows are contiguous, unless said otherwise.

Linear layers are computed by the C kernels (`linear.c`), packed in oneDNN's layout, or with int8 weights. Layers of few rows are
bound by memory, so weights are read once, as they are stored. Products of many rows need no second copy. If torch computes those
and is much slower with plain weights, a packed copy is kept, unless the model is too large.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from engine.errors import ModelNotUsable
from engine.kv_cache import LayerPages
from engine.model.attention import AttentionParams, Reference
from engine.step_layout import StepLayout

VERSION = 7
"""Of the signatures below: that of the library must be the same."""

_DTYPES = frozenset({torch.bfloat16, torch.float32})
_POINTER, _COUNT, _FLOAT, _FLAG = ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_float, ctypes.c_int
_SIGNATURES = {
    "attend": (
        *(_POINTER, _COUNT, _COUNT, _POINTER, _POINTER, _POINTER, _POINTER),
        *(*8 * (_COUNT,), _FLOAT, _FLOAT, _COUNT, _COUNT, _FLAG, _POINTER),
    ),
    "attend_prompt": (
        *(_POINTER, _COUNT, _COUNT, _POINTER, _POINTER, _POINTER),
        *(*9 * (_COUNT,), _FLOAT, _FLOAT, _COUNT, _COUNT, _FLAG, _COUNT, _POINTER, _POINTER),
    ),
    "prompt_room": (_COUNT, _COUNT, _COUNT),
    "rotate_and_store": (
        *(_POINTER, _COUNT, _POINTER, _COUNT),
        *4 * (_POINTER,),
        *(*6 * (_COUNT,), _FLAG),
        *3 * (_POINTER,),
    ),
    "rms_norm": (_POINTER, _POINTER, _COUNT, _COUNT, _FLOAT, _FLAG, _POINTER),
    "silu_product": (_POINTER, _COUNT, _COUNT, _FLAG, _POINTER),
    "likeliest": (*3 * (_POINTER,), _COUNT, _COUNT, _FLAG, _POINTER, _POINTER),
    "draw": (*6 * (_POINTER,), _COUNT, _COUNT, _FLAG, _FLAG, *4 * (_POINTER,)),
    "linear": (*3 * (_POINTER,), _COUNT, _FLAG, _FLAG, _POINTER),
    "vectors": (_FLAG,),
    "has_pairs": (),
    "has_wide_vectors": (),
    "decode": (_POINTER, _POINTER),
    "decode_room": (_POINTER, _COUNT, _COUNT),
    "prefill": (_POINTER, _POINTER),
    "prefill_room": (_POINTER, _POINTER),
    "encode": (_POINTER, _POINTER),
    "encode_room": (_POINTER, _COUNT),
    "translate": (_POINTER, _POINTER),
    "translate_room": (_POINTER, _COUNT),
}
_MAY_DECLINE = {
    "attend",
    "attend_prompt",
    "rotate_and_store",
    "linear",
    "vectors",
    "has_pairs",
    "has_wide_vectors",
    "decode",
    "prefill",
    "encode",
    "translate",
}
"""Those that tell whether they did it: they look at sizes and tables first."""
_ROOMS = {"decode_room", "encode_room", "prefill_room", "prompt_room", "translate_room"}
"""Those that tell how many bytes they want to write to."""


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
    for name, signature in _SIGNATURES.items():
        function = getattr(library, f"midstream_{name}")
        function.argtypes, function.restype = signature, ctypes.c_int if name in _MAY_DECLINE else None
    for name in _ROOMS:
        getattr(library, f"midstream_{name}").restype = _COUNT
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
    lengths: Tensor,
    terms: AttentionParams,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Attend with one query for each row and head, (rows, heads, size), to all positions of the row's table.

    Queries may have strides. `tables`: (rows, pages of the longest), `lengths`: (rows,), both int32. Returns
    (rows, heads, value size), in `out` if it is given. Raises BadTable.
    """
    rows, heads, size = queries.shape
    pages, page, kv_heads, value_size = _sizes(layer, size)
    if len(tables) != rows or len(lengths) != rows or heads % kv_heads:
        raise BadTable(f"{len(tables)} tables and {len(lengths)} lengths for {rows} rows of {heads} heads")
    queries = queries if queries.stride(2) == 1 else queries.contiguous()
    mixed = queries.new_empty(rows, heads, value_size) if out is None else out
    _check(
        library().midstream_attend(
            *(queries.data_ptr(), queries.stride(0), queries.stride(1), layer.keys.data_ptr()),
            *(layer.values.data_ptr(), _whole(tables), _whole(lengths), pages, tables.shape[1], rows, heads),
            *(kv_heads, page, size, value_size, *_how(terms), _is_half(queries), mixed.data_ptr()),
        )
    )
    return mixed


class PromptAttention:
    """Attends with prompts, in room that it keeps for its threads. Not thread-safe."""

    def __init__(self) -> None:
        self._room = torch.empty(0, dtype=torch.uint8)

    def attend(
        self,
        queries: Tensor,
        layer: LayerPages,
        table: Tensor,
        start: int,
        terms: AttentionParams,
        *,
        out: Tensor,
    ) -> None:
        """Attend with a chunk of a prompt, (rows, heads, size), from position `start` on, each to all up to itself.

        Queries may have strides. `table`: (pages,), int32; `out`: (rows, heads, value size). Raises BadTable.
        """
        rows, heads, size = queries.shape
        pages, page, kv_heads, value_size = _sizes(layer, size)
        if heads % kv_heads or out.shape != (rows, heads, value_size) or not out.is_contiguous():
            raise BadTable(
                f"{tuple(queries.shape)} and {tuple(out.shape)} for {kv_heads} heads of {value_size}"
            )
        queries = queries if queries.stride(2) == 1 else queries.contiguous()
        threads = torch.get_num_threads()
        needed = library().midstream_prompt_room(size, value_size, threads)
        if len(self._room) < needed:
            self._room = torch.empty(needed, dtype=torch.uint8)
        _check(
            library().midstream_attend_prompt(
                *(queries.data_ptr(), queries.stride(0), queries.stride(1), layer.keys.data_ptr()),
                *(layer.values.data_ptr(), _whole(table), pages, len(table), start, rows, heads, kv_heads),
                *(page, size, value_size, *_how(terms), _is_half(queries), threads),
                *(self._room.data_ptr(), out.data_ptr()),
            )
        )


def rotate_and_store(
    projected: Tensor,
    values: Tensor,
    angles: tuple[Tensor, Tensor],
    places: tuple[Tensor, Tensor],
    layer: LayerPages,
) -> Tensor:
    """Rotate queries and keys, (rows, heads + KV heads, size), by their positions; store keys and values in a layer.

    `values`: (rows, KV heads, size). `angles`: cosines and signed sines as `RotaryTable` has them, (rows, 1, size).
    `places`: pages and offsets, int32, (rows,); a page below 0 stores nothing. Returns the rotated queries,
    (rows, heads, size). Raises BadTable.
    """
    rows, all_heads, size = projected.shape
    pages, page, kv_heads, value_size = _sizes(layer, size)
    if len(places[0]) != rows or len(places[1]) != rows or value_size != size:
        raise BadTable(f"{len(places[0])} pages and {len(places[1])} offsets for {rows} rows of {size}")
    heads = all_heads - kv_heads
    turned = projected.new_empty(rows, heads, size)
    _check(
        library().midstream_rotate_and_store(
            *(projected.data_ptr(), projected.stride(0), values.data_ptr(), values.stride(0)),
            *(angles[0].data_ptr(), angles[1].data_ptr(), _whole(places[0]), _whole(places[1])),
            *(pages, page, rows, heads, kv_heads, size, _is_half(projected)),
            *(turned.data_ptr(), layer.keys.data_ptr(), layer.values.data_ptr()),
        )
    )
    return turned


def rms_norm(given: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Normalize the last dimension by its root mean square, and multiply by `weight`, (size,)."""
    given = given.contiguous()
    made, size = torch.empty_like(given), given.shape[-1]
    library().midstream_rms_norm(
        *(given.data_ptr(), weight.data_ptr(), given.numel() // size, size),
        *(epsilon, _is_half(given), made.data_ptr()),
    )
    return made


def silu_product(gate_up: Tensor) -> Tensor:
    """Return silu(gate) * up, (rows, size), of gates and ups side by side, (rows, 2 * size), contiguous."""
    rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    made = gate_up.new_empty(rows, size)
    library().midstream_silu_product(gate_up.data_ptr(), rows, size, _is_half(gate_up), made.data_ptr())
    return made


def has_pairs() -> bool:
    """Whether the processor multiplies pairs of bfloat16 (AVX512-BF16)."""
    return bool(library().midstream_has_pairs())


def has_wide_vectors() -> bool:
    """Whether the processor has AVX2 or wider vectors, and the compiler knew them."""
    return bool(library().midstream_has_wide_vectors())


def library() -> ctypes.CDLL:
    """Return what was compiled. Raises NoKernels."""
    library = _library()
    if isinstance(library, NoKernels):
        raise library
    return library


def _check(answer: int) -> None:
    if answer:
        raise BadTable("a block table leads out of the pages of the cache")


def _sizes(layer: LayerPages, size: int) -> tuple[int, int, int, int]:
    """Return the number of pages, their size, KV heads and the size of values. Raises BadTable for another layout."""
    pages, page, kv_heads, key_size = _paged(layer.keys)
    if _paged(layer.values)[:3] != (pages, page, kv_heads) or key_size != size:
        raise BadTable(f"queries of {size} for {tuple(layer.keys.shape)} and {tuple(layer.values.shape)}")
    return pages, page, kv_heads, layer.values.shape[3]


def _how(terms: AttentionParams) -> tuple[float, float, int, int]:
    """Return terms as the kernels take them, with 0 for those that a layer lacks."""
    return terms.scale, terms.softcap or 0.0, terms.window or 0, terms.chunk or 0


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


def _is_half(tensor: Tensor) -> bool:
    return tensor.dtype is torch.bfloat16


class Cpu(Reference):
    """See `engine.model.attention.Backend`. Elements are bfloat16 or float32."""

    def __init__(self) -> None:
        self._prompts = PromptAttention()

    def attend(self, queries: Tensor, layer: LayerPages, step: StepLayout, terms: AttentionParams) -> Tensor:
        """See `Backend`."""
        rows = step.decode_rows
        if rows == len(queries):
            return attend(queries, layer, step.tables, step.lengths, terms)
        mixed = queries.new_zeros(*queries.shape[:2], layer.values.shape[3])
        if rows:
            attend(queries[:rows], layer, step.tables[:rows], step.lengths[:rows], terms, out=mixed[:rows])
        for table, (start, stop) in zip(step.tables[rows:], step.spans[rows:], strict=True):
            own = slice(rows, rows + stop - start)
            self._prompts.attend(queries[own], layer, table, start, terms, out=mixed[own])
            rows = own.stop
        return mixed


MOST_ROWS = 96
"""Up to so many rows these kernels are as fast as torch's, or faster. Beyond, torch takes 4 % longer with plain bf16
weights than with packed ones.

Measured on two cores with AVX512-BF16, all linear layers of a 768x12 Llama, bf16, time against packed weights: 0.69 at
one row, 0.8 at four, 0.85 at eight, 1.0 at 16, 1.05 at 32 to 128.
"""

MOST_ROWS_BESIDE_PACKED = 12
"""The same for layers with a packed copy as well."""

LARGEST_COPY = 2**30
"""Up to so many bytes of weights a packed copy is kept, where plain ones make prompts slow: 1.2 to 1.7 times in float32."""

_KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}
LARGEST_CODE = 127

INT8_MOST_ROWS = 64
"""Up to so many rows the kernels of `engine.model.cpu.kernels` are faster, if they were compiled.

Measured as below: twice as fast as torch's kernel at one row, and more than twice as fast as widening at 16.
"""

FEW_ROWS = 4
"""Without them, in bf16, torch's int8 kernel is faster up to so many rows; beyond, it is faster to widen the weights first.

Measured on two cores with AVX512-BF16, all layers of a 768x12 Llama, against bf16 weights: 1.6 to 2 times as fast at one
row, 1.4 at four, 0.9 at 32. In float32, widening is faster at any number: 1.8 at one row, 1.4 at four, 1 at 32.
"""

KERNEL_BLOCK = 32
"""Inputs that torch's int8 kernel takes at a time in bf16. It reads beyond a row's end if its width is no multiple."""

SMALLEST_SHARE = 0.5
"""The share of a model's weights that must be in linear layers. With less, the option would promise too much."""

ROWS_HINT = 32
"""The number of rows that the layout is chosen for; it serves all numbers nearly as well."""

PACKED_DTYPES = frozenset({torch.bfloat16, torch.float32})


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
    """Describe weights, (outputs, inputs), contiguous, to the kernels. The tensors must outlive it."""
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


def multiply(by: Matrix, given: Tensor, added: Tensor | None = None) -> Tensor:
    """Return rows, (rows, inputs), times a matrix, plus its bias and `added`, (rows, outputs). Raises ValueError."""
    if given.shape[1] != by.inputs or (added is not None and added.shape != (len(given), by.outputs)):
        raise ValueError("the shapes of rows and weights do not fit together")
    given = given.contiguous()
    added = None if added is None else added.contiguous()
    made = given.new_empty(len(given), by.outputs)
    served = library().midstream_linear(
        *(ctypes.addressof(by), given.data_ptr(), None if added is None else added.data_ptr()),
        *(len(given), given.dtype is torch.bfloat16, False, made.data_ptr()),
    )
    if not served:
        raise ValueError("the dtypes of rows and weights do not fit together")
    return made


class CpuLinear(nn.Module):
    """A linear layer, (rows, in) to (rows, out). It can add `added` to its result: one operation instead of two."""

    def __init__(self, linear: nn.Linear, *, packed: bool) -> None:
        """`packed`: keep a packed copy for many rows."""
        super().__init__()
        self.weight: Tensor = linear.weight.detach().contiguous()
        self.bias: Tensor | None = None if linear.bias is None else linear.bias.detach()
        self.packed = PackedLinear(linear) if packed else None
        self._matrix = matrix(self.weight, self.bias)
        self._most_rows = MOST_ROWS_BESIDE_PACKED if packed else MOST_ROWS

    def forward(self, given: Tensor, added: Tensor | None = None) -> Tensor:
        """Multiply, and add the bias and `added`, (rows, out), if there are any."""
        if len(given) <= self._most_rows:
            return multiply(self._matrix, given, added)
        if self.packed is not None:
            packed: Tensor = self.packed(given, added)
            return packed
        made = functional.linear(given, self.weight, self.bias)
        return made if added is None else made.add_(added)


@torch.no_grad()
def take_over(module: nn.Module, *, packs: bool = True) -> None:
    """Replace the plain linear layers of a module by `CpuLinear`, in place. `serve_linear` must hold for their weights.

    `packs`: keep packed copies if torch's products of many rows are slow with plain weights.
    """
    layers = [
        (parent, name, child)
        for parent in module.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear
    ]
    weights = {layer.weight.data_ptr(): layer.weight for _, _, layer in layers}.values()
    total = sum(weight.numel() * weight.element_size() for weight in weights)
    for parent, name, layer in layers:
        packed = packs and _plain_is_slow(layer.weight) and total <= LARGEST_COPY
        setattr(parent, name, CpuLinear(layer, packed=packed))


def has_tiles() -> bool:
    """Whether the processor multiplies tiles of bfloat16 (AMX), as torch's products do."""
    tiles: bool = torch.cpu._is_amx_tile_supported()  # noqa: SLF001 - its only name
    return tiles


def _plain_is_slow(weight: Tensor) -> bool:
    """Whether torch's products of many rows take much longer with plain weights than with packed ones."""
    return can_pack(weight.device, weight.dtype) and (weight.dtype is torch.float32 or has_tiles())


class Int8Linear(nn.Module):
    """A linear layer, (…, in) to (…, out), with weights of shape (out, in) as int8 and a scale for each output."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        codes, scale = quantized(weight)
        self.weight = nn.Parameter(codes, requires_grad=False)
        self.scale = nn.Parameter(scale, requires_grad=False)
        self.bias = bias if bias is None else nn.Parameter(bias.detach(), requires_grad=False)
        self._matrix = matrix(codes, self.bias, scale)
        self._kernel_fits = weight.dtype is torch.bfloat16 and weight.shape[1] % KERNEL_BLOCK == 0

    def forward(self, given: Tensor) -> Tensor:
        """Multiply, and add the bias if there is one."""
        rows = given.reshape(-1, given.shape[-1])
        if 0 < len(rows) <= INT8_MOST_ROWS and serve_linear(rows, self.weight):
            return multiply(self._matrix, rows).view(*given.shape[:-1], len(self.weight))
        if self._kernel_fits and 0 < len(rows) <= FEW_ROWS:
            made = torch.ops.aten._weight_int8pack_mm(rows.contiguous(), self.weight, self.scale)  # noqa: SLF001 - its only name
        else:
            made = functional.linear(rows, self.weight.to(rows.dtype)) * self.scale
        made = made if self.bias is None else made + self.bias
        shaped: Tensor = made.view(*given.shape[:-1], len(self.weight))
        return shaped


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
    inside = sum(layer.weight.numel() for _, _, layer in layers)
    share = inside / max(1, sum(weight.numel() for weight in module.parameters()))
    if share < SMALLEST_SHARE:
        raise ModelNotUsable(
            f"--quantize int8 quantizes linear layers, which hold only {share:.0%} of the weights of "
            f"{type(module).__name__}."
        )
    for parent, name, layer in layers:
        weight = layer.weight.t() if isinstance(layer, Conv1D) else layer.weight
        setattr(parent, name, Int8Linear(weight, layer.bias))


def _linear_layers(module: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Linear | Conv1D]]:
    """Yield (parent, name, layer). Subclasses are skipped, since they may compute something else."""
    for parent in module.modules():
        for name, child in parent.named_children():
            if type(child) is nn.Linear or type(child) is Conv1D:
                yield parent, name, child


class PackedLinear(nn.Module):
    """A linear layer, (rows, in) to (rows, out). It can add `added` to its result: one operation instead of two."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight: Tensor = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), ROWS_HINT)  # noqa: SLF001 - its only name
        self.bias: Tensor | None = None if linear.bias is None else linear.bias.detach()

    def forward(self, given: Tensor, added: Tensor | None = None) -> Tensor:
        """Multiply, and add the bias and `added`, (rows, out), if there are any."""
        made: Tensor
        if added is None:
            made = torch.ops.mkldnn._linear_pointwise(given, self.weight, self.bias, "none", [], "")  # noqa: SLF001
        else:
            made = torch.ops.mkldnn._linear_pointwise.binary(given, added, self.weight, self.bias, "add")  # noqa: SLF001
        return made


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether packed layers work on a device and in a dtype."""
    mkldnn: Any = torch.backends.mkldnn
    if device.type != "cpu" or dtype not in PACKED_DTYPES or not mkldnn.is_available():
        return False
    return dtype is not torch.bfloat16 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())  # noqa: SLF001


@torch.no_grad()
def pack(module: nn.Module) -> None:
    """Replace the plain linear layers of a module by packed ones, in place, one after the other."""
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                setattr(parent, name, PackedLinear(child))
