"""What an engine's process is started with."""

from __future__ import annotations

import msgspec


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one engine. `model` is a hub name or a folder; None and "auto" leave the choice to the loader.

    `kv_bytes` bounds the memory for keys and values.
    """

    model: str
    device: str = "auto"
    dtype: str = "auto"
    max_batch: int | None = None
    kv_bytes: int | None = None
