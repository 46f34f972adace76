"""A chat in the terminal: lines in, replies out, and commands that are answered here; Ctrl-C stops a reply.

In a pipe each line of the input is a message, and the output has only the replies.
"""

from __future__ import annotations

import asyncio
import errno
import getpass
import hmac
import os
import re
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
    tool_line,
)
from midstream.terminal.user_interface import ReplyView, UserInterface, print_error

CONVERSATION = "terminal"
"""The default conversation of terminals; a pipe begins a new one."""
INSTALL = 'pip install "midstream[terminal]"'
PLAINLY = (
    "{} is not installed, so this is a plain chat: type a line for each message, Ctrl-D leaves. "
    f"For Markdown, line editing and approval of calls: {INSTALL}"
)
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
    plain: bool,
    history: bool,
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
        ui = _ui(is_plain=plain, keeps_history=history)  # any earlier, it would read the API key
        ui.note(f"{client.ready['model']} · /help lists the commands, Ctrl-C stops a reply, Ctrl-D leaves.")
        session = ChatSession(client, ui, conversation or (CONVERSATION if ui.is_watched else new_id()))
        was_interrupted = await session.run()
        if not ui.is_watched:
            return EXIT_INTERRUPTED if was_interrupted else int(ui.has_failed)
        kept = f" This conversation is kept as {session.conversation_id}." if session.is_begun else ""
        ui.note(f"Bye.{kept}")
        return 0


def _ui(*, is_plain: bool, keeps_history: bool) -> UserInterface:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return UserInterface("the input is not a terminal")
    try:
        from midstream.terminal.screen import Screen  # noqa: PLC0415 - a pipe needs no line editing, and no Markdown
    except ModuleNotFoundError as missing:
        print_error(PLAINLY.format(missing.name))
        return UserInterface(f"{missing.name} is not installed ({INSTALL})")
    history, failure = None, ""
    if keeps_history:
        try:
            history = history_file()
        except OSError as error:
            failure = f"Your lines are not kept: {error}"
    screen = Screen(history=history, is_plain=is_plain, commands=NAMES)
    if failure:
        screen.note(failure)
    return screen


