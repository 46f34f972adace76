"""What a measurement depends on: the processor, and the versions of what ran. Names no host."""

from __future__ import annotations

import os
import platform
import re
from importlib.metadata import version
from pathlib import Path

import msgspec

PACKAGES = (
    "midstream",
    "torch",
    "transformers",
    "uvicorn",
    "starlette",
    "websockets",
    "fastapi",
    "tokenizers",
)
MODEL_NAME = re.compile(r"^model name\s*:\s*(.+)$", re.MULTILINE)


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Where it was measured. `load_before`: runnable processes over the last minute, before the start."""

    processor: str
    cores: int
    system: str
    python: str
    load_before: float
    packages: dict[str, str]


def this_machine(packages: tuple[str, ...] = PACKAGES) -> Machine:
    """Describe this machine. Raises PackageNotFoundError."""
    return Machine(
        processor=_processor(),
        cores=_cores(),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        load_before=round(os.getloadavg()[0], 2),
        packages={name: version(name) for name in packages},
    )


def _cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    found = MODEL_NAME.search(cpuinfo.read_text()) if cpuinfo.is_file() else None
    return found[1] if found else platform.processor()
