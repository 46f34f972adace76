"""The terminal client: type a line, read the reply as it is written, stop it with Ctrl-C.

`/again` has the last reply made anew, `/edit TEXT` says the last message otherwise; both leave the old one on a branch.
`/tools` lists what the service can run for the model; `/tools off` offers it none of that, `/tools on` all again.
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
from typing import Any

from midstream.calls import Call
from midstream.client import Client, Reconnecting, connect
from midstream.errors import ClientError, Disconnected, Refused
from midstream.plain import call_line, offered, thought_for, tool_lines
from midstream.reply import Reply
from midstream.showing import Showing, dim
from midstream.typed_lines import typed_lines

Frame = dict[str, Any]


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
    features = ("reasoning", "tools")
    async with connect(
        url, client_id=client_id, token=who.key, features=features, reconnecting=reconnecting
    ) as client:
        print(
            f"{client.ready['model']} · Ctrl-C stops a reply, Ctrl-D leaves, /again, /continue, /edit TEXT, /tools"
        )
        last = await _show_history(client, conversation_id)
        await _Chat(client, conversation_id, typed_lines(sys.stdin.fileno()), last).run()


def _tell(lost: Disconnected | None) -> None:
    """Tells those who watch; what is written to a file is the conversation alone."""
    if sys.stdout.isatty():
        print("[connected again]" if lost is None else f"\n[{lost}; trying again]", flush=True)


@dataclass(slots=True)
class Last:
    """The ids of the last message and reply, for `/edit`, `/again` and `/continue`, and its model; None before there is one.

    `is_open`: whether something is still to come of that reply, which is not shown so far.
    """

    message_id: str | None = None
    reply_id: str | None = None
    model: str | None = None
    is_open: bool = False


async def _show_history(client: Client, conversation_id: str, *, limit: int = 10) -> Last:
    last = Last()
    try:
        messages = await client.history(conversation_id, limit=limit)
    except Refused as refused:
        if refused.code != "not_found":  # a conversation begins with its first message
            raise
        return last
    for message in messages:
        if message["role"] == "user":
            last.message_id = message["message_id"]
            print(f"{_prompt()}{message['content']}")
        else:
            last.reply_id, last.model = message["message_id"], message["model"]
            last.is_open = _show_kept(message)
    return last


def _show_kept(message: Frame) -> bool:
    """Shows a reply of the history; True, and nothing is shown, where more comes of it and somebody is there to see it."""
    calls = [Call.of(call) for call in message.get("calls", ())]
    if (message["status"] == "running" or any(call.is_open for call in calls)) and sys.stdin.isatty():
        return True
    if message.get("reasoning"):
        took = (message["usage"] or {}).get("reasoning_ms")
        dim(thought_for(None if took is None else took / 1000))
    if message["content"] or not calls:
        print(f"{message['content']}{_mark(message['status'])}")
    for call in calls:
        dim(call_line(call))
    return False


class _Chat:
    """One terminal, one conversation."""

    def __init__(self, client: Client, conversation_id: str, lines: asyncio.Queue[str], last: Last) -> None:
        self._client = client
        self._conversation_id = conversation_id
        self._lines = lines
        self._last = last
        self._offers = True
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
        if self._last.is_open:
            await self._rejoin()
        while True:
            print(_prompt(), end="", flush=True)
            if not (line := await self._lines.get()):
                return
            if (content := line.strip()) == "/tools" or content.startswith("/tools "):
                self._tools(content.removeprefix("/tools").strip())
            elif content:
                await self._answer(content)

    async def _rejoin(self) -> None:
        """Goes on with a reply that is under way. Raises Refused, Disconnected."""
        reply = await self._client.rejoin(self._conversation_id)
        if reply is None:  # it has ended meanwhile
            await _show_history(self._client, self._conversation_id, limit=1)
            return
        print(reply.text, end="", flush=True)
        await self._go_on(reply)

    def _tools(self, word: str) -> None:
        if word in ("on", "off"):
            self._offers = word == "on"
        else:
            print("\n".join(tool_lines(self._client.ready)))
        print(f"[tools are {'offered' if self._offers else 'not offered'}]")

    async def _answer(self, content: str) -> None:
        try:
            reply = await self._begun(content)
        except Refused as refused:
            print(f"[{refused}]")
            return
        self._last.message_id = reply.accepted["message_id"]
        await self._go_on(reply)

    async def _go_on(self, reply: Reply | None) -> None:
        """Shows a reply, and those that follow its calls. Raises Disconnected, ClientError."""
        while reply is not None:
            self._reply = reply
            try:
                await Showing(self._client, reply, self._lines).run()
                following = await reply.following()
                if self._stopping is not None and following is None:
                    await self._stopping
            except BaseException:
                print(_mark(reply.done["reason"] if reply.done else "disconnected"))
                raise
            finally:
                done, self._reply = reply.done, None
            if following is None:
                self._stopping = None
                print(_mark(done["reason"] if done else "disconnected"))
            if done:
                self._last.reply_id, self._last.model = done["message_id"], done.get("model")
            reply = following

    async def _begun(self, line: str) -> Reply:
        """What a line asks for: more of the last reply, another version of that or of the last message, else an answer to it."""
        place, last = self._conversation_id, self._last
        tools = offered(self._client.ready, last.model) if self._offers else []
        how: Frame = {"tools": tools} if tools else {}
        if line == "/again" and last.reply_id:
            return await self._client.regenerate(last.reply_id, conversation_id=place, **how)
        if line == "/continue" and last.reply_id:
            return await self._client.continue_reply(last.reply_id, conversation_id=place, **how)
        if line.startswith("/edit ") and last.message_id:
            text = line.removeprefix("/edit ").strip()
            return await self._client.edit(last.message_id, text, conversation_id=place, **how)
        return await self._client.send(line, conversation_id=place, **how)


async def _stop(reply: Reply) -> None:
    with suppress(Disconnected):  # whoever reads the reply is told the same
        await reply.cancel()


def _prompt() -> str:
    return "\033[1m>\033[0m " if sys.stdout.isatty() else "> "


def _mark(status: str) -> str:
    return "" if status in ("complete", "stop", "tools") else f" [{status}]"
