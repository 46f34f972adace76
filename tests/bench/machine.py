"""The conditions of a measurement: the processor, and the versions of the software. Names no host."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
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


BUSY = 0.7


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine of a measurement. `load_before`: runnable processes over the last minute, before the start."""

    processor: str
    cores: int
    system: str
    python: str
    load_before: float
    packages: dict[str, str]

    @property
    def warning(self) -> str | None:
        """A warning if the machine had other work, else None."""
        if self.load_before <= BUSY:
            return None
        return f"This machine is busy (load {self.load_before}): the figures will be too."


def this_machine(packages: tuple[str, ...] = PACKAGES) -> Machine:
    """Describe this machine. A package that is not installed is not named."""
    return Machine(
        processor=_processor(),
        cores=_cores(),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        load_before=round(os.getloadavg()[0], 2),
        packages=dict(_versions(packages)),
    )


def _versions(packages: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for name in packages:
        with suppress(PackageNotFoundError):
            yield name, version(name)


def _cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    found = MODEL_NAME.search(cpuinfo.read_text()) if cpuinfo.is_file() else None
    return found[1] if found else platform.processor()
