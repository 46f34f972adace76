"""The text of a result for the model: valid characters, up to a limit. Pure."""

from __future__ import annotations

RESULT_BYTES = 64 * 1024
"""Bytes of a result in UTF-8, unless the operator sets another limit."""
REASON_BYTES = 2048
"""Bytes of a tool's message about its failure."""


def cut_to(text: str, limit: int) -> str:
    """Return the text, or its first `limit` bytes of UTF-8 in whole characters with a line that says so.

    Lone surrogates become question marks.
    """
    written = text.encode("utf-8", "replace")
    if len(written) <= limit:
        return written.decode()
    kept = written[:limit].decode("utf-8", "ignore")
    return (
        f"{kept}\n[The result was cut here. It has {len(text)} characters; these are the first {len(kept)}.]"
    )
