"""Memory of a process, as Linux reports it."""

from __future__ import annotations

import re
from pathlib import Path

_PSS = re.compile(r"^Pss:\s+(\d+) kB$", re.MULTILINE)
_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


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
