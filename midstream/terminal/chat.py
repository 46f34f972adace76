"""The terminal client: type a line, read the reply as it is written, stop it with Ctrl-C. `/help` lists the commands.

In a pipe each line of the input is a message, and the output has only the replies.
"""

from __future__ import annotations

import asyncio
import getpass
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from midstream.address import socket_url
from midstream.client import Client, Reconnecting, connect
from midstream.errors import ClientError, Disconnected, Refused
from midstream.terminal.chat_session import ChatSession
from midstream.terminal.conversations import Conversations, new_id
from midstream.terminal.error_messages import error_message
from midstream.terminal.pipe import Pipe, print_error
from midstream.terminal.user_files import history_file, kept_client_id
from midstream.terminal.user_interface import UserInterface
from midstream.terminal.voice.device import SoundDevice, SoundUnavailable
from midstream.terminal.voice.voice_setup import VoiceOptions, run_voice_chat

if TYPE_CHECKING:
    from midstream.terminal.screen import Screen

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
    """Options of a chat. A lost connection is retried for `patience_s` seconds. `voice`: None: typed."""

    conversation_id: str | None = None
    patience_s: float = 60.0
    keeps_history: bool = True
    is_plain: bool = False
    voice: VoiceOptions | None = None


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
    except SoundUnavailable as why:
        print_error(str(why))
        return 1
    except (ClientError, OSError) as error:
        print_error(error_message(url, error))
        return 1


async def _chat(url: str, user: User, options: ChatOptions) -> int:
    def on_connection_change(lost: Disconnected | None) -> None:
        ui.note("[connected again]" if lost is None else f"[{lost}; trying again]")

    device = _found(options.voice)
    reconnecting = Reconnecting(patience_s=options.patience_s, watch=on_connection_change)
    async with connect(
        url,
        client_id=user.client_id or kept_client_id(url),
        token=user.key,
        features=("reasoning", "tools", *(() if device is None else ("audio",))),
        reconnecting=reconnecting,
    ) as client:
        ui = _ui(options)  # earlier, it would read a key that is asked for
        if isinstance(ui, Pipe):
            return await _piped(client, ui, options)
        return await (
            _watched(client, ui, options) if device is None else _talked(client, ui, options, device)
        )


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


def _found(voice: VoiceOptions | None) -> SoundDevice | None:
    """The sound device of who talks. Raises SoundUnavailable."""
    if voice is None:
        return None
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise SoundUnavailable("--voice needs a terminal: here the input or the output is none.")
    return voice.finds()


async def _watched(client: Client, ui: UserInterface, options: ChatOptions) -> int:
    ui.note(f"{client.ready['model']} · /help lists the commands, Ctrl-C stops a reply, Ctrl-D leaves.")
    session = ChatSession(client, ui, options.conversation_id or CONVERSATION)
    await session.run()
    kept = f" This conversation is kept as {session.conversation_id}." if session.is_begun else ""
    ui.note(f"Bye.{kept}")
    return 0


async def _talked(client: Client, screen: Screen, options: ChatOptions, device: SoundDevice) -> int:
    conversation_id = options.conversation_id or CONVERSATION
    await Conversations(client, screen, conversation_id).show(takes_commands=False)
    by_key = options.voice is not None and options.voice.by_key
    await run_voice_chat(client, screen, device, conversation_id=conversation_id, by_key=by_key)
    screen.note(f"Bye. This conversation is kept as {conversation_id}.")
    return 0


async def _piped(client: Client, pipe: Pipe, options: ChatOptions) -> int:
    if await ChatSession(client, pipe, options.conversation_id or new_id()).run():
        return EXIT_INTERRUPTED
    return int(pipe.has_failed)
