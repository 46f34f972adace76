"""The two minimal clients of PROTOCOL.md: they send, stream, stop at what was seen, reconnect and resume."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from engine.scripted import ScriptedEngine
from tests.app.in_process_service import InProcessService, serving
from tests.chaos.proxy import Proxy, proxy

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "minimal"
NODE = """
import { Chat } from "%s";
import { createInterface } from "node:readline";
const show = (frame) => {
  if (frame.type === "delta") process.stdout.write(frame.text);
  if (frame.type === "done") process.stdout.write(` [${frame.reason}, ${frame.chars} characters]\\n`);
};
const chat = new Chat(process.argv[2], { clientId: process.argv[3], show });
createInterface({ input: process.stdin }).on("line", (line) => chat.send(line));
process.on("SIGINT", () => chat.stop());
"""


class RunningClient:
    """A client's process, and what it printed."""

    def __init__(self, process: Process, proxy: Proxy, service: InProcessService) -> None:
        assert process.stdin is not None
        self.process, self.proxy, self.service = process, proxy, service
        self._stdin = process.stdin
        self.printed = ""

    def say(self, message: str) -> None:
        self._stdin.write(f"{message}\n".encode())

    async def until(self, text: str) -> None:
        """Read what it prints up to this."""
        assert self.process.stdout is not None
        async with asyncio.timeout(20):
            while text not in self.printed:
                self.printed += (await self.process.stdout.read(4096)).decode()

    async def made(self, steps: int) -> None:
        """Let the engine make so many tokens, once it has the message."""
        async with asyncio.timeout(20):
            while not self.service.engine.statistics().running:
                self.service.engine.step(0)
                await asyncio.sleep(0.01)
                self.service.engine.step()
        self.service.engine.step(steps - 1)


def command_of(client: str, folder: Path) -> Sequence[str]:
    if client == "python":
        return [sys.executable, str(FOLDER / "client.py")]
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node")
    program = folder / "program.mjs"
    program.write_text(NODE % (FOLDER / "client.mjs").as_uri())
    return [node, "--experimental-websocket", "--no-warnings", str(program)]


@asynccontextmanager
async def running(client: str, folder: Path) -> AsyncIterator[RunningClient]:
    async with serving(folder, ScriptedEngine(by_hand=True)) as service, proxy(service.port) as way:
        url = f"ws://127.0.0.1:{way.port}/v1/ws"
        process = await asyncio.create_subprocess_exec(
            *command_of(client, folder), url, "alice", stdin=PIPE, stdout=PIPE, cwd=folder
        )
        try:
            yield RunningClient(process, way, service)
        finally:
            process.kill()
            await process.wait()


@pytest.mark.parametrize("client", ["python", "javascript"])
async def test_a_minimal_client_chats_stops_and_resumes(client: str, tmp_path: Path) -> None:
    async with running(client, tmp_path) as chat:
        service = chat.service
        service.engine.script(["One", " 👍", " three", " four", " five"])
        chat.say("Count.")
        await chat.made(3)
        await chat.until("three")
        chat.process.send_signal(2)
        await chat.until("[cancelled, 11 characters]")

        service.engine.script(["Here", " and", " there", "."])
        chat.say("Where?")
        await chat.made(2)
        await chat.until("Here and")
        chat.proxy.cut()
        service.engine.step(4)
        await chat.until(" there. [stop, 15 characters]")
        assert chat.printed.count("Here and there.") == 1  # nothing twice, nothing missing
        assert chat.proxy.connections == 2

        async with service.socket({"client_id": "alice"}) as other:
            history = await other.ask(type="history", conversation_id="default")
    assert [message["content"] for message in history["messages"]] == [
        *("Count.", "One 👍 three", "Where?", "Here and there."),
    ], json.dumps(history)
