"""Replaces what differs between two runs of a dialogue, and nothing else: ids that were drawn, and times. Pure."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

_HEX = "[0-9a-f]{32}|[0-9a-f]{24}|[0-9a-f]{20}|[0-9a-f]{16}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_PREFIX = "(?:turn|msg|item|call|req|rsn|rs|fco?|resp|cmpl|chatcmpl|cmp|mcp[alr]?)[_-](?!approval_re)"
_DRAWN = re.compile(
    rf"(?<![0-9A-Za-z_-])(?:(tool_)[0-9A-Za-z_-]{{16}}_call_[0-9A-Za-z_-]{{16}}(?![0-9A-Za-z_-])|(resp_)[0-9A-Za-z_-]{{16}}\.[a-z]+[_-][0-9a-f]{{20,32}}(?![0-9A-Za-z])"
    rf"|((?:[a-z]+[_-])*)(?:{_HEX})(?![0-9A-Za-z])"
    rf"|({_PREFIX})[0-9A-Za-z_-]{{16}}(?=(?:_\d+)?(?:_output)?(?![0-9A-Za-z_-])))"
    r"|(?<=_)(63616c6c5f)[0-9a-f]{32}(?![0-9A-Za-z])"
)
"""An id that somebody drew: 16 to 32 hexadecimal digits behind any prefixes, or 16 characters of base64 behind known ones, or `call_`
and 16 characters in hexadecimal digits.

Longer ones are digests, which are the same in each run.
"""
_NAMED = re.compile(r"<([a-z-]*)(\d+)>")
_TIMES = frozenset(
    {"created", "created_at", "completed_at", "updated_at", "expires_at", "at", "timestamp", "reset_s"}
)
_ISO = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)|(?<=try again in )\d+(?= s\.)"
)


def _is_time(value: Any, key: str) -> bool:
    """Return whether a value is a time; seconds that a header gives are one from ten on."""
    match value:
        case str():
            return key == "retry-after" and len(value) > 1
        case int() | float() if not isinstance(value, bool):
            return key in _TIMES or key.endswith("_ms")
        case _:
            return False


class Placeholders:
    """The names that one run of a dialogue gives to drawn ids, in the order in which they appear: `<turn1>`, `<turn2>`."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._drawn: dict[str, str] = {}
        self._count = Counter[str]()

    def masked(self, value: Any, key: str = "") -> Any:
        """Return a value in which drawn ids have names, and times are `<time>`."""
        match value:
            case dict():
                return {self.masked(name): self.masked(one, name) for name, one in value.items()}
            case list():
                return [self.masked(one, key) for one in value]
            case str() if key == "share_id":
                return self._named(value, "share")
            case str() if not _is_time(value, key):
                return _DRAWN.sub(self._name, _ISO.sub("<time>", value))
            case _ if _is_time(value, key):
                return "<time>"
            case _:
                return value

    def unmasked(self, value: Any) -> Any:
        """Return a value in which names are the ids of this run. Raises KeyError for a name that was not seen yet."""
        match value:
            case dict():
                return {name: self.unmasked(one) for name, one in value.items()}
            case list():
                return [self.unmasked(one) for one in value]
            case str():
                return _NAMED.sub(lambda found: self._drawn[found[0]], value)
            case _:
                return value

    def _name(self, found: re.Match[str]) -> str:
        kind = found[1] or found[2] or found[3] or found[4] or (found[5] and "hexcall") or "id"
        return self._named(found[0], kind.rstrip("_-").replace("_", "-"))

    def _named(self, drawn: str, kind: str) -> str:
        if drawn not in self._names:
            self._count[kind] += 1
            self._names[drawn] = name = f"<{kind}{self._count[kind]}>"
            self._drawn[name] = drawn
        return self._names[drawn]
