"""Linear layers whose weights are int8, for CPUs: a decode step reads half the bytes of bf16.

Only weights are quantized. Activations are not, so that no reply's numbers depend on another's. Each output channel
has one scale, and codes are symmetric around zero.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from engine.errors import ModelNotUsable
from engine.model import cpu_linear

LARGEST_CODE = 127

MOST_ROWS = 64
"""Up to so many rows the kernels of `engine.model.cpu_linear` are faster, if they were compiled.

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


class Int8Linear(nn.Module):
    """A linear layer, (…, in) to (…, out), with weights of shape (out, in) as int8 and a scale for each output."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        codes, scale = quantized(weight)
        self.weight = nn.Parameter(codes, requires_grad=False)
        self.scale = nn.Parameter(scale, requires_grad=False)
        self.bias = bias if bias is None else nn.Parameter(bias.detach(), requires_grad=False)
        self._matrix = cpu_linear.matrix(codes, self.bias, scale)
        self._kernel_fits = weight.dtype is torch.bfloat16 and weight.shape[1] % KERNEL_BLOCK == 0

    def forward(self, given: Tensor) -> Tensor:
        """Multiply, and add the bias if there is one."""
        rows = given.reshape(-1, given.shape[-1])
        if 0 < len(rows) <= MOST_ROWS and cpu_linear.serve(rows, self.weight):
            return cpu_linear.multiply(self._matrix, rows).view(*given.shape[:-1], len(self.weight))
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
