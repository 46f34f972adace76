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
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from midstream.client import Client, Reconnecting, connect
from midstream.reply import Reply
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
    ago,
    messages,
    model_named,
    offered_tools,
    quoted,
    requested_model,
    tool_lines,
)
from midstream.terminal.user_interface import Pipe, UserInterface, print_error

if TYPE_CHECKING:
    from midstream.terminal.screen import Screen

CONVERSATION = "terminal"
"""The default conversation of terminals; a pipe begins a new one."""
INSTALL = 'pip install "midstream[terminal]"'
PLAINLY = (
    "{} is not installed, so this is a plain chat: type a line for each message, Ctrl-D leaves. "
    f"For Markdown, line editing and approval of calls: {INSTALL}"
)
EXIT_INTERRUPTED = 130
"""The exit code after Ctrl-C, as in shells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """Options of a chat. A lost connection is retried for `reconnect_s` seconds.

    `key`: an API key or a JWT; without one, it is asked for if the service requires one.
    """

    client_id: str | None = None
    key: str | None = None
    conversation_id: str | None = None
    reconnect_s: float = 60.0
    keeps_history: bool = True
    is_plain: bool = False


async def run(url: str, options: ChatOptions) -> int:
    """Chat with standard input and output until the input ends or the user leaves; return the exit code."""
    url = socket_url(url)
    try:
        try:
            return await _chat(url, options)
        except Refused as refused:
            if refused.code != "unauthenticated" or options.key or not sys.stdin.isatty():
                raise
            key = await asyncio.to_thread(getpass.getpass, "This service asks for a key: ")
            return await _chat(url, replace(options, key=key))
    except BrokenPipeError:  # the reader of the output has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ClientError, OSError) as error:
        print_error(error_message(url, error))
        return 1


async def _chat(url: str, options: ChatOptions) -> int:
    def on_connection_change(lost: Disconnected | None) -> None:
        ui.note("[connected again]" if lost is None else f"[{lost}; trying again]")

    reconnecting = Reconnecting(timeout_s=options.reconnect_s, watch=on_connection_change)
    async with connect(
        url,
        client_id=options.client_id or kept_client_id(url),
        token=options.key,
        features=("reasoning", "tools"),
        reconnecting=reconnecting,
    ) as client:
        ui = _ui(options)  # any earlier, it would read the API key
        if isinstance(ui, Pipe):
            if await ChatSession(client, ui, options.conversation_id or new_id()).run():
                return EXIT_INTERRUPTED
            return int(ui.has_failed)
        ui.note(f"{client.ready['model']} · /help lists the commands, Ctrl-C stops a reply, Ctrl-D leaves.")
        session = ChatSession(client, ui, options.conversation_id or CONVERSATION)
        await session.run()
        kept = f" This conversation is kept as {session.conversation_id}." if session.is_begun else ""
        ui.note(f"Bye.{kept}")
        return 0


def _ui(options: ChatOptions) -> Pipe | Screen:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return Pipe("the input is not a terminal")
    try:
        from midstream.terminal.screen import Screen  # noqa: PLC0415 - a pipe needs no line editing, and no Markdown
    except ModuleNotFoundError as missing:
        print_error(PLAINLY.format(missing.name))
        return Pipe(f"{missing.name} is not installed ({INSTALL})")
    history, failure = None, ""
    if options.keeps_history:
        try:
            history = history_file()
        except OSError as error:
            failure = f"Your lines are not kept: {error}"
    screen = Screen(history=history, is_plain=options.is_plain, commands=NAMES)
    if failure:
        screen.note(failure)
    return screen


HELP = {
    "/new": "begins another conversation",
    "/list [more]": "lists your conversations, newest first",
    "/search WORDS": "lists those with these words; /search alone continues",
    "/open NUMBER": "opens one of the list, by its number or its id",
    "/rename TITLE": "gives the open conversation a title",
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
_SAME = {"regenerate": "retry", "again": "retry", "exit": "quit"}
_MAIN_NAMES = [usage.split()[0].removeprefix("/") for usage in HELP]
NAMES = sorted([*_MAIN_NAMES, *_SAME])
SHOWN_MESSAGES = 10
"""Messages that are shown of a conversation when it is opened."""
LISTED = 20
"""Conversations on a page of `/list`."""
_NEWEST = 200  # the longest page, in which a conversation's title is looked up


class ChatSession:
    """One terminal or pipe, with one conversation at a time."""

    def __init__(self, client: Client, ui: UserInterface, conversation_id: str) -> None:
        self._client = client
        self._ui = ui
        self._conversations = Conversations(client, ui, conversation_id)
        self._tools_on = True
        self._params: Frame = {}  # of the next message; `model` stays
        self._reply: Reply | None = None
        self._stopping: asyncio.Task[None] | None = None

    @property
    def is_begun(self) -> bool:
        """Whether the open conversation has a message."""
        return self._conversations.last.message_id is not None

    @property
    def conversation_id(self) -> str:
        """The open conversation."""
        return self._conversations.open_id

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
        if self._reply is None or self._stopping is not None:
            if not self._ui.clear_input():
                talking.cancel()
        else:
            self._stopping = asyncio.create_task(self._stop(self._reply))

    async def _stop(self, reply: Reply) -> None:
        self._ui.hold()
        try:
            await reply.cancel()
        except Disconnected:
            pass  # the reader of the reply gets the same error
        except Refused as refused:
            self._ui.fail(f"[{refused}]")
            self._ui.resume()

    async def _talk(self) -> None:
        await self._conversations.show()
        await self._rejoin()
        while (line := await self._ui.line()) is not None:
            match read(line):
                case Message(content):
                    await self._show_reply_to(self._sent(content))
                case Command("quit"):
                    return
                case Command(name, rest):
                    await self._carry_out(name, rest)
                case UnknownCommand() as unknown:
                    self._ui.fail(str(unknown))
                case None:
                    pass

    async def _carry_out(self, name: str, rest: str) -> None:
        """Answer a command. Raises Disconnected."""
        commands: dict[str, Callable[[str], Awaitable[None]]] = {
            "help": self._help,
            "new": lambda _: self._new(),
            "list": self._conversations.show_list,
            "open": self._open,
            "search": self._conversations.search,
            "rename": self._conversations.rename,
            "delete": self._conversations.delete,
            "retry": self._retry,
            "continue": self._continue,
            "edit": self._edit,
            "model": self._model,
            "system": self._system,
            "tools": self._tools,
        }
        try:
            await commands[name](rest)
        except Refused as refused:
            self._ui.fail(f"[{refused}]")

    async def _help(self, _: str) -> None:
        self._ui.print_lines(*help_lines())

    async def _new(self) -> None:
        self._params = {}
        await self._conversations.new()

    async def _open(self, which: str) -> None:
        self._params = {}
        await self._conversations.open(which)
        await self._rejoin()

    async def _retry(self, _: str) -> None:
        if self._conversations.last.reply_id is None:
            self._ui.fail("No reply yet.")
        else:
            await self._show_reply_to(
                self._client.regenerate(self._conversations.last.reply_id, **self._send_options())
            )

    async def _continue(self, _: str) -> None:
        if self._conversations.last.reply_id is None:
            self._ui.fail("No reply yet.")
        else:
            before = self._conversations.last.text
            await self._show_reply_to(
                self._client.continue_reply(self._conversations.last.reply_id, **self._send_options()),
                before=before,
            )

    async def _edit(self, text: str) -> None:
        if self._conversations.last.message_id is None:
            self._ui.fail("No message yet.")
        elif not text:
            self._ui.fail("The new text is missing: /edit TEXT")
        else:
            await self._show_reply_to(
                self._client.edit(self._conversations.last.message_id, text, **self._send_options())
            )

    async def _model(self, name: str) -> None:
        models = self._client.ready["models"]
        names = [one for model in models for one in (model["name"], *model.get("aliases", ()))]
        if not name:
            named = self._params.get("model") or self._conversations.last.model or self._client.ready["model"]
            now = model_named(self._client.ready, named).get("name")
            self._ui.print_lines(
                *(f"{'*' if model['name'] == now else ' '} {model['name']}" for model in models)
            )
        elif name in names:
            self._params["model"] = name
            self._ui.note(f"{name} answers from now on.")
        else:
            near = get_close_matches(name, names, n=1)
            self._ui.fail(
                f"Unknown model: {name}; " + (f"did you mean {near[0]}?" if near else "/model lists them.")
            )

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
            self._ui.print_lines(*tool_lines(self._client.ready))
        self._ui.note(f"[tools are {'offered' if self._tools_on else 'not offered'}]")

    def _sent(self, content: str) -> Awaitable[Reply]:
        return self._client.send(content, **self._send_options())

    def _send_options(self) -> Frame:
        """Return the conversation and the options of a message."""
        last = self._conversations.last
        tools = (
            offered_tools(self._client.ready, self._params.get("model") or last.model)
            if self._tools_on
            else []
        )
        how: Frame = {"conversation_id": self._conversations.open_id}
        return (
            how
            | ({"tools": tools} if tools else {})
            | ({"params": dict(self._params)} if self._params else {})
        )

    async def _show_reply_to(self, sending: Awaitable[Reply], *, before: str = "") -> None:
        """Show the reply to a message. Raises Disconnected, ClientError."""
        try:
            reply = await sending
        except Refused as refused:
            self._ui.fail(f"[{refused}]")
            return
        self._params.pop("system", None)  # it stays with the conversation
        self._conversations.last.message_id = reply.accepted["message_id"]
        await self._show_replies(reply, before=before)

    async def _rejoin(self) -> None:
        """Show a running reply. Raises Refused, Disconnected."""
        if not self._conversations.last.is_unseen:
            return
        reply = await self._client.rejoin(self._conversations.open_id)
        if reply is None:  # it has ended meanwhile
            await self._conversations.show_last()
        else:
            await self._show_replies(reply)

    async def _show_replies(self, reply: Reply | None, *, before: str = "") -> None:
        """Show a reply, and those that follow its calls. Raises Disconnected, ClientError."""
        while reply is not None:
            self._reply = reply
            try:
                await self._ui.show(self._client, reply, before=before)
                following = await reply.following()
                if self._stopping is not None and following is None:
                    await self._stopping
            except ClientError:
                self._ui.ended(reply.done["reason"] if reply.done else "disconnected")
                raise
            finally:
                done, self._reply = reply.done, None
            self._keep(reply, before)
            if following is None:
                self._stopping = None
                self._ui.ended(done["reason"] if done else "disconnected")
            reply, before = following, ""

    def _keep(self, reply: Reply, before: str) -> None:
        last = self._conversations.last
        if reply.done:
            last.reply_id, last.model = reply.done["message_id"], requested_model(reply.done)
            last.text = before + reply.text


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


def new_id() -> str:
    """Return an id for a new conversation."""
    return f"terminal-{secrets.token_hex(4)}"


class Conversations:
    """The open conversation, by its id, and the listed ones, by their numbers."""

    def __init__(self, client: Client, ui: UserInterface, open_id: str) -> None:
        self._client = client
        self._ui = ui
        self._listed: list[str] = []
        self._search: tuple[str, str] | None = None  # the last query, and the cursor of its next page
        self.open_id = open_id
        self.last = Last()

    async def show(self) -> None:
        """Show which conversation is open, and its last messages. Raises Refused, Disconnected."""
        self.last = Last()
        past = await self._history()
        if not past:
            self._ui.note("This is a new conversation. /list shows those that you have.")
            return
        row = await self._row(self.open_id)
        description = "" if row is None else f" {quoted(row['title'])}, {_facts(row)}"
        self._ui.note(f"Open:{description or f' {self.open_id}'}. /new begins another, /list shows all.")
        for message in past:
            self._take(message)

    async def show_last(self) -> None:
        """Show the last message. Raises Refused, Disconnected."""
        for message in (await self._history())[-1:]:
            self._take(message)

    async def new(self) -> None:
        """Begin another conversation; its first message creates it."""
        self.open_id, self.last = new_id(), Last()
        self._ui.note("This is a new conversation. The one before is kept: /list.")

    async def show_list(self, rest: str) -> None:
        """List a page of conversations, newest first. Raises Refused, Disconnected."""
        before = self._listed[-1] if rest == "more" and self._listed else None
        rows = await self._client.conversations(limit=LISTED, before=before)
        if before is None:
            self._listed = []
        first = len(self._listed) + 1
        self._listed += [row["conversation_id"] for row in rows]
        lines = [self._line(number, row) for number, row in enumerate(rows, first)]
        self._ui.print_lines(*(lines or ["No more conversations." if before else "No conversations yet."]))
        if rows.has_more:
            self._ui.note("/list more shows older ones, /open NUMBER opens one.")

    async def search(self, query: str) -> None:
        """List conversations with the words of a query, or more for the last one. Raises Refused, Disconnected."""
        query_text, before = (query, None) if query or self._search is None else self._search
        if not query_text:
            self._ui.fail("Words are missing: /search WORDS")
            return
        found = await self._client.search(query_text, limit=LISTED, before=before)
        if before is None:
            self._listed = []
        first = len(self._listed) + 1
        self._listed += [hit["conversation_id"] for hit in found]
        self._search = None if found.next is None else (query_text, found.next)
        lines = [line for number, hit in enumerate(found, first) for line in self._found(number, hit)]
        self._ui.print_lines(*(lines or ["Nothing found so far." if found.next else "Nothing found."]))
        if found.next is not None:
            self._ui.note("/search continues with older ones, /open NUMBER opens one.")

    def _found(self, number: int, hit: Frame) -> list[str]:
        row = self._line(number, hit)
        return [row, f"     {hit['snippet']}"] if "message_id" in hit else [row]

    async def open(self, which: str) -> None:
        """Open a conversation by its number or its id. Raises Refused, Disconnected."""
        if (conversation_id := self._named(which)) is not None:
            await self._client.history(conversation_id, limit=1)  # fails if it does not exist
            self.open_id = conversation_id
            await self.show()

    async def rename(self, title: str) -> None:
        """Give the open conversation a title. Raises Refused, Disconnected."""
        if not title:
            self._ui.fail("A title is missing: /rename TITLE")
            return
        row = await self._client.rename(self.open_id, title)
        self._ui.note(f"It is called {quoted(row['title'])} now.")

    async def delete(self, which: str) -> None:
        """Delete a conversation for good, after a confirmation. Raises Refused, Disconnected."""
        conversation_id = self._named(which) if which else self.open_id
        if conversation_id is None:
            return
        row = await self._row(conversation_id)
        title = conversation_id if row is None else quoted(row["title"])
        if await self._ui.confirm(f"Delete {title} for good?"):
            await self._client.delete(conversation_id)
            self._ui.note("It is deleted.")
            if conversation_id == self.open_id:
                await self.new()

    def _named(self, which: str) -> str | None:
        """Return the id of a named conversation; None, with a message, if it is not known."""
        if not which:
            self._ui.fail("Which one? /list gives each a number.")
        elif not which.isdecimal():
            return which
        elif 1 <= int(which) <= len(self._listed):
            return self._listed[int(which) - 1]
        else:
            self._ui.fail(f"No conversation has the number {which}; /list shows the numbers.")
        return None

    async def _history(self) -> list[Frame]:
        try:
            return await self._client.history(self.open_id, limit=SHOWN_MESSAGES)
        except Refused as refused:
            if refused.code != "not_found":  # a conversation begins with its first message
                raise
            return []

    async def _row(self, conversation_id: str) -> Frame | None:
        rows = await self._client.conversations(limit=_NEWEST)
        return next((row for row in rows if row["conversation_id"] == conversation_id), None)

    def _take(self, message: Frame) -> None:
        if message["role"] == "user":
            self.last.message_id = message["message_id"]
            self._ui.show_past(message)
            return
        self.last.reply_id, self.last.model = message["message_id"], message["model"]
        self.last.text = message["content"]
        is_calling = any(call["state"] in ("waiting", "running") for call in message.get("calls", ()))
        self.last.is_unseen = self._ui.is_watched and (message["status"] == "running" or is_calling)
        if not self.last.is_unseen:
            self._ui.show_past(message)

    def _line(self, number: int, row: Frame) -> str:
        mark = "*" if row["conversation_id"] == self.open_id else " "
        return f"{mark}{number:>3}  {quoted(row['title'])}, {_facts(row)}"


def _facts(row: Frame) -> str:
    return f"{messages(row['messages'])}, {ago(row['updated_at'], time.time() * 1000)}"


@dataclass(frozen=True, slots=True)
class Message:
    """A line for the model."""

    content: str


@dataclass(frozen=True, slots=True)
class Command:
    """A line that is answered here; `rest` is what follows the name."""

    name: str
    rest: str


@dataclass(frozen=True, slots=True)
class UnknownCommand:
    """A line that looks like a command but is not one. It never reaches the model."""

    name: str

    def __str__(self) -> str:
        near = get_close_matches(self.name.lower(), NAMES, n=1)
        meant = f"did you mean /{near[0]}?" if near else "/help lists all commands."
        return f"Unknown command: /{self.name}; {meant} To send a message that starts with a slash, type two."


def read(line: str) -> Message | Command | UnknownCommand | None:
    """Return the kind of a line; None for a blank one."""
    content = line.strip()
    if not content:
        return None
    if not content.startswith("/"):
        return Message(content)
    if content.startswith("//"):
        return Message(content[1:])
    name, *rest = content[1:].split(maxsplit=1) or [""]
    known = _SAME.get(name, name)
    return Command(known, "".join(rest)) if known in _MAIN_NAMES else UnknownCommand(name)


def help_lines() -> list[str]:
    """Return all commands, a line each, and the keys."""
    width = max(map(len, HELP)) + 2
    commands = [f"{usage:<{width}}{what}" for usage, what in HELP.items()]
    keys = {
        "Ctrl-C": "stops the reply; pressed again, or with no reply, it leaves",
        "Alt-Enter": "begins a new line in your message",
        "Up, Ctrl-R": "bring back and find what you typed before",
    }
    return [*commands, "", *(f"{key:<{width}}{what}" for key, what in keys.items())]


def error_message(url: str, error: ClientError | OSError) -> str:
    """Return what is wrong with the service at a URL, from an error of the client."""
    parts = urlsplit(url)
    address = parts.netloc or url
    if isinstance(error, NotConnected):
        return f"{url} is not a chat service, or denied access: {error}"
    return (
        f"{address}: {error}"
        if isinstance(error, ClientError)
        else _unreachable(address, parts.hostname, error)
    )


def _unreachable(address: str, host: str | None, error: OSError) -> str:
    match error:
        case socket.gaierror():
            return f"Unknown host: {host}."
        case ssl.SSLError():
            return f"{address} can't be reached by TLS: {error}. If it has no TLS, write ws://{address}."
        case TimeoutError():
            return f"{address} does not answer."
        case _ if error.errno == errno.ECONNREFUSED or "Connect call failed" in str(error):
            what = (
                "start it with `midstream serve`, or name another place: `midstream chat HOST:PORT`."
                if is_here(host)
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
