"""Chooses a model's device and dtype, and reports how much memory is free there."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable

import torch
from torch import Tensor

from engine.errors import ModelNotUsable
from engine.machine import free_memory, kernel_text

_NO_MEMORY = "can't allocate memory"
AUTO = (None, "", "auto")
FAST_BF16 = re.compile(r"^(?:flags|Features)\s*:.*\b(?:avx512_bf16|amx_bf16|bf16)\b", re.MULTILINE)
DTYPES = {
    "float32": torch.float32,
    "fp32": torch.float32,
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
    "float16": torch.float16,
    "fp16": torch.float16,
}


def choose_device(name: str | None) -> torch.device:
    """Return the device asked for, else the best one here: CUDA, then CPU. Raises ModelNotUsable."""
    cuda = [torch.device("cuda", torch.cuda.current_device())] if torch.cuda.is_available() else []
    found = [*cuda, torch.device("cpu")]
    if name in AUTO:
        return found[0]
    try:
        device = torch.device(name or "")
    except RuntimeError as error:
        raise ModelNotUsable(f"{name!r} is not the name of a device; try cuda or cpu.") from error
    if device.type not in {one.type for one in found}:
        raise ModelNotUsable(
            f"The device {name!r} was asked for, but PyTorch does not find it on this machine."
        )
    if str(device) == "cuda":  # without an index, which `torch.cuda.set_device` refuses
        return torch.device("cuda", torch.cuda.current_device())
    return device


def choose_dtype(name: str | None, device: torch.device) -> torch.dtype:
    """Return the dtype asked for, else the fastest one for `device`. Raises ModelNotUsable."""
    if name in AUTO:
        if device.type == "cuda":
            return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
        fast = platform.system() == "Linux" and has_fast_bf16(kernel_text("/proc/cpuinfo"))
        return torch.bfloat16 if fast else torch.float32
    try:
        return DTYPES[name or ""]
    except KeyError as error:
        raise ModelNotUsable(f"{name!r} is not a dtype; try {', '.join(DTYPES)}.") from error


def available_bytes(device: torch.device) -> int | None:
    """Return the free memory of a device in bytes; None if it is unknown."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return free_memory()


def peak_bytes(device: torch.device, call: Callable[[], object]) -> int:
    """Return how many bytes a call takes at its peak on a CUDA device. All of them are free again afterwards."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call()
    peak = torch.cuda.max_memory_allocated(device) - before
    # Memory that the allocator keeps for later would count as used.
    torch.cuda.empty_cache()
    return peak


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether an error is a lack of memory. PyTorch's CPU allocator has no error class of its own for it."""
    return isinstance(error, torch.OutOfMemoryError) or _NO_MEMORY in str(error)


def sent(host: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device. On CUDA it is sent from pinned memory, so the host does not wait."""
    if device.type != "cuda":
        return host.to(device)
    return torch.empty_like(host, pin_memory=True).copy_(host).to(device, non_blocking=True)


def has_fast_bf16(cpuinfo: str) -> bool:
    """Whether the CPU of a `/proc/cpuinfo` multiplies bf16 natively. Without that, bf16 is slower than fp32."""
    return FAST_BF16.search(cpuinfo) is not None
