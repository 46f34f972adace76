"""`python -m tests.bench.page.scripted_server`: the service over an engine that answers a numbered question at once, in Markdown.

A reply begins with `R7.` and ends with `E7.`, so that a page can be watched for both. Open WebUI's own requests, for
titles and the like, get answers of the form that it wants.
"""

from __future__ import annotations

import json
import os
import re

import uvloop

from app import logs, memory
from app.server import listen
from app.service import composed
from app.settings import Settings
from engine.api import Streamer
from engine.messages import Request
from engine.scripted import ScriptedEngine, words_of

COMMAND = ("tests.bench.page.scripted_server",)
MODEL = "talker"
PACE_S = 0.002
CODE_EVERY = 5
CODE = "".join(f"total_{n} = sum(values[{n}:]) + {n * 7}\n" for n in range(8))
TASK = json.dumps({"title": "A long talk", "tags": ["talk"], "follow_ups": ["And then?"]})
_NUMBER = re.compile(r"Question (\d+)")


def question(number: int) -> str:
    """Return the question of a turn."""
    return f"Question {number}: what comes next, and why?"


def reply(number: int) -> str:
    """Return the answer: some eighty words, and code in every fifth turn."""
    text = (
        f"R{number}. What comes next is **the part that follows**, and it follows *because* the one before it ended. "
        f"There is more to say of it, in three points:\n\n"
        f"- the first of them is short, and has `value_{number}` in it\n"
        f"- the second one goes on for somewhat longer, as second points are used to, and then it ends\n"
        f"- the third is [a link](https://example.org/{number}), since replies have some\n\n"
    )
    code = f"```python\n{CODE}```\n\n" if number % CODE_EVERY == 0 else ""
    return f"{text}{code}So much for number {number}; the next one will not be so very different. E{number}."


class _Engine(ScriptedEngine):
    """Answers each question, and does not keep its requests."""

    def __init__(self) -> None:
        super().__init__(context_tokens=1_000_000, pace_s=PACE_S)

    def generate(self, request: Request) -> Streamer:
        requested = request.messages[-1].content
        found = _NUMBER.match(requested)
        self.script(words_of(reply(int(found[1])) if found else TASK))
        stream = super().generate(request)
        self.requests.clear()
        return stream


async def _serve(settings: Settings) -> None:
    with listen(settings.host, settings.port) as listener:
        async with composed(settings, _Engine()) as service:
            await service.run(listener)


if __name__ == "__main__":
    read = Settings.read(os.environ)
    logs.set_up(style=read.log_format, level=read.log_level)
    memory.set_up()  # as the product's command does
    uvloop.run(_serve(read))
