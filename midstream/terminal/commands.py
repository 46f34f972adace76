"""Which lines are commands, and what they are called. Pure: it carries out none."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

HELP = {
    "/new": "begins another conversation",
    "/list [more]": "lists your conversations, newest first",
    "/search WORDS": "lists those that have these words; /search alone goes on",
    "/open NUMBER": "opens one of the list; its id will do, too",
    "/rename TITLE": "gives the open conversation a title",
    "/delete [NUMBER]": "removes the open conversation, or one of the list, for good",
    "/retry": "has the last reply made anew; the old one stays on a branch",
    "/continue": "has the last reply go on where it was stopped",
    "/edit TEXT": "says your last message otherwise; likewise",
    "/model [NAME]": "lists the models, or has another one answer from now on",
    "/system [TEXT]": "gives the conversation a system prompt; /system off removes it",
    "/tools [on|off]": "lists the tools that the service runs, and whether they are offered to the model",
    "/help": "shows this",
    "/quit": "leaves; so does Ctrl-D",
}
_SAME = {"regenerate": "retry", "again": "retry", "exit": "quit"}
_NAMES = [usage.split()[0].removeprefix("/") for usage in HELP]
NAMES = sorted([*_NAMES, *_SAME])


@dataclass(frozen=True, slots=True)
class Message:
    """A line for the model."""

    content: str


@dataclass(frozen=True, slots=True)
class Command:
    """A line that is answered here; `rest` is what stands behind the name."""

    name: str
    rest: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """A line that begins as a command does and is none. It never reaches the model."""

    name: str

    def __str__(self) -> str:
        near = get_close_matches(self.name.lower(), NAMES, n=1)
        meant = f"did you mean /{near[0]}?" if near else "/help lists those that there are."
        return (
            f"There is no command /{self.name}; {meant} A message that begins with a slash begins with two."
        )


def read(line: str) -> Message | Command | Unknown | None:
    """What a line is; None for a blank one."""
    content = line.strip()
    if not content:
        return None
    if not content.startswith("/"):
        return Message(content)
    if content.startswith("//"):
        return Message(content[1:])
    name, *rest = content[1:].split(maxsplit=1) or [""]
    known = _SAME.get(name, name)
    return Command(known, "".join(rest)) if known in _NAMES else Unknown(name)


def help_lines() -> list[str]:
    """All commands, a line each, and the keys."""
    width = max(map(len, HELP)) + 2
    commands = [f"{usage:<{width}}{what}" for usage, what in HELP.items()]
    keys = {
        "Ctrl-C": "stops the reply; once more, or where none is written, leaves",
        "Alt-Enter": "begins a new line in your message",
        "Up, Ctrl-R": "bring back and find what you typed before",
    }
    return [*commands, "", *(f"{key:<{width}}{what}" for key, what in keys.items())]
