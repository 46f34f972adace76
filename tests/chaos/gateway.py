"""`python -m tests.chaos.gateway`: the service over a scripted engine, to measure the gateway alone.

Its settings come from the environment, as the product's do; the argument is the engine's script in JSON.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import msgspec
import uvloop

from app import logs, memory, server
from app.server import listen
from app.service import composed
from app.settings import Settings
from engine.api import Streamer
from engine.messages import Request
from engine.scripted import FEATURES, ScriptedEngine, words_of
from sessions import replica as sessions_replica
from sessions.replicas import reaper
from sessions.store import ownership
from tests.chaos import scripted_tools

UNHURRIED = {"MIDSTREAM_LIMITS": "message_rate=100000,read_rate=100000"}
"""For parts that send faster than a client may and must still be accepted. `make attack` keeps the limits."""


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's reply to everybody: `words` copies of a word, one a token, one every `pace_s` seconds.

    At most `max_batch` replies run at once. `hurry`: how many times shorter leases and heartbeats are than the product's.
    """

    words: int = 20
    word: str = "word "
    pace_s: float = 0.0
    max_batch: int = 1_000_000
    hurry: float = 1.0
    clock_off_s: float = 0.0
    """Seconds by which its wall clock is wrong."""
    reply: str = ""
    """A text instead of the words."""
    calls: bool = False
    """True if it calls tools first, and answers with text after their results."""
    images: bool = False
    """True if it takes images."""
    fixed: dict[str, Any] = {}
    """Other values than those in `Fixed`."""


def command(script: Script) -> tuple[str, ...]:
    """Return the module and the argument that start a gateway."""
    return "tests.chaos.gateway", msgspec.json.encode(script).decode()


class _Engine(ScriptedEngine):
    """Plays one script to all, and does not keep its requests: that would look like a leak."""

    def __init__(self, script: Script) -> None:
        super().__init__(
            context_tokens=1_000_000,
            pace_s=script.pace_s,
            max_batch=script.max_batch,
            features=(*FEATURES, "images") if script.images else FEATURES,
        )
        self._words = tuple(words_of(script.reply)) if script.reply else (script.word,) * script.words
        self._calls = script.calls

    def generate(self, request: Request) -> Streamer:
        self.script(scripted_tools.steps(request, self._words) if self._calls else self._words)
        stream = super().generate(request)
        self.requests.clear()
        return stream


async def _serve(settings: Settings, script: Script) -> None:
    _hurry(script.hurry)
    _set_clock(script.clock_off_s)
    with listen(settings.host, settings.port) as listener:
        async with composed(settings, _Engine(script)) as service:
            await service.run(listener)


def _hurry(times: float) -> None:
    for module in (server, ownership, reaper, sessions_replica):
        for name in ("HEARTBEAT_S", "LEASE_S", "RENEW_S", "REAP_S", "SETTLE_S", "LOOK_AGAIN_S"):
            if hasattr(module, name):
                setattr(module, name, getattr(module, name) / times)


def _set_clock(off_s: float) -> None:
    real, real_ns = time.time, time.time_ns
    vars(time).update(time=lambda: real() + off_s, time_ns=lambda: real_ns() + int(off_s * 1e9))


def main() -> None:
    """Serve until a signal."""
    settings = Settings.read(os.environ)
    logs.set_up(style=settings.log_format, level=settings.log_level)
    memory.set_up()  # as the product's command does
    script = msgspec.json.decode(sys.argv[1], type=Script)
    uvloop.run(_serve(msgspec.structs.replace(settings, **script.fixed), script))


if __name__ == "__main__":
    main()
