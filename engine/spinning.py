"""How OpenMP's threads wait for each other: they spin for a moment, then sleep. Set before torch is imported.

By default they spin for long, and the cores are shared here: with the gateway, the store, whatever else runs.
Measured on two cores: without any spinning a small matrix product takes 76 microseconds, with a moment of it (or
much) 19; a decode step of a 768x12 Llama is 1.2 to 1.5 times as long. Beside one busy process, long spinning or
threads bound to cores (OMP_PROC_BIND=true) cost a factor of three to twenty, a moment of it next to nothing.
"""

from __future__ import annotations

from collections.abc import Mapping


def settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what is to be set beside an environment: nothing where whoever owns the machine has chosen."""
    if {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & environ.keys():
        return {}
    return {"GOMP_SPINCOUNT": "3000"}
