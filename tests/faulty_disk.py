"""A disk that loses at a crash what was not synced, and that syncs as slowly as a test wants (`disk.c`); Linux only."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")


def disk(folder: Path, *, store: Path | None = None, sync_s: float = 0.0) -> dict[str, str]:
    """Return the environment that puts a store's append-only file on such a disk. Needs a C compiler.

    `folder`: for the compiled library. `store`: the folder of a store that loses what was not synced whenever it starts.
    `sync_s`: how much longer each sync takes.
    """
    library = folder / "disk.so"
    compiler = os.environ.get("CC", "cc")
    command = [
        compiler,
        "-shared",
        "-fPIC",
        "-O2",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-o",
        str(library),
        str(SOURCE),
        "-ldl",
    ]
    subprocess.run(command, check=True)
    loses = {} if store is None else {"DISK_LOSES": str(store / "appendonlydir")}
    return {"LD_PRELOAD": str(library), "DISK_SYNC_US": str(round(sync_s * 1e6)), **loses}
