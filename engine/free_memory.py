"""The free memory of the machine or of this container. Knows no torch."""

from __future__ import annotations

import re
from pathlib import Path


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
