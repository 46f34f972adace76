"""Detokenizers of tests, whose tokens are code points."""

from __future__ import annotations

from engine.text.detokenizer import Detokenizer, Spelled


class Letters(Detokenizer):
    """Each token is a letter."""

    holds = False  # type: ignore[assignment]  # no letter is cut

    def __init__(self) -> None:
        """Letters need no vocabulary."""

    def push(self, token_id: int) -> str:
        return chr(token_id)

    def flush(self) -> str:
        return ""


def spell_letter(token_id: int) -> Spelled:
    return Spelled(chr(token_id), chr(token_id).encode())


class Cut(Letters):
    """Ends in the middle of a character."""

    def flush(self) -> str:
        return "\ufffd"
