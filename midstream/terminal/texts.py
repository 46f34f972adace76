"""The terminal's texts about replies, calls and conversations: bounded lines, without control characters. Pure."""

from __future__ import annotations

import re

from midstream.reply import Call, Status
from midstream.server_connection import Frame

LINE_CHARS = 200
"""Characters of arguments and results; the rest is left out, except in questions for permission."""
MAX_TOOLS = 128

TITLE_CHARS = 60

_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Characters that terminals obey, and those that change the order or the lines of the text around them."""
_ENDS = {
    "cancelled": "stopped; /continue resumes it",
    "length": "the reply reached its length limit; /continue resumes it",
    "timeout": "it took too long; /continue resumes it",
    "interrupted": "the service was interrupted; /continue resumes it",
    "error": "the service failed; /continue resumes it",
    "filtered": "stopped by a content filter",
    "disconnected": "the connection is lost",
}
_WHOLE = {"complete", "stop", "tools", "running"}
_WORDS = {
    "waiting": "is about to run",
    "running": "runs",
    "denied": "not allowed",
    "cancelled": "stopped",
    "expired": "not answered in time",
    "lost": "interrupted: the outcome is unknown",
}


def status_text(status: Status) -> str:
    """Return what a reply waits for; empty if its text does not wait."""
    match status:
        case Status("queued", int(position)) if position > 1:
            return f"{position - 1} ahead of you"
        case Status("queued", 1):
            return "Waiting, you are next"
        case Status("queued"):
            return "Waiting"
        case Status("retrying" | "fallback" as state):
            return "Trying again" if state == "retrying" else "Trying elsewhere"
        case _:
            return ""


def end_text(reason: str) -> str:
    """Return how a reply with this reason, or this status in the history, ended; empty if it is complete."""
    return "" if reason in _WHOLE else f"[{_ENDS.get(reason, reason)}]"


def kept_up_to(text: str) -> str:
    """Return the note that less of a reply is kept than was shown: another device, or a filter, cut it."""
    return f"[kept up to {quoted(text[-TITLE_CHARS:])}]" if text.strip() else "[nothing was kept]"


def quoted(title: str) -> str:
    """Return a title on one line."""
    line = escaped(" ".join(title.split()))
    return f"“{line if len(line) <= TITLE_CHARS else f'{line[:TITLE_CHARS]}…'}”"


def facts(row: Frame, now_ms: float) -> str:
    """Return the size and the age of a listed conversation."""
    count = row["messages"]
    return f"{count} message{'' if count == 1 else 's'}, {ago(row['updated_at'], now_ms)}"


def ago(then_ms: int, now_ms: float) -> str:
    """Return how long ago something was; both times are Unix milliseconds."""
    minutes = max(0, int((now_ms - then_ms) / 60_000))
    for size, name in ((24 * 60, "day"), (60, "hour"), (1, "minute")):
        if minutes >= size:
            count = minutes // size
            return f"{count} {name}{'' if count == 1 else 's'} ago"
    return "just now"


def reasoning_text(seconds: float | None) -> str:
    """Return the note of ended reasoning; None if its duration is not known."""
    if seconds is None:
        return "Thought"
    return f"Thought for {round(seconds)} s" if seconds >= 1 else "Thought for a moment"


def call_line(call: Call) -> str:
    """Return a call and its state."""
    return f"[{escaped(call.name)} {_line(call.args)}: {_state(call)}]"


def permission(call: Call) -> str:
    """Return the question whether a call may run, with all of its arguments."""
    return f"Allow {escaped(call.name)} {escaped(call.args)}? [y/n] "


def model_named(ready: Frame, name: str) -> Frame:
    """Return a model by its name or an alias; empty if there is none."""
    models: list[Frame] = ready.get("models", [])
    return next((one for one in models if name in (one["name"], *one.get("aliases", ()))), {})


def requested_model(done: Frame) -> str | None:
    """Return the model to request again after a reply: the one requested for it, even if a fallback wrote it."""
    return done.get("requested_model") or done.get("model")


def offered_tools(ready: Frame, model: str | None) -> list[Frame]:
    """Return the server's tools as a message offers them; none if the model can't call. `model`: None: the default."""
    model_row = model_named(ready, model or ready["model"])
    if not {"tools", "tools.auto"} & set(model_row.get("features", ())):
        return []
    return [{"name": tool["name"], "where": "server"} for tool in ready.get("tools") or ()][:MAX_TOOLS]


def _state(call: Call) -> str:
    if call.needs_decision:
        return "needs your permission"
    if call.state == "done":
        return f"failed: {_line(call.error or '')}" if call.content is None else _line(call.content)
    if call.is_open and call.where == "client":
        return "is waiting for another program; Ctrl-C cancels it"
    return _WORDS[call.state]


def _line(text: str) -> str:
    """Return the beginning of a text, on one line."""
    line = escaped(" ".join(text[: 4 * LINE_CHARS].split()))
    return line if len(line) <= LINE_CHARS and len(text) <= 4 * LINE_CHARS else f"{line[:LINE_CHARS]}…"


def escaped(text: str) -> str:
    """Return a text with control characters and invisible characters as escapes."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def clean(text: str) -> str:
    """Return a text with line feeds as line ends; characters that change how the text around them is shown are escaped."""
    return _STEERING.sub(lambda char: char[0].encode("unicode_escape").decode(), text.replace("\r\n", "\n"))
