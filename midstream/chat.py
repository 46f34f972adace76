"""The terminal client: type a line, read the reply as it is written, stop it with Ctrl-C.

`/again` has the last reply made anew, `/edit TEXT` says the last message otherwise; both leave the old one on a branch.
`/continue` has the last reply go on where it was stopped.
"""

from __future__ import annotations

import asyncio
import getpass
import os
import secrets
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from midstream.client import Client, Reconnecting, connect
from midstream.errors import ClientError, Disconnected, Refused
from midstream.reply import Reply, Status
from midstream.typed_lines import typed_lines
from midstream.wait_line import WaitLine


@dataclass(frozen=True, slots=True, kw_only=True)
class Who:
    """As whom one chats. `key` is an API key or a JWT; without one, it is asked for where the service wants one."""

    client_id: str | None = None
    key: str | None = None


def kept_client_id() -> str:
    """The id that makes this user's conversations findable again; made at the first call, readable by the user alone."""
    base = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser()
    path = base / "midstream" / "client-id"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_text(secrets.token_hex(16))
    return path.read_text().strip()


async def run(url: str, *, conversation_id: str, who: Who | None = None, patience_s: float = 60.0) -> int:
    """Chats with standard input and output until the input ends or Ctrl-C at the prompt; gives the exit code.

    A lost connection is tried again for `patience_s` seconds.
    """
    who = who or Who()
    try:
        try:
            await _chat(url, conversation_id, who, patience_s)
        except Refused as refused:
            if refused.code != "unauthenticated" or who.key or not sys.stdin.isatty():
                raise
            key = await asyncio.to_thread(getpass.getpass, "This service asks for a key: ")
            await _chat(url, conversation_id, Who(client_id=who.client_id, key=key), patience_s)
    except (ClientError, OSError) as error:
        print(f"midstream: {url}: {error}", file=sys.stderr)
        return 1
    return 0


async def _chat(url: str, conversation_id: str, who: Who, patience_s: float) -> None:
    client_id = who.client_id or kept_client_id()
    reconnecting = Reconnecting(patience_s=patience_s, watch=_tell)
    async with connect(url, client_id=client_id, token=who.key, reconnecting=reconnecting) as client:
        print(f"{client.ready['model']} · Ctrl-C stops a reply, Ctrl-D leaves, /again, /continue, /edit TEXT")
        last = await _show_history(client, conversation_id)
        await _Chat(client, conversation_id, typed_lines(sys.stdin.fileno()), last).run()


def _tell(lost: Disconnected | None) -> None:
    """Tells those who watch; what is written to a file is the conversation alone."""
    if sys.stdout.isatty():
        print("[connected again]" if lost is None else f"\n[{lost}; trying again]", flush=True)


@dataclass(slots=True)
class Last:
    """The ids of the last message and the last reply, for `/edit`, `/again` and `/continue`; None before there is one."""

    message_id: str | None = None
    reply_id: str | None = None


async def _show_history(client: Client, conversation_id: str) -> Last:
    last = Last()
    try:
        messages = await client.history(conversation_id, limit=10)
    except Refused as refused:
        if refused.code != "not_found":  # a conversation begins with its first message
            raise
        return last
    for message in messages:
        if message["role"] == "user":
            prompt, last.message_id = _prompt(), message["message_id"]
        else:
            prompt, last.reply_id = "", message["message_id"]
        print(f"{prompt}{message['content']}{_mark(message['status'])}")
    return last


class _Chat:
    """One terminal, one conversation."""

    def __init__(self, client: Client, conversation_id: str, lines: asyncio.Queue[str], last: Last) -> None:
        self._client = client
        self._conversation_id = conversation_id
        self._lines = lines
        self._last = last
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
            self._reply = await self._begun(content)
        except Refused as refused:
            print(f"[{refused}]")
            return
        self._last.message_id = self._reply.accepted["message_id"]
        wait = WaitLine(sys.stdout)
        try:
            await _show(self._reply, wait)
            if self._stopping is not None:
                await self._stopping
        finally:
            wait.clear()
            done, self._reply, self._stopping = self._reply.done, None, None
            print(_mark(done["reason"] if done else "disconnected"))
        if done:
            self._last.reply_id = done["message_id"]

    async def _begun(self, line: str) -> Reply:
        """What a line asks for: more of the last reply, another version of that or of the last message, else an answer to it."""
        place, last = self._conversation_id, self._last
        if line == "/again" and last.reply_id:
            return await self._client.regenerate(last.reply_id, conversation_id=place)
        if line == "/continue" and last.reply_id:
            return await self._client.continue_reply(last.reply_id, conversation_id=place)
        if line.startswith("/edit ") and last.message_id:
            text = line.removeprefix("/edit ").strip()
            return await self._client.edit(last.message_id, text, conversation_id=place)
        return await self._client.send(line, conversation_id=place)


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
