"""A chat in the terminal: lines in, replies out, and commands that are answered here; Ctrl-C stops a reply.

In a pipe each line of the input is a message, and the output has only the replies.
"""

from __future__ import annotations

import asyncio
import errno
import getpass
import hmac
import os
import secrets
import signal
import socket
import ssl
import sys
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from midstream.client import Client, Reconnecting, connect
from midstream.reply import Call, Reply
from midstream.server_connection import (
    ClientError,
    Disconnected,
    Frame,
    NotConnected,
    Refused,
    is_here,
    origin_of,
    socket_url,
)
from midstream.terminal.texts import (
    call_line,
    end_text,
    facts,
    model_named,
    offered_tools,
    quoted,
    reasoning_text,
    requested_model,
)
from midstream.terminal.user_interface import ReplyView, UserInterface, print_error

CONVERSATION = "terminal"
"""The default conversation of terminals; a pipe begins a new one."""
EXIT_INTERRUPTED = 130
"""The exit code after Ctrl-C, as in shells."""


async def run(url: str, *, key: str | None, **options: Any) -> int:
    """Chat with standard input and output until the input ends or the user leaves; return the exit code.

    `options` are those of the command. Without a `key`, it is asked for if the service requires one.
    """
    url = socket_url(url)
    try:
        try:
            return await _chat(url, key, **options)
        except Refused as refused:
            if refused.code != "unauthenticated" or key or not sys.stdin.isatty():
                raise
            key = await asyncio.to_thread(getpass.getpass, "This service asks for a key: ")
            return await _chat(url, key, **options)
    except BrokenPipeError:  # the reader of the output has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ClientError, OSError) as error:
        print_error(error_message(url, error))
        return 1


async def _chat(
    url: str,
    key: str | None,
    *,
    conversation: str | None,
    client_id: str | None,
    reconnect_s: float,
) -> int:
    def on_connection_change(lost: Disconnected | None) -> None:
        ui.note("[connected again]" if lost is None else f"[{lost}; trying again]")

    async with connect(
        url,
        client_id=client_id or kept_client_id(url),
        token=key,
        features=("reasoning", "tools"),
        reconnecting=Reconnecting(timeout_s=reconnect_s, watch=on_connection_change),
    ) as client:
        ui = UserInterface()  # any earlier, it would read the API key
        ui.note(f"{client.ready['model']} · /help lists the commands, Ctrl-C stops a reply, Ctrl-D leaves.")
        session = ChatSession(client, ui, conversation or (CONVERSATION if ui.is_watched else new_id()))
        was_interrupted = await session.run()
        if not ui.is_watched:
            return EXIT_INTERRUPTED if was_interrupted else int(ui.has_failed)
        kept = f" This conversation is kept as {session.conversation_id}." if session.is_begun else ""
        ui.note(f"Bye.{kept}")
        return 0


HELP = {
    "/new": "begins another conversation",
    "/list": "lists your conversations, newest first",
    "/open NUMBER": "opens one of the list, by its number or its id",
    "/retry": "generates the last reply again; the old one stays on a branch",
    "/continue": "continues the last reply where it was stopped",
    "/edit TEXT": "edits your last message; the old one stays on a branch",
    "/model [NAME]": "lists the models, or chooses the one that answers from now on",
    "/help": "shows this",
    "/quit": "leaves; so does Ctrl-D",
    "Ctrl-C": "stops the reply; pressed again, or with no reply, it leaves",
}
SHOWN_MESSAGES = 10
"""Messages that are shown of a conversation when it is opened."""
LISTED = 200
"""Conversations that are listed: the longest page."""


class Mistake(Exception):
    """A command can't be carried out, for the reason that the text says."""


@dataclass(slots=True)
class Last:
    """The last message and reply, for `/edit`, `/retry` and `/continue`; None before there is one.

    `is_unseen`: whether the reply is incomplete, and not shown yet.
    """

    message_id: str | None = None
    reply_id: str | None = None
    model: str | None = None
    is_unseen: bool = False


