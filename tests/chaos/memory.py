"""Memory of a process and its sockets, as Linux reports it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

_PSS = re.compile(r"^Pss:\s+(\d+) kB$", re.MULTILINE)
_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)
_HELD = re.compile(r"skmem:\(r(\d+),rb\d+,t\d+,tb\d+,f(\d+),w(\d+)")


def resident_bytes(pid: int) -> int:
    """Return a process's memory; memory shared with others counts in part (PSS). Raises OSError."""
    found = _PSS.search(Path(f"/proc/{pid}/smaps_rollup").read_text())
    assert found is not None
    return int(found[1]) * 1024


def forget_peak(pid: int) -> None:
    """Reset `peak_bytes` (proc(5): clear_refs). Raises OSError."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def peak_bytes(pid: int) -> int:
    """Return a process's peak memory, including all that it shares. Raises OSError."""
    found = _PEAK.search(Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def kernel_bytes(port: int) -> int | None:
    """Return the kernel's memory for all connections of a listening port, or None if `ss` is not installed.

    It counts the server's queues and the memory reserved for them (ss(8): r, w, f). Memory in the clients' queues is not
    counted.
    """
    if shutil.which("ss") is None:
        return None
    reported = subprocess.run(
        ["ss", "-tmnH", "sport", "=", f":{port}"], capture_output=True, text=True, check=True
    ).stdout
    return sum(int(part) for found in _HELD.findall(reported) for part in found)
