"""Linear layers on CPUs: by the C kernels (`linear.c`), packed in oneDNN's layout, and with int8 weights.

Layers of few rows are bound by memory, so weights are read once, as they are stored. Products of many rows need no second
copy. If torch computes those and is much slower with plain weights, a packed copy is kept, unless the model is too large.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from engine.errors import ModelNotUsable
from engine.model.cpu import kernels as cpu_kernels

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
"""Up to so many rows the kernels of `engine.model.cpu.linear` are faster, if they were compiled.

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


def serve(given: Tensor, weight: Tensor) -> bool:
    """Whether there are kernels for rows, (…, inputs), and weights, (outputs, inputs)."""
    kinds = (given.dtype, torch.int8)
    return cpu_kernels.serve(given) and weight.dtype in kinds and weight.is_contiguous()


def multiply(by: Matrix, given: Tensor, added: Tensor | None = None) -> Tensor:
    """Return rows, (rows, inputs), times a matrix, plus its bias and `added`, (rows, outputs). Raises ValueError."""
    if given.shape[1] != by.inputs or (added is not None and added.shape != (len(given), by.outputs)):
        raise ValueError("the shapes of rows and weights do not fit together")
    given = given.contiguous()
    added = None if added is None else added.contiguous()
    made = given.new_empty(len(given), by.outputs)
    served = cpu_kernels.library().midstream_linear(
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
    """Replace the plain linear layers of a module by `CpuLinear`, in place. `serve` must hold for their weights.

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
        if 0 < len(rows) <= INT8_MOST_ROWS and serve(rows, self.weight):
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
