"""The terminal client: type a line, read the reply as it is written, stop it with Ctrl-C."""

from __future__ import annotations

import asyncio
import codecs
import os
import secrets
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from midstream.client import Client, ClientError, Disconnected, Refused, Reply, Status, connect
from midstream.wait_line import WaitLine

_READ_BYTES = 64 * 1024


def kept_client_id() -> str:
    """The id that makes this user's conversations findable again; made at the first call, readable by the user alone."""
    base = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser()
    path = base / "midstream" / "client-id"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_text(secrets.token_hex(16))
    return path.read_text().strip()


async def run(url: str, *, conversation_id: str, client_id: str | None = None) -> int:
    """Chats with standard input and output until the input ends or Ctrl-C at the prompt; gives the exit code."""
    try:
        async with connect(url, client_id=client_id or kept_client_id()) as client:
            print(f"{client.ready['model']} · Ctrl-C stops a reply, Ctrl-D leaves")
            await _show_history(client, conversation_id)
            await _Chat(client, conversation_id, _lines(sys.stdin.fileno())).run()
    except (ClientError, OSError) as error:
        print(f"midstream: {url}: {error}", file=sys.stderr)
        return 1
    return 0


async def _show_history(client: Client, conversation_id: str) -> None:
    try:
        messages = await client.history(conversation_id, limit=10)
    except Refused as refused:
        if refused.code != "not_found":  # a conversation begins with its first message
            raise
        return
    for message in messages:
        prompt = _prompt() if message["role"] == "user" else ""
        print(f"{prompt}{message['content']}{_mark(message['status'])}")


def _lines(source: int) -> asyncio.Queue[str]:
    """Lines as they are typed; an empty one is the end of the input.

    A thread reads them: a terminal that is made non-blocking for the event loop is so for standard output too,
    and a file can't be waited for at all.
    """
    lines: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def read() -> None:
        with suppress(RuntimeError):  # the loop is closed: the user left
            for line in _read(source):
                loop.call_soon_threadsafe(lines.put_nowait, line)
            loop.call_soon_threadsafe(lines.put_nowait, "")

    threading.Thread(target=read, daemon=True, name="standard input").start()
    return lines


def _read(source: int) -> Iterator[str]:
    """Lines with their ends. A terminal that is gone is the end of its input."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    rest = ""
    with suppress(OSError):
        while piece := os.read(source, _READ_BYTES):
            *whole, rest = (rest + decoder.decode(piece)).split("\n")
            yield from (f"{line}\n" for line in whole)
    if rest:
        yield rest


class _Chat:
    """One terminal, one conversation."""

    def __init__(self, client: Client, conversation_id: str, lines: asyncio.Queue[str]) -> None:
        self._client = client
        self._conversation_id = conversation_id
        self._lines = lines
        self._reply: Reply | None = None
        self._stopping: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Reads and answers until the user leaves. Raises Disconnected."""
        talking = asyncio.create_task(self._talk())
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._interrupt, talking)
        await asyncio.wait((talking,))
        if not talking.cancelled():
            talking.result()
        print()

    def _interrupt(self, talking: asyncio.Task[None]) -> None:
        """Stops the reply; where there is none, or it is being stopped already, leaves."""
        if self._reply is None or self._stopping is not None:
            talking.cancel()
        else:
            self._stopping = asyncio.create_task(_stop(self._reply))

    async def _talk(self) -> None:
        while True:
            print(_prompt(), end="", flush=True)
            if not (line := await self._lines.get()):
                return
            if content := line.strip():
                await self._answer(content)

    async def _answer(self, content: str) -> None:
        try:
            self._reply = await self._client.send(content, conversation_id=self._conversation_id)
        except Refused as refused:
            print(f"[{refused}]")
            return
        wait = WaitLine(sys.stdout)
        try:
            await _show(self._reply, wait)
            if self._stopping is not None:
                await self._stopping
        finally:
            wait.clear()
            done, self._reply, self._stopping = self._reply.done, None, None
            print(_mark(done["reason"] if done else "disconnected"))


async def _show(reply: Reply, wait: WaitLine) -> None:
    """Prints the text as it comes. Raises Disconnected, ClientError."""
    async for event in reply.events():
        if not isinstance(event, Status):
            wait.clear()
            print(event, end="", flush=True)
        elif not reply.text:
            wait.show(event)


async def _stop(reply: Reply) -> None:
    with suppress(Disconnected):  # whoever reads the reply is told the same
        await reply.cancel()


def _prompt() -> str:
    return "\033[1m>\033[0m " if sys.stdout.isatty() else "> "


def _mark(status: str) -> str:
    return "" if status in ("complete", "stop") else f" [{status}]"
