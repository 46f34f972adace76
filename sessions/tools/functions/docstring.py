"""Reads the description of a function and of its parameters from its docstring. Pure.

Two styles are supported: a section `Args:` (Google's style guide, section 3.8.3), and lines `:param name:` (Sphinx).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import msgspec

_SECTION = re.compile(
    r"^(Args|Arguments|Parameters|Returns|Return|Yields|Raises|Examples?|Notes?):\s*$", re.MULTILINE
)
_ENTRY = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.*)$")
_FIELD = re.compile(r"^:(\w+)\s*([^:]*):\s*(.*)$")
_PARAMETERS = {"Args", "Arguments", "Parameters"}


class ParsedDocstring(msgspec.Struct, frozen=True):
    """`description`: the text above the sections; `parameters`: descriptions by name."""

    description: str
    parameters: dict[str, str]


def parse_docstring(docstring: str | None) -> ParsedDocstring:
    """Read a docstring; one in neither style is all description."""
    text = inspect.cleandoc(docstring or "")
    above, *sections = _parted(text)
    words, fields = _without_fields(above[1])
    parameters = dict(fields)
    for name, body in sections:
        if name in _PARAMETERS:
            parameters |= dict(_entries(body))
    return ParsedDocstring(description=words, parameters=parameters)


def _parted(text: str) -> list[tuple[str, str]]:
    """Return the text above the first section, under no name, and each section."""
    pieces = _SECTION.split(text)
    return [("", pieces[0]), *zip(pieces[1::2], pieces[2::2], strict=True)]


def _without_fields(text: str) -> tuple[str, list[tuple[str, str]]]:
    """Return the text without the parameters' fields, and those fields."""
    lines, fields, inside = [], [], False
    for line in text.splitlines():
        if (found := _FIELD.match(line)) is not None:
            inside = True
            if found[1] == "param":
                fields.append((found[2].split()[-1] if found[2].split() else "", found[3]))
        elif inside and line.startswith((" ", "\t")) and fields:
            fields[-1] = (fields[-1][0], f"{fields[-1][1]} {line.strip()}".strip())
        else:
            inside = False
            lines.append(line)
    return "\n".join(lines).strip(), fields


def _entries(body: str) -> Iterator[tuple[str, str]]:
    """Yield the entries of a section. Each begins at the section's own indentation, and may continue below it."""
    block = inspect.cleandoc(f"\n{body.strip(chr(10))}")
    name, words = "", [""]
    for line in block.splitlines():
        found = None if line.startswith((" ", "\t")) else _ENTRY.match(line)
        if found is None:
            words.append(line.strip())
            continue
        if name:
            yield name, " ".join(words).strip()
        name, words = found[1], [found[2]]
    if name:
        yield name, " ".join(words).strip()
