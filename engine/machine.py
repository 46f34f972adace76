"""The machine: its free memory, what a process takes of it, and whether Triton can compile there. Knows no torch."""

from __future__ import annotations

import os
import re
import resource
import shutil
import sys
import sysconfig
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import msgspec

from engine.messages import EngineStatistics

DeviceMemory = Callable[[], tuple[int, int]]
"""Returns the free and the total bytes."""

_MEMORY = Path("/proc/self/statm")


def free_memory() -> int | None:
    """Return the free bytes, or None if they are not known."""
    limits = [free_by_meminfo(kernel_text("/proc/meminfo")), free_in_cgroup(Path("/sys/fs/cgroup"))]
    return min((limit for limit in limits if limit is not None), default=None)


def free_by_meminfo(meminfo: str) -> int | None:
    """Return what `/proc/meminfo` calls available, in bytes. Pure."""
    found = re.search(r"^MemAvailable:\s*(\d+) kB", meminfo, re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def free_in_cgroup(folder: Path) -> int | None:
    """Return what a container's limit leaves (cgroup v2), or None without a limit."""
    limit, used = (
        kernel_text(folder / "memory.max").strip(),
        kernel_text(folder / "memory.current").strip(),
    )
    return int(limit) - int(used) if limit.isdecimal() and used.isdecimal() else None


def kernel_text(path: str | Path) -> str:
    """Return the text of a kernel's file, or nothing if there is no such file."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""


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


def triton_trouble() -> tuple[str, str] | None:
    """Return why Triton can't compile kernels and how to fix that; None if it can, or if it is not installed.

    It builds a C extension when the first kernel is launched, unless `TRITON_CACHE_DIR` has one.
    """
    if find_spec("triton") is None:
        return None
    compilers = [os.environ["CC"]] if "CC" in os.environ else ["gcc", "clang"]
    if not any(shutil.which(name) for name in compilers):
        return f"Triton finds no C compiler ({' or '.join(compilers)})", "Install gcc and libc6-dev."
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        return "Triton finds no headers of Python (Python.h)", "Install python3-dev."
    return None
