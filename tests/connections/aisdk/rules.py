"""The rules that a stream of chunks keeps: those by which the AI SDK's own reader makes a message of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_LAST = {"finish", "abort", "error"}


def check(chunks: Iterable[dict[str, Any]], *, whole: bool = True) -> None:
    """Raises AssertionError where a stream is not one that its reader takes. `whole`: it has come to its end."""
    told = list(chunks)
    assert not told or told[0]["type"] in ("start", "error"), told[:1]
    parts: set[str] = set()
    calls: set[str] = set()
    in_step = False
    for place, chunk in enumerate(told):
        match chunk:
            case {"type": "start"}:
                assert place == 0, "a message starts once"
            case {"type": "start-step"}:
                assert not in_step
                in_step = True
            case {"type": "finish-step"}:
                assert in_step
                assert not parts, "a step ends when its parts have"
                in_step = False
            case {"type": "text-start" | "reasoning-start", "id": number}:
                assert in_step
                assert not parts, "one part is open at a time"
                parts.add(number)
            case {"type": "text-delta" | "reasoning-delta", "id": number, "delta": text}:
                assert number in parts
                assert text
            case {"type": "text-end" | "reasoning-end", "id": number}:
                parts.remove(number)
            case {"type": "tool-input-available", "toolCallId": call}:
                assert in_step
                assert not parts
                calls.add(call)
            case {"type": "tool-approval-request", "toolCallId": call}:
                assert call in calls
            case {"type": "tool-output-available" | "tool-output-error" | "tool-output-denied"}:
                pass  # its call may be in a message that goes on
            case {"type": "message-metadata"}:
                assert chunk["messageMetadata"]
            case {"type": last}:
                assert last in _LAST
                assert place == len(told) - 1, "nothing comes behind the end"
                assert not parts
    assert not whole or told[-1]["type"] in _LAST, told[-1:]