class ChatSession:
    """One terminal or pipe, with one conversation at a time."""

    def __init__(self, client: Client, ui: UserInterface, conversation_id: str) -> None:
        self.conversation_id = conversation_id
        """The open conversation."""
        self._client = client
        self._ui = ui
        self._last = Last()
        self._listed: list[str] = []
        self._model_name: str | None = None  # the one chosen by `/model`
        self._view: ReplyView | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._commands = {
            "new": self._new,
            "list": self._list,
            "open": self._open,
            "retry": self._retry,
            "continue": self._continue,
            "edit": self._edit,
            "model": self._model,
            "help": self._help,
        }

    @property
    def is_begun(self) -> bool:
        """Whether the open conversation has a message."""
        return self._last.message_id is not None

    async def run(self) -> bool:
        """Read and answer until the user leaves; return whether that was by Ctrl-C. Raises Refused, Disconnected."""
        talking = asyncio.create_task(self._talk())
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._interrupt, talking)
        try:
            await asyncio.wait((talking,))
        finally:
            loop.remove_signal_handler(signal.SIGINT)
        if not talking.cancelled():
            talking.result()
        return talking.cancelled()

    def _interrupt(self, talking: asyncio.Task[None]) -> None:
        """Stop the reply; if there is none, or it is being stopped, leave."""
        if self._view is not None and self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(self._view))
        else:
            talking.cancel()

    async def _stop(self, view: ReplyView) -> None:
        view.hold()
        try:
            await view.reply.cancel()
        except Disconnected:
            pass  # the reader of the reply gets the same error
        except Refused as refused:
            self._ui.fail(f"[{refused}]")
            view.resume()

    async def _talk(self) -> None:
        await self._show_open()
        while (line := await self._ui.line()) is not None:
            content = line.strip()
            if content.split(maxsplit=1)[:1] == ["/quit"]:
                return
            if content.startswith("/") and not content.startswith("//"):
                await self._carry_out(content)
            elif content:
                await self._show_reply_to(
                    self._client.send(content.removeprefix("/"), **self._send_options())
                )

    async def _carry_out(self, line: str) -> None:
        """Answer a command. One that is unknown never reaches the model. Raises Disconnected."""
        name, *rest = line[1:].split(maxsplit=1) or [""]
        if (command := self._commands.get(name)) is None:
            near = get_close_matches(name.lower(), self._commands, n=1)
            meant = f"did you mean /{near[0]}?" if near else "/help lists all commands."
            slash = "To send a message that starts with a slash, type two."
            self._ui.fail(f"Unknown command: /{name}; {meant} {slash}")
            return
        try:
            await command("".join(rest))
        except Mistake as mistake:
            self._ui.fail(str(mistake))
        except Refused as refused:
            self._ui.fail(f"[{refused}]")

    async def _help(self, _: str) -> None:
        width = max(map(len, HELP)) + 2
        self._ui.print_lines(*(f"{usage:<{width}}{what}" for usage, what in HELP.items()))

    async def _new(self, _: str) -> None:
        """Begin another conversation; its first message creates it."""
        self.conversation_id, self._last, self._model_name = new_id(), Last(), None
        self._ui.note("This is a new conversation. The one before is kept: /list.")

    async def _list(self, _: str) -> None:
        rows = await self._client.conversations(limit=LISTED)
        self._listed = [row["conversation_id"] for row in rows]
        lines = [
            f"{'*' if row['conversation_id'] == self.conversation_id else ' '}{number:>3}  {_described(row)}"
            for number, row in enumerate(rows, 1)
        ]
        self._ui.print_lines(*(lines or ["No conversations yet."]))

    async def _open(self, which: str) -> None:
        conversation_id = self._named(which)
        await self._client.history(conversation_id, limit=1)  # fails if it does not exist
        self.conversation_id, self._model_name = conversation_id, None
        await self._show_open()

    def _named(self, which: str) -> str:
        """Return the id of a named conversation. Raises Mistake if it is not known."""
        if not which:
            raise Mistake("Which one? /list gives each a number.")
        if not which.isdecimal():
            return which
        if not 1 <= int(which) <= len(self._listed):
            raise Mistake(f"No conversation has the number {which}; /list shows the numbers.")
        return self._listed[int(which) - 1]

    async def _row(self, conversation_id: str) -> Frame | None:
        rows = await self._client.conversations(limit=LISTED)
        return next((row for row in rows if row["conversation_id"] == conversation_id), None)

    async def _retry(self, _: str) -> None:
        await self._show_reply_to(self._client.regenerate(self._last_reply(), **self._send_options()))

    async def _continue(self, _: str) -> None:
        await self._show_reply_to(self._client.continue_reply(self._last_reply(), **self._send_options()))

    def _last_reply(self) -> str:
        if self._last.reply_id is None:
            raise Mistake("No reply yet.")
        return self._last.reply_id

    async def _edit(self, text: str) -> None:
        if self._last.message_id is None:
            raise Mistake("No message yet.")
        if not text:
            raise Mistake("The new text is missing: /edit TEXT")
        await self._show_reply_to(self._client.edit(self._last.message_id, text, **self._send_options()))

    async def _model(self, name: str) -> None:
        ready = self._client.ready
        if not name:
            now = model_named(ready, self._model_name or self._last.model or ready["model"])
            self._ui.print_lines(
                *(f"{'*' if model == now else ' '} {model['name']}" for model in ready["models"])
            )
        elif model_named(ready, name):
            self._model_name = name
            self._ui.note(f"{name} answers from now on.")
        else:
            raise Mistake(f"Unknown model: {name}; /model lists them.")

    def _send_options(self) -> Frame:
        """Return the conversation and the options of a message."""
        tools = offered_tools(self._client.ready, self._model_name or self._last.model)
        params = {"model": self._model_name} if self._model_name else {}
        options = {"conversation_id": self.conversation_id, "tools": tools, "params": params}
        return {name: value for name, value in options.items() if value}

    async def _show_open(self) -> None:
        """Show which conversation is open, its last messages, and its running reply. Raises Refused, Disconnected."""
        self._last = Last()
        past = await self._history()
        if not past:
            self._ui.note("This is a new conversation. /list shows those that you have.")
            return
        row = await self._row(self.conversation_id)
        description = self.conversation_id if row is None else _described(row)
        self._ui.note(f"Open: {description}. /new begins another, /list shows all.")
        for message in past:
            self._take(message)
        if self._last.is_unseen:
            reply = await self._client.rejoin(self.conversation_id)
            if reply is not None:
                await self._show_replies(reply)
            else:  # it has ended meanwhile
                for message in (await self._history())[-1:]:
                    self._take(message)

    async def _history(self) -> list[Frame]:
        try:
            return await self._client.history(self.conversation_id, limit=SHOWN_MESSAGES)
        except Refused as refused:
            if refused.code != "not_found":  # a conversation begins with its first message
                raise
            return []

    def _take(self, message: Frame) -> None:
        """Take a message of the history, and show it to a person."""
        if message["role"] == "user":
            self._last.message_id = message["message_id"]
            if self._ui.is_watched:
                self._ui.print_lines("> " + message["content"].replace("\n", "\n  "))
            return
        self._last.reply_id, self._last.model = message["message_id"], message["model"]
        calls = [Call.of(call) for call in message.get("calls", ())]
        is_complete = message["status"] != "running" and not any(call.is_open for call in calls)
        self._last.is_unseen = self._ui.is_watched and not is_complete
        if self._ui.is_watched and is_complete:
            if message.get("reasoning"):
                took = (message["usage"] or {}).get("reasoning_ms")
                self._ui.note(reasoning_text(None if took is None else took / 1000))
            self._ui.print_lines(message["content"].rstrip("\n"))
            for call in calls:
                self._ui.note(call_line(call))
            self._show_end(message["status"])

    async def _show_reply_to(self, sending: Awaitable[Reply]) -> None:
        """Show the reply to a message. Raises Disconnected, ClientError."""
        try:
            reply = await sending
        except Refused as refused:
            self._ui.fail(f"[{refused}]")
            return
        self._last.message_id = reply.accepted["message_id"]
        await self._show_replies(reply)

    async def _show_replies(self, reply: Reply | None) -> None:
        """Show a reply, and those that follow its calls. Raises Disconnected, ClientError."""
        while reply is not None:
            self._view = ReplyView(self._client, reply, self._ui)
            try:
                await self._view.run()
                following = await reply.following()
                if self._stopping is not None and following is None:
                    await self._stopping
            except ClientError:
                self._show_end(reply.done["reason"] if reply.done else "disconnected")
                raise
            finally:
                self._view = None
            if (done := reply.done) is not None:
                self._last.reply_id = done["message_id"]
                self._last.model = requested_model(done)
            if following is None:
                self._stopping = None
                self._show_end(done["reason"] if done else "disconnected")
            reply = following

    def _show_end(self, reason: str) -> None:
        """Print how a reply ended, if it is incomplete."""
        if (how := end_text(reason)) and self._ui.is_watched:
            self._ui.note(how)
        elif how:
            self._ui.fail(f"the reply is incomplete: {reason}")


