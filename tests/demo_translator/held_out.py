"""Sentences of the bundled translator's language that its training never saw: `held_out.json`."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec


class Pair(NamedTuple):
    """A text in English, and its only right translation into Chinese."""

    english: str
    chinese: str


class _HeldOut(msgspec.Struct):
    sentences: dict[str, list[Pair]]
    documents: list[list[Pair]]


_held_out = msgspec.json.decode(Path(__file__).with_suffix(".json").read_bytes(), type=_HeldOut)
SENTENCES = _held_out.sentences
"""Twelve sentences of each skill."""
DOCUMENTS = _held_out.documents
"""A hundred documents of three to five sentences."""
