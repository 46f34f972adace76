"""What a reply is made of: text, what the model thinks aloud, calls. Values alone."""

from __future__ import annotations

from typing import NamedTuple


class Thought(NamedTuple):
    """Whole characters of what the model thinks aloud."""

    text: str


class Call(NamedTuple):
    """A call that was written to its end. `arguments`: the text of a JSON object, as the model wrote it."""

    name: str
    arguments: str


Piece = str | Thought | Call
"""A plain string is text that may be shown: whole characters, never none."""


class ReplyStep(NamedTuple):
    """What one token did to a reply: the pieces that became ready, in order, and whether it ended the reply."""

    pieces: tuple[Piece, ...]
    stopped: bool = False


NOTHING = ReplyStep(())
"""A token by which nothing became ready."""
