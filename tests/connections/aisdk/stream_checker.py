"""The rules that a stream of chunks keeps: those by which the AI SDK's own reader makes a message of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_LAST = {"finish", "abort", "error"}
_OTHERS = (
    _LAST | {"start", "message-metadata"} | {f"tool-output-{end}" for end in ("available", "error", "denied")}
)
"""The call of an outcome may be in a message that goes on."""


def check(chunks: Iterable[dict[str, Any]], *, whole: bool = True) -> None:
    """Raises AssertionError where a stream is not one that its reader takes. `whole`: it has come to its end."""
    reported = list(chunks)
    assert not reported or reported[0]["type"] in ("start", "error"), reported[:1]
    assert [chunk["type"] for chunk in reported[1:]].count("start") == 0, "a message starts once"
    assert not _LAST & {chunk["type"] for chunk in reported[:-1]}, "nothing comes behind the end"
    rules = _Rules()
    for chunk in reported:
        rules.take(chunk)
    assert not whole or reported[-1]["type"] in _LAST, reported[-1:]
    assert not whole or not rules.parts


class _Rules:
    def __init__(self) -> None:
        self.parts: set[str] = set()
        self._calls: set[str] = set()
        self._in_step = False

    def take(self, chunk: dict[str, Any]) -> None:
        match chunk:
            case {"type": "start-step" | "finish-step" as kind}:
                assert self._in_step == (kind == "finish-step")
                assert not self.parts, "a step ends when its parts have"
                self._in_step = not self._in_step
            case {"type": "text-start" | "reasoning-start", "id": number}:
                assert self._in_step
                assert not self.parts, "one part is open at a time"
                self.parts.add(number)
            case {"type": "text-delta" | "reasoning-delta", "id": number, "delta": text}:
                assert number in self.parts
                assert text
            case {"type": "text-end" | "reasoning-end", "id": number}:
                self.parts.remove(number)
            case {"type": "tool-input-available", "toolCallId": call}:
                assert self._in_step
                assert not self.parts
                self._calls.add(call)
            case {"type": "tool-approval-request", "toolCallId": call}:
                assert call in self._calls
            case {"type": kind}:
                assert kind in _OTHERS
