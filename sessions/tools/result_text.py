"""The text of a result as the model gets it: characters that can be written, and no more of them than the limit. Pure."""

from __future__ import annotations

RESULT_BYTES = 64 * 1024
"""Of a result, in UTF-8, where the operator sets nothing else."""
REASON_BYTES = 2048
"""Of what a tool says about its failure."""


def cut_to(text: str, limit: int) -> str:
    """Return the text, or its first `limit` bytes of UTF-8 in whole characters with a line that says how much is missing.

    Lone surrogates become question marks.
    """
    written = text.encode("utf-8", "replace")
    if len(written) <= limit:
        return written.decode()
    kept = written[:limit].decode("utf-8", "ignore")
    return (
        f"{kept}\n[The result was cut here. It has {len(text)} characters; these are the first {len(kept)}.]"
    )
