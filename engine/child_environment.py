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
    """Return the variables to add to an environment."""
    spinning = {} if _SPINNING_CHOSEN & environ.keys() else _SPINNING
    return spinning | {name: value for name, value in _KERNELS.items() if name not in environ}
