"""The terminal client: type a line, read the reply as it is written, stop it with Ctrl-C. `/help` lists the commands.

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
import socket
import ssl
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from midstream.client import Client, Reconnecting, connect
from midstream.errors import ClientError, Disconnected, NotConnected, Refused
from midstream.server_connection import is_here, origin_of, socket_url
from midstream.terminal.chat_session import ChatSession, new_id
from midstream.terminal.pipe import Pipe, print_error
from midstream.terminal.reply_view import UserInterface

if TYPE_CHECKING:
    from midstream.terminal.screen import Screen


def error_message(url: str, error: ClientError | OSError) -> str:
    """Return what is wrong with the service at a URL, from an error of the client."""
    parts = urlsplit(url)
    address = parts.netloc or url
    if isinstance(error, NotConnected):
        return f"{url} is no chat service, or does not let you in: {error}"
    return (
        f"{address}: {error}"
        if isinstance(error, ClientError)
        else _unreachable(address, parts.hostname, error)
    )


def _unreachable(address: str, host: str | None, error: OSError) -> str:
    match error:
        case socket.gaierror():
            return f"There is no host of the name {host}."
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

    Where nobody needs a key, it is as good as a password: so each server gets another one, made from a secret that
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


CONVERSATION = "terminal"
"""The default conversation of terminals; a pipe begins a new one."""
EXIT_INTERRUPTED = 130
"""The exit code after Ctrl-C, as in shells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """The user. `key`: an API key or a JWT; without one, it is asked for if the service requires one."""

    client_id: str | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """Options of a chat. A lost connection is retried for `patience_s` seconds."""

    conversation_id: str | None = None
    patience_s: float = 60.0
    keeps_history: bool = True
    is_plain: bool = False


async def run(url: str, *, user: User | None = None, options: ChatOptions | None = None) -> int:
    """Chat with standard input and output until the input ends or the user leaves; return the exit code."""
    user, options, url = user or User(), options or ChatOptions(), socket_url(url)
    try:
        try:
            return await _chat(url, user, options)
        except Refused as refused:
            if refused.code != "unauthenticated" or user.key or not sys.stdin.isatty():
                raise
            key = await asyncio.to_thread(getpass.getpass, "This service asks for a key: ")
            return await _chat(url, User(client_id=user.client_id, key=key), options)
    except BrokenPipeError:  # the reader of the output has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ClientError, OSError) as error:
        print_error(error_message(url, error))
        return 1


async def _chat(url: str, user: User, options: ChatOptions) -> int:
    def on_connection_change(lost: Disconnected | None) -> None:
        ui.note("[connected again]" if lost is None else f"[{lost}; trying again]")

    reconnecting = Reconnecting(patience_s=options.patience_s, watch=on_connection_change)
    async with connect(
        url,
        client_id=user.client_id or kept_client_id(url),
        token=user.key,
        features=("reasoning", "tools"),
        reconnecting=reconnecting,
    ) as client:
        ui = _ui(options)  # earlier, it would read a key that is asked for
        if isinstance(ui, Pipe):
            return await _piped(client, ui, options)
        return await _watched(client, ui, options)


def _ui(options: ChatOptions) -> Pipe | Screen:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return Pipe()
    from midstream.terminal.screen import Screen  # noqa: PLC0415 - a pipe needs no line editing, and no Markdown

    try:
        history = history_file() if options.keeps_history else None
    except OSError as error:
        screen = Screen(history=None, is_plain=options.is_plain)
        screen.note(f"Your lines are not kept: {error}")
        return screen
    return Screen(history=history, is_plain=options.is_plain)


async def _watched(client: Client, ui: UserInterface, options: ChatOptions) -> int:
    ui.note(f"{client.ready['model']} · /help lists the commands, Ctrl-C stops a reply, Ctrl-D leaves.")
    session = ChatSession(client, ui, options.conversation_id or CONVERSATION)
    await session.run()
    kept = f" This conversation is kept as {session.conversation_id}." if session.is_begun else ""
    ui.note(f"Bye.{kept}")
    return 0


async def _piped(client: Client, pipe: Pipe, options: ChatOptions) -> int:
    if await ChatSession(client, pipe, options.conversation_id or new_id()).run():
        return EXIT_INTERRUPTED
    return int(pipe.has_failed)
