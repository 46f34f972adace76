"""The environment of processes that read what people send: without the service's settings and secrets."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

KEPT = frozenset(("HF_TOKEN", "HF_TOKEN_PATH", "HUGGING_FACE_HUB_TOKEN", "PWD", "OLDPWD"))
"""What loading a model needs, and names that only look like secrets."""

SECRET = frozenset(("KEY", "KEYS", "TOKEN", "TOKENS", "AUTH", "DSN", "PAT"))
"""Words of a variable's name, between underscores, that mark a secret."""

SECRET_PARTS = re.compile("APIKEY|AUTHORIZATION|CONNECTION_?STRING|CREDENTIAL|PASSPHRASE|PASSW|PWD|SECRET")
"""Parts of a name that mark one."""

_LOGIN = re.compile(r"://[^/@\s]*:[^/@\s]*@")
"""A URL's user and password."""

_SPINNING = {"GOMP_SPINCOUNT": "3000"}
_SPINNING_CHOSEN = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}
_KERNELS = {"LRU_CACHE_CAPACITY": "64", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64"}


def child_environment() -> dict[str, str]:
    """Return this process's environment as its children may see it."""
    return without_secrets(os.environ)


def without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are neither the service's settings nor, by name or value, secrets. Pure."""
    return {
        name: value for name, value in environ.items() if name in KEPT or not _is_hidden(name.upper(), value)
    }


def _is_hidden(name: str, value: str) -> bool:
    if name.startswith("MIDSTREAM_") or not SECRET.isdisjoint(name.split("_")) or SECRET_PARTS.search(name):
        return True
    return bool(_LOGIN.search(value)) and not name.endswith("_PROXY")  # models may come through a proxy


def torch_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to add to an environment for the libraries below torch, before it is imported.

    OpenMP's threads spin while they wait for each other, then sleep. By default they spin for long, but the cores are shared
    with the gateway, the store and whatever else runs, so here they spin briefly. Measured on two cores: a small matrix
    product takes 19 microseconds with brief or long spinning, and 76 without; without it a decode step of a 768x12 Llama
    takes 1.2 to 1.5 times as long. Beside one busy process, long spinning or threads bound to cores (OMP_PROC_BIND=true)
    cost a factor of three to twenty, brief spinning next to nothing.

    oneDNN makes a kernel for each shape of a product, in 0.3 ms, and torch and oneDNN keep 1,024 each: half a megabyte and
    more for every number of replies and every length of contexts that ever came. 64 kernels serve about nine sizes of step.
    Measured over 10,000 turns of a very small model: 72 MB of growth with 1,024 kernels, 7 with 64, and 8 % more time.
    """
    spinning = {} if _SPINNING_CHOSEN & environ.keys() else _SPINNING
    return spinning | {name: value for name, value in _KERNELS.items() if name not in environ}
