"""The pieces of a reply: text, reasoning, calls. Only values."""

from __future__ import annotations

from typing import NamedTuple


class Thought(NamedTuple):
    """Whole characters of reasoning."""

    text: str


class Call(NamedTuple):
    """A complete call. `arguments`: the text of a JSON object, as the model wrote it."""

    name: str
    arguments: str


Piece = str | Thought | Call
"""A plain string is text that may be shown: whole characters, never empty."""


class ReplyStep(NamedTuple):
    """The effect of one token: the pieces that became ready, in order, and whether the reply ended."""

    pieces: tuple[Piece, ...]
    stopped: bool = False


NOTHING = ReplyStep(())
"""The effect of a token without a ready piece."""
