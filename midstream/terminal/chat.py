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
from midstream.terminal.conversations import Conversations, new_id
from midstream.terminal.face import Face
from midstream.terminal.home import kept_client_id, typed_before
from midstream.terminal.pipe import Pipe, complain
from midstream.terminal.talk import Talk
from midstream.terminal.troubles import trouble
from midstream.terminal.voice.beginning import Voice, talk_aloud
from midstream.terminal.voice.device import NoSound, SoundDevice

if TYPE_CHECKING:
    from midstream.terminal.screen import Screen

CONVERSATION = "terminal"
"""The default conversation of terminals; a pipe begins a new one."""
INTERRUPTED = 130
"""The exit code after Ctrl-C, as in shells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Who:
    """The user. `key`: an API key or a JWT; without one, it is asked for if the service requires one."""

    client_id: str | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """Options of a chat. A lost connection is retried for `patience_s` seconds. `voice`: None: typed."""

    conversation_id: str | None = None
    patience_s: float = 60.0
    keeps_history: bool = True
    is_plain: bool = False
    voice: Voice | None = None


async def run(url: str, *, who: Who | None = None, how: How | None = None) -> int:
    """Chat with standard input and output until the input ends or the user leaves; return the exit code."""
    who, how, url = who or Who(), how or How(), socket_url(url)
    try:
        try:
            return await _chat(url, who, how)
        except Refused as refused:
            if refused.code != "unauthenticated" or who.key or not sys.stdin.isatty():
                raise
            key = await asyncio.to_thread(getpass.getpass, "This service asks for a key: ")
            return await _chat(url, Who(client_id=who.client_id, key=key), how)
    except BrokenPipeError:  # the reader of the output has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except NoSound as why:
        complain(str(why))
        return 1
    except (ClientError, OSError) as error:
        complain(trouble(url, error))
        return 1


async def _chat(url: str, who: Who, how: How) -> int:
    def tell(lost: Disconnected | None) -> None:
        face.note("[connected again]" if lost is None else f"[{lost}; trying again]")

    device = _found(how.voice)
    reconnecting = Reconnecting(patience_s=how.patience_s, watch=tell)
    async with connect(
        url,
        client_id=who.client_id or kept_client_id(url),
        token=who.key,
        features=("reasoning", "tools", *(() if device is None else ("audio",))),
        reconnecting=reconnecting,
    ) as client:
        face = _face(how)  # earlier, it would read a key that is asked for
        if isinstance(face, Pipe):
            return await _piped(client, face, how)
        return await (_watched(client, face, how) if device is None else _talked(client, face, how, device))


def _face(how: How) -> Pipe | Screen:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return Pipe()
    from midstream.terminal.screen import Screen  # noqa: PLC0415 - a pipe needs no line editing, and no Markdown

    try:
        history = typed_before() if how.keeps_history else None
    except OSError as error:
        screen = Screen(history=None, is_plain=how.is_plain)
        screen.note(f"Your lines are not kept: {error}")
        return screen
    return Screen(history=history, is_plain=how.is_plain)


def _found(voice: Voice | None) -> SoundDevice | None:
    """The sound device of who talks. Raises NoSound."""
    if voice is None:
        return None
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise NoSound("--voice needs a terminal: here the input or the output is none.")
    return voice.finds()


async def _watched(client: Client, face: Face, how: How) -> int:
    face.note(f"{client.ready['model']} · /help lists the commands, Ctrl-C stops a reply, Ctrl-D leaves.")
    talk = Talk(client, face, how.conversation_id or CONVERSATION)
    await talk.run()
    kept = f" This conversation is kept as {talk.conversation_id}." if talk.is_begun else ""
    face.note(f"Bye.{kept}")
    return 0


async def _talked(client: Client, screen: Screen, how: How, device: SoundDevice) -> int:
    place = how.conversation_id or CONVERSATION
    await Conversations(client, screen, place).show(takes_commands=False)
    by_key = how.voice is not None and how.voice.by_key
    await talk_aloud(client, screen, device, conversation_id=place, by_key=by_key)
    screen.note(f"Bye. This conversation is kept as {place}.")
    return 0


async def _piped(client: Client, pipe: Pipe, how: How) -> int:
    if await Talk(client, pipe, how.conversation_id or new_id()).run():
        return INTERRUPTED
    return int(pipe.has_failed)
