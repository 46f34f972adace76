"""The most bytes of text that one token can stand for. They tell without a tokenizer that a text can't fit a window."""

from __future__ import annotations

import json
from typing import Any

Parts = dict[str, Any]

NFC_SHRINKS = 3
"""Composed text has at least a third of the bytes, like a Hangul syllable of three letters (UAX #15, section 4)."""


def longest_token_bytes(tokenizer: Any) -> int | None:
    """Return the most bytes of text that one token stands for; None if there is no known bound.

    There is none if a normalizer removes characters, if several unknown ones become one token, or if a token absorbs
    the white space around it.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    parts: Parts = json.loads(backend.to_str())
    shrinks = _shrinks(parts["normalizer"])
    is_byte_level = "ByteLevel" in _kinds(parts["pre_tokenizer"], "pretokenizers")
    knows_all = is_byte_level or parts["model"].get("byte_fallback", False)
    added = {token["content"]: token["lstrip"] or token["rstrip"] for token in parts["added_tokens"]}
    if shrinks is None or not knows_all or any(added.values()):
        return None
    return shrinks * max(
        len(piece) if is_byte_level and piece not in added else len(piece.encode())
        for piece in tokenizer.get_vocab()
    )


def _shrinks(normalizer: Parts | None) -> int | None:
    """Return the largest factor by which a normalizer shortens a text; None if it is unknown."""
    kinds = _kinds(normalizer, "normalizers")
    if not set(kinds) <= {"NFC", "Prepend", "Replace"} or not _only_spaces_are_replaced(normalizer or {}):
        return None
    return NFC_SHRINKS if "NFC" in kinds else 1


def _only_spaces_are_replaced(normalizer: Parts) -> bool:
    """Return whether each replacement replaces a space by sentencepiece's character for it, which has more bytes."""
    steps = normalizer.get("normalizers", [normalizer])
    replaced = [step for step in steps if step.get("type") == "Replace"]
    return all(step["pattern"] == {"String": " "} and len(step["content"]) == 1 for step in replaced)


def _kinds(part: Parts | None, inner: str) -> list[str]:
    return [] if part is None else [step["type"] for step in part.get(inner, [part])]
