"""The environment of processes that read what people send: without the service's settings and secrets.

The engine has a module like this one; neither package imports the other.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

KEPT = frozenset(("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"))
"""Secrets that loading a model needs."""
SECRET = frozenset(
    (
        *("KEY", "KEYS", "APIKEY", "TOKEN", "TOKENS", "AUTH", "AUTHORIZATION", "SECRET", "SECRETS"),
        *("PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "CREDENTIALS", "DSN"),
    )
)
"""Words of a variable's name, between underscores, that mark a secret."""


def child_environment() -> dict[str, str]:
    """Return this process's environment as its children may see it."""
    return without_secrets(os.environ)


def without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are neither the service's settings nor secrets by their names. Pure."""
    return {name: value for name, value in environ.items() if name in KEPT or not _is_hidden(name.upper())}


def _is_hidden(name: str) -> bool:
    return name.startswith("MIDSTREAM_") or not SECRET.isdisjoint(name.split("_"))
