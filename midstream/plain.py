"""Reasoning and calls in the lines of a terminal: a line each, bounded, without what would steer the terminal. Pure."""

from __future__ import annotations

from typing import Any

from midstream.calls import Call

Frame = dict[str, Any]
LINE_CHARS = 200
"""Of arguments and results; the rest of them is left out, but where somebody is asked to allow them."""
MAX_TOOLS = 128

_WORDS = {
    "waiting": "is about to run",
    "running": "runs",
    "denied": "not allowed",
    "cancelled": "stopped",
    "expired": "nobody answered in time",
    "lost": "interrupted: nobody knows whether it was carried out",
}


def thought_for(seconds: float | None) -> str:
    """What is said of a thought once it has ended; None where its time is not known."""
    if seconds is None:
        return "Thought"
    return f"Thought for {round(seconds)} s" if seconds >= 1 else "Thought for a moment"


def call_line(call: Call) -> str:
    """A call and where it is."""
    return f"[{_clean(call.name)} {_line(call.args)}: {_state(call)}]"


def question(call: Call) -> str:
    """What is asked of whoever may allow a call: with all of its arguments."""
    return f"Allow {_clean(call.name)} {_clean(call.args)}? [y/n] "


def tool_lines(ready: Frame) -> list[str]:
    """The server's tools, a line each."""
    tools = ready.get("tools") or ()
    return [_tool_line(tool) for tool in tools] or ["This service has no tools."]


def offered(ready: Frame, model: str | None) -> list[Frame]:
    """The server's tools, as a message offers them; none where the model that is asked can't call. None: the default model."""
    asked: Frame = next(
        (one for one in ready.get("models", ()) if one["name"] == (model or ready["model"])), {}
    )
    if not {"tools", "tools.auto"} & set(asked.get("features", ())):
        return []
    return [{"name": tool["name"], "where": "server"} for tool in ready.get("tools") or ()][:MAX_TOOLS]


def _tool_line(tool: Frame) -> str:
    asks = " (asks first)" if tool["approval"] == "always" else ""
    return f"{_clean(tool['name'])}{asks}: {_line(tool['description'])}"


def _state(call: Call) -> str:
    if call.asks:
        return "asks for your permission"
    if call.state == "done":
        return f"failed: {_line(call.error or '')}" if call.content is None else _line(call.content)
    if call.is_open and call.where == "client":
        return "waits for another program; Ctrl-C gives it up"
    if call.state == "running" and call.progress is not None:
        return f"runs, {int(call.progress * 100)} %{' ' if call.message else ''}{_line(call.message)}"
    return _WORDS[call.state]


def _line(text: str) -> str:
    """The beginning of a text, on one line."""
    clean = _clean(" ".join(text[: 4 * LINE_CHARS].split()))
    return clean if len(clean) <= LINE_CHARS and len(text) <= 4 * LINE_CHARS else f"{clean[:LINE_CHARS]}…"


def _clean(text: str) -> str:
    """A text without characters that steer a terminal, or that are not seen: as escapes."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
