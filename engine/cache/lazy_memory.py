"""CPU memory that the system commits page by page, when it is first written, and that can be handed back in part."""

from __future__ import annotations

import mmap
import sys
from contextlib import suppress
from math import prod
from pathlib import Path

import torch
from torch import Tensor

if sys.platform != "win32":
    import resource

OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")
"""2: Linux counts what is mapped, not what is written."""


class LazyMemory:
    """A tensor of zeros, (rows, ...), in memory that is committed with use. It lives as long as the tensor."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        size = max(1, prod(shape)) * dtype.itemsize
        try:
            self._memory = _mapped(size)
        except OSError as error:
            # As torch's own allocator says it.
            raise RuntimeError(f"can't allocate memory: {size} bytes") from error
        count = prod(shape)
        self.tensor: Tensor = torch.frombuffer(self._memory, dtype=dtype, count=count).view(shape)
        self._row_bytes = size // shape[0]

    def release(self, row: int) -> None:
        """Zero a row and hand its whole pages back, where the system offers that; else only zero it."""
        # Elsewhere pages may come back as they were.
        if sys.platform != "linux":
            self.tensor[row].zero_()
            return
        first, last = row * self._row_bytes, (row + 1) * self._row_bytes
        begin = -(-first // mmap.PAGESIZE) * mmap.PAGESIZE
        end = last // mmap.PAGESIZE * mmap.PAGESIZE
        if begin < end:
            self._memory.madvise(mmap.MADV_DONTNEED, begin, end - begin)
        flat = self.tensor[row].view(-1)
        item = flat.element_size()
        flat[: max(0, min(begin, last) - first) // item].zero_()
        flat[max(0, max(end, first) - first) // item :].zero_()


def unwritten_is_free() -> bool:
    """Whether memory that is mapped and never written counts against no limit, so that far more can be mapped than there is."""
    if sys.platform == "win32":
        return False
    try:
        counted = OVERCOMMIT.read_text(encoding="ascii").strip() == "2"
    except OSError:  # not Linux
        counted = False
    limits = (resource.RLIMIT_AS, resource.RLIMIT_DATA)
    return not counted and all(resource.getrlimit(kind)[0] == resource.RLIM_INFINITY for kind in limits)


def _mapped(size: int) -> mmap.mmap:
    if sys.platform == "win32":
        return mmap.mmap(-1, size)
    unreserved = getattr(mmap, "MAP_NORESERVE", 0)  # more may be mapped than there is
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | unreserved)
    if sys.platform == "linux":
        # A huge page commits 2 MiB with its first byte; what is written here lies in many small places.
        with suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_NOHUGEPAGE)
    return memory
