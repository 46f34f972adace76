"""How much memory the machine, or this container, has free. Knows no torch."""

from __future__ import annotations

import re
from pathlib import Path


def free_memory() -> int | None:
    """Return the bytes that are free, or None where nothing tells."""
    limits = [free_by_meminfo(kernel_text("/proc/meminfo")), free_in_cgroup(Path("/sys/fs/cgroup"))]
    return min((limit for limit in limits if limit is not None), default=None)


def free_by_meminfo(meminfo: str) -> int | None:
    """Return what `/proc/meminfo` calls available, in bytes. Pure."""
    found = re.search(r"^MemAvailable:\s*(\d+) kB", meminfo, re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def free_in_cgroup(folder: Path) -> int | None:
    """Return what a container's limit leaves (cgroup v2), or None where there is no limit."""
    limit, used = (
        kernel_text(folder / "memory.max").strip(),
        kernel_text(folder / "memory.current").strip(),
    )
    return int(limit) - int(used) if limit.isdecimal() and used.isdecimal() else None


def kernel_text(path: str | Path) -> str:
    """Return a file of the kernel's, or nothing where this system has no such file."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""
