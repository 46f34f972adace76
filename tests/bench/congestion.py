"""More messages than the service can accept: `python -m tests.bench.congestion`, on the scripted engine.

First each client sends its next message once the last one was accepted, which gives the capacity. Then all send at fixed
paces: once, twice and four times the capacity. A service that collapses accepts less under a larger load.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from time import monotonic
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from tests.chaos.gateway import Script, command
from tests.server_process import ServerProcess

CLIENTS = 64
SECONDS = 5.0
LEVELS = (1, 2, 4)
ENVIRON = {"MIDSTREAM_LOG_LEVEL": "error", "MIDSTREAM_LIMITS": "message_rate=100000"}
"""The limits of single clients are off: the measurement is of all clients together."""

Send = Callable[[int], Awaitable[None]]


class Client:
    """One socket of its own client id and address, and the answers that it got."""

    def __init__(self, socket: ClientConnection, answers: Counter[str]) -> None:
        self._socket = socket
        self._answers = answers
        self._sent = 0
        self.answered = asyncio.Event()

    async def read(self) -> None:
        """Count answers until cancelled."""
        async for text in self._socket:
            frame: dict[str, Any] = json.loads(text)
            if frame["type"] in ("accepted", "error"):
                self._answers[frame.get("code", "accepted")] += 1
                self.answered.set()

    async def send(self) -> None:
        """Begin a conversation."""
        self._sent += 1
        name = f"m{id(self)}-{self._sent}"
        self.answered.clear()
        message = {"type": "send", "client_msg_id": name, "conversation_id": name, "content": "Hello?"}
        await self._socket.send(json.dumps(message))


async def one_by_one(client: Client, until: float) -> None:
    """Send the next message after the answer to the last one."""
    while monotonic() < until:
        await client.send()
        await client.answered.wait()


async def at_a_pace(client: Client, until: float, each_s: float) -> None:
    """Send a message at each due moment, whatever became of the earlier ones."""
    due = monotonic()
    while due < until:
        await asyncio.sleep(max(0.0, due - monotonic()))
        await client.send()
        due += each_s


async def measured(server: ServerProcess, drive: Callable[[Client, float], Awaitable[None]]) -> Counter[str]:
    """Count the answers that all clients got while they sent."""
    answers: Counter[str] = Counter()
    async with AsyncExitStack() as stack:
        clients = []
        for number in range(CLIENTS):
            address = (f"127.0.0.{number + 2}", 0)
            opened = connect(server.ws_url, local_addr=address, max_queue=None, ping_interval=None)
            socket = await stack.enter_async_context(opened)
            await socket.send(json.dumps({"type": "hello", "client_id": f"client-{number}"}))
            await socket.recv()
            clients.append(Client(socket, answers))
        reading = [asyncio.create_task(client.read()) for client in clients]
        until = monotonic() + SECONDS
        await asyncio.gather(*(drive(client, until) for client in clients))
        reported = Counter(answers)
        for task in reading:
            task.cancel()
    return reported


async def measure(server: ServerProcess) -> None:
    """Print a row per level."""
    served = (await measured(server, one_by_one))["accepted"] / SECONDS
    print(f"served: {served:.0f} messages a second")
    for level in LEVELS:
        each_s = CLIENTS / (served * level)
        answers = await measured(server, lambda client, until: at_a_pace(client, until, each_s))  # noqa: B023
        accepted = answers.pop("accepted", 0) / SECONDS
        shed = ", ".join(f"{count / SECONDS:.0f} {code}" for code, count in answers.items()) or "nothing"
        print(f"{level} times that: {accepted:.0f} accepted ({accepted / served:.2f}), refused: {shed}")


def main() -> int:
    """Start a server, measure it, and stop it."""
    with tempfile.TemporaryDirectory() as folder:
        script = Script(words=1)
        server = ServerProcess(Path(folder), ENVIRON, command=command(script))
        server.start()
        try:
            asyncio.run(measure(server))
        finally:
            server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
