"""The terminal client: type a line, read the reply as it is written, stop it with Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
from pathlib import Path
from typing import TextIO

from midstream.client import Client, Disconnected, Refused, Reply, connect

PROMPT = "\033[1m>\033[0m " if sys.stdout.isatty() else "> "


def kept_client_id() -> str:
    """The id that makes this user's conversations findable again; made at the first call."""
    base = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser()
    path = base / "midstream" / "client-id"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(secrets.token_hex(16))
    return path.read_text().strip()


async def run(
    url: str, *, conversation_id: str, client_id: str | None = None, source: TextIO | None = None
) -> int:
    """Chats until the input ends or Ctrl-C at the prompt; gives the exit code."""
    try:
        async with connect(url, client_id=client_id or kept_client_id()) as client:
            print(f"{client.ready['model']} · Ctrl-C stops a reply, Ctrl-D leaves")
            await _show_history(client, conversation_id)
            await _Chat(client, conversation_id, await _lines(source or sys.stdin)).talk()
    except (Disconnected, OSError) as error:
        print(f"midstream: {url}: {error}", file=sys.stderr)
        return 1
    return 0


async def _show_history(client: Client, conversation_id: str) -> None:
    try:
        messages = await client.history(conversation_id, limit=10)
    except Refused:  # a conversation begins with its first message
        return
    for message in messages:
        print(f"{PROMPT if message['role'] == 'user' else ''}{message['content']}{_mark(message['status'])}")


async def _lines(source: TextIO) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), source)
    return reader


class _Chat:
    """One terminal, one conversation."""

    def __init__(self, client: Client, conversation_id: str, lines: asyncio.StreamReader) -> None:
        self._client = client
        self._conversation_id = conversation_id
        self._lines = lines
        self._reply: Reply | None = None
        self._stopping: set[asyncio.Task[object]] = set()
        self._left = asyncio.Event()

    async def talk(self) -> None:
        """Reads and answers until the user leaves."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._interrupt)
        while line := await self._line():
            if content := line.strip():
                await self._answer(content)
        print()

    def _interrupt(self) -> None:
        if self._reply is None or self._stopping:
            self._left.set()
        else:
            self._stopping.add(asyncio.ensure_future(self._reply.cancel()))

    async def _line(self) -> str:
        """The next line; empty where the user leaves."""
        print(PROMPT, end="", flush=True)
        typed = asyncio.ensure_future(self._lines.readline())
        left = asyncio.ensure_future(self._left.wait())
        await asyncio.wait((typed, left), return_when=asyncio.FIRST_COMPLETED)
        left.cancel()
        if typed.done():
            return typed.result().decode()
        typed.cancel()
        return ""

    async def _answer(self, content: str) -> None:
        try:
            self._reply = await self._client.send(content, conversation_id=self._conversation_id)
        except Refused as refused:
            print(f"[{refused}]")
            return
        async for text in self._reply:
            print(text, end="", flush=True)
        print(_mark("complete" if self._reply.done is None else self._reply.done["reason"]))
        self._reply = None
        self._stopping.clear()


def _mark(status: str) -> str:
    return "" if status in ("complete", "stop") else f" [{status}]"
