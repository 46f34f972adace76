"""Pieces of Lark in llguidance's dialect: texts, control tokens, terminals. Pure.

Source: llguidance's docs/syntax.md. A literal matches the bytes of a text. A control token matches no text, so rules
name it by its id.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

ANY = r"(?s:.)"
SPACE = r"[ \t\n\r]"
LONGEST_SPACE = 4
"""The most characters of white space around thoughts and calls. Without a bound a model might write nothing else."""

_CONTROLS = re.compile(r"<\[([0-9,]+)\]>")
_MEANING = re.compile(r"([\\.+*?()|\[\]{}^$/])")


def symbols(text: str, specials: Mapping[str, int]) -> str:
    """Return the symbols of a text in a rule: literals, and the ids of the control tokens that it spells out."""
    return " ".join(_symbol(piece, specials) for piece in _pieces(text, specials))


def begins_special(text: str, specials: Mapping[str, int]) -> bool:
    """Whether a text begins with a control token."""
    return any(text.startswith(name) for name in specials)


def pattern(text: str) -> str:
    """Return a regular expression that matches one text, to be put between slashes."""
    return _MEANING.sub(r"\\\1", text).replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")


def any_of(ids: Iterable[int]) -> str:
    """Return the symbol that matches any one of these control tokens."""
    return f"<[{','.join(map(str, sorted(ids)))}]>"


def controls_in(frame: str) -> set[int]:
    """Return the ids of the control tokens that rules name."""
    return {int(id_) for ids in _CONTROLS.findall(frame) for id_ in ids.split(",")}


def literal(text: str) -> str:
    """Return the literal of a text."""
    return json.dumps(text)


def _symbol(piece: str, specials: Mapping[str, int]) -> str:
    return f"<[{specials[piece]}]>" if piece in specials else literal(piece)


def _pieces(text: str, specials: Mapping[str, int]) -> list[str]:
    if not specials:
        return [text] if text else []
    names = "|".join(re.escape(name) for name in sorted(specials, key=len, reverse=True) if name)
    return [piece for piece in re.split(f"({names})", text) if piece]
