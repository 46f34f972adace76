"""More messages than the service can accept: `python -m tests.bench.congestion`, on the scripted engine.

First each client sends its next message once the last one was accepted, which gives the capacity. Then all send at fixed
paces: once, twice and four times the capacity. A service that collapses accepts less under a larger load.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections import Counter
from pathlib import Path
from time import monotonic

from tests.bench.report import Measured, Report
from tests.chaos.gateway import UNHURRIED, Script, command
from tests.chaos.minimal_websocket import MinimalWebSocket
from tests.server_process import serving

CLIENTS = 64
SECONDS = 5.0
LEVELS = (1, 2, 4)
ENVIRON = {"MIDSTREAM_LOG_LEVEL": "error", **UNHURRIED}
"""The limits of single clients are off: the measurement is of all clients together."""


async def _client(port: int, number: int, each_s: float | None, answers: Counter[str]) -> None:
    """Begin conversations from an address of its own: at a pace, or each after the answer to the last one."""
    one = await MinimalWebSocket.connect(("127.0.0.1", port), source=f"127.0.0.{number + 2}")
    await one.send_hello(client_id=f"client-{number}")
    answered, end = asyncio.Event(), monotonic() + SECONDS

    async def read() -> None:
        while True:
            frame = await one.get()
            if frame["type"] in ("accepted", "error"):
                answers[frame.get("code", "accepted")] += 1
                answered.set()

    reading, due, sent = asyncio.create_task(read()), monotonic(), 0
    while due < end:
        answered.clear()
        name = f"m{number}-{each_s}-{sent}"
        await one.put(type="send", client_msg_id=name, conversation_id=name, content="Hello?")
        sent += 1
        if each_s is None:
            await answered.wait()
        due = monotonic() if each_s is None else due + each_s
        await asyncio.sleep(max(0.0, due - monotonic()))
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    one.close()


async def _answers(port: int, each_s: float | None = None) -> Counter[str]:
    """Return the answers that all clients got in a second while they sent."""
    answers: Counter[str] = Counter()
    await asyncio.gather(*(_client(port, number, each_s, answers) for number in range(CLIENTS)))
    return answers


async def measure(port: int) -> Report:
    """Measure the capacity, and what is accepted at each level."""
    served = (await _answers(port))["accepted"] / SECONDS
    report = Report(findings=[Measured(label="messages that are served", value=served, unit="/s")])
    for level in LEVELS:
        answers = await _answers(port, CLIENTS / (served * level))
        per_s = {what: count / SECONDS for what, count in answers.items()}
        label = f"{level} times as many: accepted, of those served"
        value = per_s.get("accepted", 0.0) / served
        report.findings.append(Measured(label=label, value=value, readings=per_s))
    return report


def main() -> int:
    """Measure a server."""
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(Path(folder), ENVIRON, command=command(Script(words=1))) as server,
    ):
        return asyncio.run(measure(server.port)).conclude(None)


if __name__ == "__main__":
    sys.exit(main())
