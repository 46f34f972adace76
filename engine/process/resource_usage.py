"""The engine process's use of the machine: processor time, memory, and its CUDA device's memory."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from engine.messages import EngineStatistics

DeviceMemory = Callable[[], tuple[int, int]]
"""Returns the free and the total bytes."""

_MEMORY = Path("/proc/self/statm")


def no_device() -> tuple[int, int]:
    """Return zeros, for a process without a device."""
    return 0, 0


class ResourceUsage:
    """Adds the use of the machine to the counters."""

    def __init__(self, device_memory: DeviceMemory = no_device) -> None:
        """Take the function that returns the device's memory."""
        self._device_memory = device_memory

    def __call__(self, counted: EngineStatistics) -> EngineStatistics:
        """Return the counters with the current use."""
        free, total = self._device_memory()
        return msgspec.structs.replace(
            counted,
            cpu_seconds=time.process_time(),
            resident_bytes=resident_bytes(),
            device_used_bytes=total - free,
            device_total_bytes=total,
        )


def resident_bytes() -> int:
    """Return this process's memory; if the system doesn't say, the most that it ever had."""
    try:
        return int(_MEMORY.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except FileNotFoundError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


def most_memory(*, taken: int, kv: int, kv_tokens: int, working: int) -> str:
    """Say how much memory a process may take at most. `taken`: what it takes once the model is loaded. Pure."""
    return (
        f"at most about {_megabytes(taken + kv + working)}: {_megabytes(taken)} with weights and libraries, "
        f"{_megabytes(kv)} for keys and values of {kv_tokens:,} tokens, {_megabytes(working)} to work with"
    )


def _megabytes(count: int) -> str:
    return f"{count / 10**6:,.0f} MB"
