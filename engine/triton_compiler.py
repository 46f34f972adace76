"""Checks whether Triton can compile its kernels for CUDA here, which takes a C compiler. Does not import torch."""

from __future__ import annotations

import os
import shutil
import sysconfig
from importlib.util import find_spec
from pathlib import Path


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
