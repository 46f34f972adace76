"""The text of one reply as it is, for pipes and terminals without Markdown. Written text can't be removed."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TextIO

_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Characters that terminals obey, and those that change the order or the lines of the text around them."""


def clean(text: str) -> str:
    """Return a text with line feeds as line ends, and with characters that change what is shown around as escapes."""
    return _STEERING.sub(lambda char: char[0].encode("unicode_escape").decode(), text.replace("\r\n", "\n"))


class PlainPage:
    """Writes text as it comes, through `writes`, which may remove control characters."""

    def __init__(self, stream: TextIO, writes: Callable[[str], str] = str) -> None:
        self._stream = stream
        self._writes = writes
        self._written = 0
        self._is_midline = False

    def show(self, text: str) -> None:
        """Write the new part of the text."""
        if new := self._writes(text[self._written :]):
            self._stream.write(new)
            self._stream.flush()
            self._is_midline = not new.endswith("\n")
        self._written = max(self._written, len(text))

    def settle(self) -> None:
        """End the line."""
        if self._is_midline:
            self._is_midline = False
            self._stream.write("\n")
            self._stream.flush()

    def end(self, text: str) -> bool:
        """Write the rest; return whether more was written before."""
        was_more = self._written > len(text)
        self.show(text)
        self.settle()
        return was_more