def new_id() -> str:
    """Return an id for a new conversation."""
    return f"terminal-{secrets.token_hex(4)}"


def _described(row: Frame) -> str:
    return f"{quoted(row['title'])}, {facts(row, time.time() * 1000)}"


def error_message(url: str, error: ClientError | OSError) -> str:
    """Return what is wrong with the service at a URL, from an error of the client."""
    parts = urlsplit(url)
    address = parts.netloc or url
    match error:
        case NotConnected():
            return f"{url} is not a chat service, or denied access: {error}"
        case socket.gaierror():
            return f"Unknown host: {parts.hostname}."
        case ssl.SSLError():
            return f"{address} can't be reached by TLS: {error}. If it has no TLS, write ws://{address}."
        case TimeoutError():
            return f"{address} does not answer."
        case OSError() if error.errno == errno.ECONNREFUSED or "Connect call failed" in str(error):
            what = (
                "start it with `midstream serve`, or name another place: `midstream chat HOST:PORT`."
                if is_here(parts.hostname)
                else "is the service running?"
            )
            return f"Nothing listens at {address}; {what}"
        case _:
            return f"{address}: {error}"


def kept_client_id(url: str) -> str:
    """Return the id by which this user's conversations on one server are found again.

    Where nobody needs a key, it is as good as a password: so each server gets its own, made from a secret that
    stays here.
    """
    folder = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "midstream"
    path = folder / "identity"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_text(secrets.token_hex(32))
    secret = path.read_text().strip()
    return hmac.digest(secret.encode(), origin_of(url).encode(), "sha256").hex()[:32]
