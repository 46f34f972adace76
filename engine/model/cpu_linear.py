"""Linear layers of few rows on CPUs, `cpu_linear.c`. They are bound by memory, so weights are read once, as they are stored.

The weights stay as in torch, so products of many rows need no second copy. If torch computes those and is much slower
with plain weights, a packed copy is kept (`engine.model.packed_linear`), unless the model is too large for two copies.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor, nn
from torch.nn import functional

from engine.attention import cpu_kernels
from engine.model.packed_linear import PackedLinear, can_pack

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


class Matrix(ctypes.Structure):
    """The `struct matrix` of cpu_linear.h."""

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
