"""What the engine's process takes of the machine: processor time, memory, and the memory of its CUDA device."""

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
"""Gives the bytes that are free, and all of them."""

_MEMORY = Path("/proc/self/statm")


def no_device() -> tuple[int, int]:
    """Return that there is no memory but the machine's."""
    return 0, 0


class Used:
    """Adds it to facts that are about to be told."""

    def __init__(self, device_memory: DeviceMemory = no_device) -> None:
        """Take what knows the device's memory."""
        self._device_memory = device_memory

    def __call__(self, counted: EngineStatistics) -> EngineStatistics:
        """Return the facts with what is taken now."""
        free, total = self._device_memory()
        return msgspec.structs.replace(
            counted,
            cpu_seconds=time.process_time(),
            resident_bytes=resident_bytes(),
            device_used_bytes=total - free,
            device_total_bytes=total,
        )


def resident_bytes() -> int:
    """Return how much memory this process takes; where the system doesn't say, the most that it ever took."""
    try:
        return int(_MEMORY.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except FileNotFoundError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
