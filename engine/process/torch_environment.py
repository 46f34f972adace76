"""Environment variables for the libraries below torch, set before it is imported. Those that are set already stay.

OpenMP's threads spin while they wait for each other, then sleep. By default they spin for long, but the cores are shared
with the gateway, the store and whatever else runs, so here they spin briefly. Measured on two cores: a small matrix
product takes 19 microseconds with brief or long spinning, and 76 without; without it a decode step of a 768x12 Llama
takes 1.2 to 1.5 times as long. Beside one busy process, long spinning or threads bound to cores (OMP_PROC_BIND=true)
cost a factor of three to twenty, brief spinning next to nothing.

oneDNN makes a kernel for each shape of a product, in 0.3 ms, and torch and oneDNN keep 1,024 each: half a megabyte and
more for every number of replies and every length of contexts that ever came. 64 kernels serve about nine sizes of step.
Measured over 10,000 turns of a very small model: 72 MB of growth with 1,024 kernels, 7 with 64, and 8 % more time.
"""

from __future__ import annotations

from collections.abc import Mapping

_SPINNING = {"GOMP_SPINCOUNT": "3000"}
_SPINNING_CHOSEN = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}
_KERNELS = {"LRU_CACHE_CAPACITY": "64", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64"}


def settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to add to an environment."""
    spinning = {} if _SPINNING_CHOSEN & environ.keys() else _SPINNING
    return spinning | {name: value for name, value in _KERNELS.items() if name not in environ}
