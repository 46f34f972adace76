"""The Debian packages whose programs tests start. As a script: prints those that are missing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from shutil import which

PROGRAMS = {
    "chromium": "chromium",
    "nginx": "nginx",
    "caddy": "caddy",
    "promtool": "prometheus",
    "systemd-analyze": "systemd",
    "gcc": "gcc",
    "curl": "curl",
    "espeak-ng": "espeak-ng",
}
FILES_IN_USR = {
    "include/math.h": "libc6-dev",
}


def missing() -> Iterator[str]:
    """Yield the packages that are missing."""
    yield from (package for program, package in PROGRAMS.items() if which(program) is None)
    yield from (package for path, package in FILES_IN_USR.items() if not any(Path("/usr").glob(path)))


if __name__ == "__main__":
    sys.stdout.writelines(f"{package}\n" for package in missing())
