"""Text of others on a terminal or in a log: none of it commands the terminal, and none of it is invisible. Pure."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return a text with control characters, line ends and invisible characters as escapes."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def printable_lines(text: str) -> str:
    """Return the same with its line ends kept."""
    return "\n".join(map(printable, text.split("\n")))
