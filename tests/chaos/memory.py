"""How much memory a process and its sockets take, as Linux tells it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

_PSS = re.compile(r"^Pss:\s+(\d+) kB$", re.MULTILINE)
_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)
_HELD = re.compile(r"skmem:\(r(\d+),rb\d+,t\d+,tb\d+,f(\d+),w(\d+)")


def resident_bytes(pid: int) -> int:
    """Return a process's memory; what it shares with others counts in part (PSS). Raises OSError."""
    found = _PSS.search(Path(f"/proc/{pid}/smaps_rollup").read_text())
    assert found is not None
    return int(found[1]) * 1024


def forget_peak(pid: int) -> None:
    """From here on `peak_bytes` counts anew (proc(5): clear_refs). Raises OSError."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def peak_bytes(pid: int) -> int:
    """Return the most memory that a process had at once, all that it shares included. Raises OSError."""
    found = _PEAK.search(Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def kernel_bytes(port: int) -> int | None:
    """Return what the kernel holds for all connections of a listening port; None where `ss` is not installed.

    Counted are the queues to and from the server and what is set aside for them (ss(8): r, w, f). What lies in the
    clients' queues is theirs.
    """
    if shutil.which("ss") is None:
        return None
    told = subprocess.run(
        ["ss", "-tmnH", "sport", "=", f":{port}"], capture_output=True, text=True, check=True
    ).stdout
    return sum(int(part) for found in _HELD.findall(told) for part in found)
