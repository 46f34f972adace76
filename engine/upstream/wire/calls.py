"""Puts together calls that an upstream sends in parts. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from engine.errors import EngineLost
from engine.upstream.wire.chunks import CallPart

MAX_CALLS = 128
"""The most calls of one reply."""
MAX_CALL_BYTES = 1 << 20
"""The most characters of the names and arguments of all calls of one reply; each takes a byte or more."""
_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,256}\Z")
_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}\Z")


class CompleteCall(msgspec.Struct, frozen=True):
    """A whole call. `is_valid`: it has a name, and its arguments are a JSON object; else it is text."""

    name: str
    arguments: str
    call_id: str
    is_valid: bool

    @property
    def text(self) -> str:
        """Its text, if it is no valid call."""
        return f"{self.name}({self.arguments})" if self.name else self.arguments


class _PartialCall:
    __slots__ = ("arguments", "call_id", "index", "name")

    def __init__(self, index: int | None) -> None:
        self.index = index
        self.name = ""
        self.call_id = ""
        self.arguments: list[str] = []

    def extend(self, part: CallPart) -> int:
        """Take a part; return how long it is."""
        self.call_id = self.call_id or part.id or ""
        function = part.function
        if function is None:
            return 0
        arguments = function.arguments or ""
        text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
        self.name += function.name or ""
        self.arguments.append(text)
        return len(function.name or "") + len(text)

    def is_another(self, part: CallPart) -> bool:
        """Whether a part belongs to another call, by its index, or, without one, by a name or an id of its own."""
        if part.index is not None or self.index is not None:
            return part.index != self.index
        begins = part.function is not None and bool(part.function.name)
        return begins or bool(part.id and part.id != self.call_id)


class ToolCallAssembler:
    """Puts calls together. One call is open at a time; the next one, text, or the end of the reply closes it."""

    def __init__(self, name: str) -> None:
        """Take the upstream's name, for errors."""
        self._upstream = name
        self._open: _PartialCall | None = None
        self._calls = 0
        self._size = 0

    def take(self, parts: Sequence[CallPart]) -> list[CompleteCall]:
        """Take parts; return the calls that are whole now. Raises EngineLost if there are too many, or too large ones."""
        whole: list[CompleteCall] = []
        for part in parts:
            if self._open is None or self._open.is_another(part):
                whole += self.close()
                self._begin(part)
            assert self._open is not None  # noqa: S101 - one was begun
            self._size += self._open.extend(part)
            if self._size > MAX_CALL_BYTES:
                raise EngineLost(
                    f"The engine {self._upstream} sent calls of more than {MAX_CALL_BYTES} bytes."
                )
        return whole

    def close(self) -> list[CompleteCall]:
        """Return the open call, which is whole now, if there is one."""
        opened, self._open = self._open, None
        return [] if opened is None else [_whole(opened)]

    def _begin(self, part: CallPart) -> None:
        self._calls += 1
        if self._calls > MAX_CALLS:
            raise EngineLost(f"The engine {self._upstream} sent more than {MAX_CALLS} calls in one reply.")
        self._open = _PartialCall(part.index)


def _whole(opened: _PartialCall) -> CompleteCall:
    arguments = "".join(opened.arguments).strip()
    call_id = opened.call_id if _ID.match(opened.call_id) else ""
    is_valid = _NAME.match(opened.name) is not None and _is_object(arguments or "{}")
    return CompleteCall(opened.name, (arguments or "{}") if is_valid else arguments, call_id, is_valid)


def _is_object(text: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False
