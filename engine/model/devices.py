"""Where a model runs, what it computes in, and how much memory is free there."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable
from pathlib import Path

import torch

from engine.errors import ModelNotUsable

_NO_MEMORY = ("can't allocate memory", "MPS backend out of memory")
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


def choose_device(asked: str | None) -> torch.device:
    """Return the device asked for, else the best one here: CUDA, then MPS, then CPU. Raises ModelNotUsable."""
    found = _available()
    if asked in AUTO:
        return found[0]
    try:
        device = torch.device(asked or "")
    except RuntimeError as error:
        raise ModelNotUsable(f"{asked!r} is not the name of a device; try cuda, mps or cpu.") from error
    if device.type not in {one.type for one in found}:
        raise ModelNotUsable(
            f"The device {asked!r} was asked for, but PyTorch does not find it on this machine."
        )
    return device


def choose_dtype(asked: str | None, device: torch.device) -> torch.dtype:
    """Return the dtype asked for, else the fastest one that `device` is good at. Raises ModelNotUsable."""
    if asked in AUTO:
        return _fastest(device)
    try:
        return DTYPES[asked or ""]
    except KeyError as error:
        raise ModelNotUsable(f"{asked!r} is not a dtype; try {', '.join(DTYPES)}.") from error


def available_bytes(device: torch.device) -> int | None:
    """Return the free memory of a device, or None where nothing tells."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    limits = [_free_by_meminfo(_text("/proc/meminfo")), _free_in_cgroup(Path("/sys/fs/cgroup"))]
    return min((limit for limit in limits if limit is not None), default=None)


def peak_bytes(device: torch.device, call: Callable[[], object]) -> int:
    """Return how much memory a call takes at its peak on a CUDA device; then nothing of it is held any more."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call()
    peak = torch.cuda.max_memory_allocated(device) - before
    # What the allocator keeps for later would count as used by others.
    torch.cuda.empty_cache()
    return peak


def is_out_of_memory(error: RuntimeError) -> bool:
    """Tell lack of memory from all else: PyTorch's CPU allocator has no error class of its own for it."""
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in _NO_MEMORY)


def has_fast_bf16(cpuinfo: str) -> bool:
    """Tell from `/proc/cpuinfo` whether the CPU multiplies bf16 natively. Without that it is slower than fp32."""
    return FAST_BF16.search(cpuinfo) is not None


def _available() -> list[torch.device]:
    found = []
    if torch.cuda.is_available():
        found.append(torch.device("cuda", torch.cuda.current_device()))
    if torch.backends.mps.is_available():
        found.append(torch.device("mps"))
    return [*found, torch.device("cpu")]


def _fastest(device: torch.device) -> torch.dtype:
    match device.type:
        case "cuda":
            return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
        case "mps":
            return torch.bfloat16 if torch.backends.mps.is_macos_or_newer(14, 0) else torch.float32
        case _:
            fast = platform.system() == "Linux" and has_fast_bf16(_text("/proc/cpuinfo"))
            return torch.bfloat16 if fast else torch.float32


def _free_by_meminfo(meminfo: str) -> int | None:
    found = re.search(r"^MemAvailable:\s*(\d+) kB", meminfo, re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def _free_in_cgroup(folder: Path) -> int | None:
    """Return what a container's limit leaves (cgroup v2), or None where there is no limit."""
    limit, used = _text(folder / "memory.max").strip(), _text(folder / "memory.current").strip()
    return int(limit) - int(used) if limit.isdecimal() and used.isdecimal() else None


def _text(path: str | Path) -> str:
    """Return a file of the kernel's, or nothing where this system has no such file."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""