HELP = {
    "/new": "begins another conversation",
    "/list": "lists your conversations, newest first",
    "/open NUMBER": "opens one of the list, by its number or its id",
    "/delete [NUMBER]": "removes the open conversation, or one of the list, for good",
    "/retry": "generates the last reply again; the old one stays on a branch",
    "/continue": "continues the last reply where it was stopped",
    "/edit TEXT": "edits your last message; the old one stays on a branch",
    "/model [NAME]": "lists the models, or chooses the one that answers from now on",
    "/system [TEXT]": "gives the conversation a system prompt; /system off removes it",
    "/tools [on|off]": "lists the tools that the service runs, and whether they are offered to the model",
    "/help": "shows this",
    "/quit": "leaves; so does Ctrl-D",
}
KEYS = {
    "Ctrl-C": "stops the reply; pressed again, or with no reply, it leaves",
    "Alt-Enter": "begins a new line in your message",
    "Up, Ctrl-R": "bring back and find what you typed before",
}
NAMES = [usage.split()[0].removeprefix("/") for usage in HELP]
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
    text: str = ""
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
        self._tools_on = True
        self._params: Frame = {}  # of the next message; `model` stays
        self._view: ReplyView | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._commands = {
            "new": self._new,
            "list": self._list,
            "open": self._open,
            "delete": self._delete,
            "retry": self._retry,
            "continue": self._continue,
            "edit": self._edit,
            "model": self._model,
            "system": self._system,
            "tools": self._tools,
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
        """Stop the reply; if there is none, or it is being stopped, clear the typed line, or leave."""
        if self._view is not None and self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(self._view))
        elif not self._ui.clear_input():
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
            near = get_close_matches(name.lower(), NAMES, n=1)
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
        lines = [[f"{name:<{width}}{what}" for name, what in one.items()] for one in (HELP, KEYS)]
        self._ui.print_lines(*lines[0], "", *lines[1])

    async def _new(self, _: str) -> None:
        """Begin another conversation; its first message creates it."""
        self.conversation_id, self._last, self._params = new_id(), Last(), {}
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
        self.conversation_id, self._params = conversation_id, {}
        await self._show_open()

    async def _delete(self, which: str) -> None:
        """Delete a conversation for good, after a confirmation; in a pipe at once."""
        conversation_id = self._named(which) if which else self.conversation_id
        if await self._confirms_to_delete(conversation_id):
            await self._client.delete(conversation_id)
            self._ui.note("It is deleted.")
            if conversation_id == self.conversation_id:
                await self._new("")

    async def _confirms_to_delete(self, conversation_id: str) -> bool:
        if not self._ui.is_watched:
            return True
        row = await self._row(conversation_id)
        title = conversation_id if row is None else quoted(row["title"])
        self._ui.drop_typed()
        try:
            answer = await self._ui.ask(f"Delete {title} for good? [y/n] ")
        except EOFError:
            return False
        return answer.strip().lower() in {"y", "yes"}

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
        sending = self._client.continue_reply(self._last_reply(), **self._send_options())
        await self._show_reply_to(sending, before=self._last.text)

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
            now = model_named(ready, self._params.get("model") or self._last.model or ready["model"])
            self._ui.print_lines(
                *(f"{'*' if model == now else ' '} {model['name']}" for model in ready["models"])
            )
        elif model_named(ready, name):
            self._params["model"] = name
            self._ui.note(f"{name} answers from now on.")
        else:
            raise Mistake(f"Unknown model: {name}; /model lists them.")

    async def _system(self, text: str) -> None:
        if text:
            self._params["system"] = "" if text == "off" else text
            self._ui.note("It applies from your next message.")
        else:
            self._ui.print_lines(
                "/system TEXT gives the conversation a system prompt, /system off removes it."
            )

    async def _tools(self, word: str) -> None:
        if word in ("on", "off"):
            self._tools_on = word == "on"
        else:
            tools = self._client.ready.get("tools") or ()
            self._ui.print_lines(*(map(tool_line, tools) if tools else ["This service has no tools."]))
        self._ui.note(f"[tools are {'offered' if self._tools_on else 'not offered'}]")

    def _send_options(self) -> Frame:
        """Return the conversation and the options of a message."""
        model = self._params.get("model") or self._last.model
        tools = offered_tools(self._client.ready, model) if self._tools_on else []
        options = {"conversation_id": self.conversation_id, "tools": tools, "params": dict(self._params)}
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
        self._last.text = message["content"]
        calls = [Call.of(call) for call in message.get("calls", ())]
        is_complete = message["status"] != "running" and not any(call.is_open for call in calls)
        self._last.is_unseen = self._ui.is_watched and not is_complete
        if self._ui.is_watched and is_complete:
            if message.get("reasoning"):
                took = (message["usage"] or {}).get("reasoning_ms")
                self._ui.note(reasoning_text(None if took is None else took / 1000))
            self._ui.page("").end(message["content"])
            for call in calls:
                self._ui.note(call_line(call))
            self._show_end(message["status"])

    async def _show_reply_to(self, sending: Awaitable[Reply], *, before: str = "") -> None:
        """Show the reply to a message. Raises Disconnected, ClientError."""
        try:
            reply = await sending
        except Refused as refused:
            self._ui.fail(f"[{refused}]")
            return
        self._params.pop("system", None)  # it stays with the conversation
        self._last.message_id = reply.accepted["message_id"]
        await self._show_replies(reply, before=before)

    async def _show_replies(self, reply: Reply | None, *, before: str = "") -> None:
        """Show a reply, and those that follow its calls. Raises Disconnected, ClientError."""
        while reply is not None:
            self._view = ReplyView(self._client, reply, self._ui, before=before)
            try:
                with self._ui.reading():
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
                self._last.text = before + reply.text
            if following is None:
                self._stopping = None
                self._show_end(done["reason"] if done else "disconnected")
            reply, before = following, ""

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


MOST_HISTORY_BYTES = 1024 * 1024
"""Bytes of typed lines. When a chat begins with more, the older half is dropped."""


def kept_client_id(url: str) -> str:
    """Return the id by which this user's conversations on one server are found again.

    Where nobody needs a key, it is as good as a password: so each server gets its own, made from a secret that
    stays here.
    """
    path = _folder("XDG_CONFIG_HOME", "~/.config") / "identity"
    if not path.exists():
        _private(path).write_text(secrets.token_hex(32))
    secret = path.read_text().strip()
    return hmac.digest(secret.encode(), origin_of(url).encode(), "sha256").hex()[:32]


def history_file() -> Path:
    """Return the file of typed lines, in prompt-toolkit's form; it exists and is bounded. Raises OSError."""
    path = _private(_folder("XDG_STATE_HOME", "~/.local/state") / "chat-history")
    if path.stat().st_size > MOST_HISTORY_BYTES:
        newer = path.read_bytes()[-MOST_HISTORY_BYTES // 2 :]
        entry = re.search(rb"\n\n# ", newer)
        fresh = _private(path.with_suffix(".new"))
        fresh.write_bytes(newer[entry.start() + 1 :] if entry else b"")
        fresh.replace(path)
    return path


def _folder(variable: str, otherwise: str) -> Path:
    return Path(os.environ.get(variable) or otherwise).expanduser() / "midstream"


def _private(path: Path) -> Path:
    """Return a file that exists, and that only the user can read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.chmod(0o600)
    return path
