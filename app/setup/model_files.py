"""Finds a model's files and their size. Loads and fetches nothing."""

from __future__ import annotations

from pathlib import Path


def weights_of(folder: Path) -> int:
    """Return the bytes of a model's weights."""
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def in_cache(name: str) -> Path | None:
    """Return the folder of a model in the hub's cache, if it is there."""
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415 - it takes a third of a second

    found = try_to_load_from_cache(name, "config.json")
    return Path(found).parent if isinstance(found, str) else None
