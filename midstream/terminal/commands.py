"""Which lines are commands, and their names. Pure: it runs none."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

HELP = {
    "/new": "begins another conversation",
    "/list [more]": "lists your conversations, newest first",
    "/search WORDS": "lists those with these words; /search alone continues",
    "/open NUMBER": "opens one of the list, by its number or its id",
    "/rename TITLE": "gives the open conversation a title",
    "/delete [NUMBER]": "removes the open conversation, or one of the list, for good",
    "/retry": "generates the last reply again; the old one stays on a branch",
    "/continue": "continues the last reply where it was stopped",
    "/edit TEXT": "edits your last message; the old one stays on a branch",
    "/model [NAME]": "lists the models, or chooses the one that answers from now on",
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
    """A line that is answered here; `rest` is what follows the name."""

    name: str
    rest: str


@dataclass(frozen=True, slots=True)
class UnknownCommand:
    """A line that looks like a command but is none. It never reaches the model."""

    name: str

    def __str__(self) -> str:
        near = get_close_matches(self.name.lower(), NAMES, n=1)
        meant = f"did you mean /{near[0]}?" if near else "/help lists all commands."
        return (
            f"There is no command /{self.name}; {meant} A message that begins with a slash begins with two."
        )


def read(line: str) -> Message | Command | UnknownCommand | None:
    """Return the kind of a line; None for a blank one."""
    content = line.strip()
    if not content:
        return None
    if not content.startswith("/"):
        return Message(content)
    if content.startswith("//"):
        return Message(content[1:])
    name, *rest = content[1:].split(maxsplit=1) or [""]
    known = _SAME.get(name, name)
    return Command(known, "".join(rest)) if known in _NAMES else UnknownCommand(name)


def help_lines() -> list[str]:
    """Return all commands, a line each, and the keys."""
    width = max(map(len, HELP)) + 2
    commands = [f"{usage:<{width}}{what}" for usage, what in HELP.items()]
    keys = {
        "Ctrl-C": "stops the reply; a second one, or one without a reply, leaves",
        "Alt-Enter": "begins a new line in your message",
        "Up, Ctrl-R": "bring back and find what you typed before",
    }
    return [*commands, "", *(f"{key:<{width}}{what}" for key, what in keys.items())]
