"""`python -m tests.clients.tools.scripted_server`: the service over an engine that calls what it is shown.

So each step of a client's loop is known, whatever a model would have done. Settings come from the environment.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

import msgspec
import uvloop

from app import logs
from app.server import listen
from app.service import composed
from app.settings import Settings
from engine.api import Streamer
from engine.messages import Message, Request
from engine.scripted import FEATURES, Call, ScriptedEngine, Step, Thought, words_of

COMMAND = ("tests.clients.tools.scripted_server",)
CITY = "Oslo"
GREETING = "Good evening!"
"""The message that no tool is called for."""
NOTHING = "There is nothing to call."
ARGUMENTS = {
    "get_weather": {"city": CITY},
    "transfer_to_forecaster": {},
    "read": {"filePath": "weather.txt"},
    "Read": {"file_path": "weather.txt"},
    "exec_command": {"cmd": "cat weather.txt"},
    "get_current_timestamp": {},
    "ToolSearch": {"query": "select:WebFetch"},
}
"""What it calls tools of these names with, where nobody says which tool it has to call: the one that the message names, or the first."""
PERSON = {"name": "Ada", "age": 36}
"""What it calls any other tool with, where it has to."""
NEVER_ENOUGH = "Look again and again"
"""Whoever asks for that has the same tool called for as long as it is shown."""
COUNT = ", ".join(map(str, range(1, 501)))
TITLE = json.dumps({"title": "The weather in Oslo", "tags": ["weather"], "follow_ups": ["And tomorrow?"]})


class _Engine(ScriptedEngine):
    """Calls a tool, and says what the tool said."""

    def generate(self, request: Request) -> Streamer:
        self.script(_steps(request))
        return super().generate(request)


def _steps(request: Request) -> Sequence[Step]:
    """Call what is asked for, say what a tool said, or call what it knows to call."""
    choice = request.spec.tool_choice
    last = next(
        one for one in reversed(request.messages) if one.role != "system"
    )  # Claude Code ends with one
    names = [tool.name for tool in request.spec.shown_tools]
    if names and choice != "auto":  # named, or required: then it takes what is no tool of its own
        others = [name for name in names if name not in ARGUMENTS]
        called = choice if choice in names else next(iter(others), names[0])
        return [Call(called, json.dumps(ARGUMENTS.get(called, PERSON)))]
    wants_call = last.role == "user" or _repeats_calls(request) or _is_handed_over(last)
    answers = any(words in last.content for words in (GREETING, "Count"))
    if wants_call and request.spec.format is None and not answers:
        for name in sorted(ARGUMENTS, key=lambda name: name not in last.content):
            if name in names:
                return [*_thoughts(request), "Let me see.", Call(name, json.dumps(ARGUMENTS[name]))]
    return words_of(_text(request, last))


def _thoughts(request: Request) -> Sequence[Step]:
    """It thinks where it is told to."""
    return [Thought("Who knows"), Thought("?")] if request.spec.template.get("enable_thinking") else []


def _repeats_calls(request: Request) -> bool:
    """Whether no result is enough for who asked."""
    return any(message.role == "user" and NEVER_ENOUGH in message.content for message in request.messages)


def _is_handed_over(last: Message) -> bool:
    """Whether another agent goes on from here: so the agents SDKs say it."""
    return last.role == "tool" and "assistant" in last.content


def _text(request: Request, last: Message) -> str:
    if last.role == "tool":
        return f"The weather in {CITY}: {last.content}."
    if request.spec.format is not None:
        return json.dumps(PERSON)
    if "### Task:" in last.content:  # what Open WebUI asks on its own account
        return TITLE
    return COUNT if "Count" in last.content else NOTHING


async def _serve(settings: Settings) -> None:
    features = tuple(feature for feature in FEATURES if feature != "effort")  # as most models
    engine = _Engine(context_tokens=100_000, pace_s=0.02, features=features)
    with listen(settings.host, settings.port) as listener:
        async with composed(settings, engine) as service:
            await service.run(listener)


if __name__ == "__main__":
    fixed = msgspec.json.decode(sys.argv[1]) if sys.argv[1:] else {}
    read = msgspec.structs.replace(Settings.read(os.environ), **fixed)
    logs.set_up(style=read.log_format, level=read.log_level)
    uvloop.run(_serve(read))
