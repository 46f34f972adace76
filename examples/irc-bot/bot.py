"""A bot for IRC on Midstream's Python client: `python bot.py --irc irc.example.org:6667 --channel '#tea'`.

It answers people who write `midstream: …` in its channel, or write to it privately. Each person has a conversation in each place.
`stop` ends the reply that is being written, and the history keeps what was sent.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import secrets
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import midstream

LINE = re.compile(r"(?::(?P<nick>[^ !]+)\S* )?(?P<command>\S+)(?: (?P<rest>.*))?")
CONTROLS = re.compile(r"[\x00-\x1f\x7f]")
ENDS = re.compile(r"(?<=[.!?])\s+|\n+")
MOST_BYTES = 400
"""Of one line: IRC cuts lines at 512 bytes, with the sender's name and the channel."""


class Bot:
    """One connection to an IRC server, and one to Midstream."""

    def __init__(self, client: midstream.Client, writer: asyncio.StreamWriter, nick: str) -> None:
        self._client, self._writer, self.nick = client, writer, nick
        self._replies: dict[str, asyncio.Task[None]] = {}  # by conversation, while they are written
        self._running: dict[str, midstream.Reply] = {}

    async def write(self, line: str) -> None:
        """Sends a line of IRC, once the server took the lines before. What a model writes can't begin another line."""
        self._writer.write(CONTROLS.sub(" ", line).encode() + b"\r\n")
        await self._writer.drain()

    async def handle(self, line: str, channel: str) -> None:
        """Acts on a line of IRC."""
        parsed = LINE.fullmatch(line)
        if parsed is None:
            return
        match parsed["command"], parsed["rest"] or "":
            case "PING", rest:
                await self.write(f"PONG {rest}")
            case "001", _:  # the server's welcome
                await self.write(f"JOIN {channel}")
            case "PRIVMSG", rest:
                target, _, text = rest.partition(" :")
                addressed = re.fullmatch(rf"{re.escape(self.nick)}[:,]\s*(.*)", text)
                nick = parsed["nick"] or ""
                if target == self.nick:
                    await self._request(text, nick=nick, place=nick)
                elif addressed:
                    await self._request(addressed[1], nick=nick, place=target)

    async def _request(self, text: str, *, nick: str, place: str) -> None:
        conversation = sha256(f"{nick}\0{place}".encode()).hexdigest()[:32]
        if text.strip() == "stop":
            if (reply := self._running.pop(conversation, None)) is not None:
                await reply.cancel()
        elif conversation in self._replies:
            await self.write(f"PRIVMSG {place} :{nick}: I am still answering; say stop first.")
        else:
            self._replies[conversation] = task = asyncio.create_task(
                self._answer(conversation, text, nick, place)
            )
            task.add_done_callback(lambda _: self._replies.pop(conversation, None))

    async def _answer(self, conversation: str, text: str, nick: str, place: str) -> None:
        try:
            reply = await self._client.send(text, conversation_id=conversation)
            self._running[conversation] = reply
            sent = 0
            async for _ in reply:
                if conversation not in self._running:
                    break  # the reply was stopped: what comes now is not kept
                lines, sent = lines_of(reply.text, sent)
                for line in lines:
                    await self.write(f"PRIVMSG {place} :{nick}: {line}")
            done = await reply.wait()
            for line in lines_of(reply.text + "\n", sent)[0]:
                await self.write(f"PRIVMSG {place} :{nick}: {line}")
            if done["reason"] == "cancelled":
                await self.write(f"PRIVMSG {place} :{nick}: (stopped)")
        except midstream.ClientError as error:
            await self.write(f"PRIVMSG {place} :{nick}: I can't answer now: {error}")
        finally:
            self._running.pop(conversation, None)


def lines_of(text: str, sent: int) -> tuple[list[str], int]:
    """Return the complete sentences of a reply after its first `sent` characters, and how many characters are sent with them.

    A long sentence comes in parts. Pure.
    """
    *whole, rest = ENDS.split(text[sent:])
    width = MOST_BYTES // 4  # a character has up to four bytes
    parts = [line[at : at + width] for line in whole for at in range(0, len(line), width)]
    end = len(text) - len(rest)
    while len(rest) > width:
        parts.append(rest[:width])
        rest, end = rest[width:], end + width
    return parts, end


def client_id_in(path: Path) -> str:
    """Return the client id in a file, which is made if it is missing. The id is as secret as a password."""
    with (
        suppress(FileExistsError),
        os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file,
    ):
        file.write(secrets.token_hex(16))
    return path.read_text().strip()


async def main() -> None:
    """Serves until one of the two connections is gone."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition(":")[0])
    parser.add_argument("--irc", default="127.0.0.1:6667", help="the IRC server, as HOST:PORT")
    parser.add_argument("--channel", default="#midstream")
    parser.add_argument("--nick", default="midstream")
    parser.add_argument("--service", default="127.0.0.1:8000", help="Midstream, as HOST:PORT or its URL")
    parser.add_argument("--key", help="an API key, where the service wants one")
    parser.add_argument(
        "--id-file",
        default="irc-bot.id",
        type=Path,
        help="file of the bot's client id; made if it is missing",
    )
    chosen = parser.parse_args()
    host, _, port = chosen.irc.rpartition(":")
    client_id = client_id_in(chosen.id_file)
    async with midstream.connect(chosen.service, client_id=client_id, token=chosen.key) as client:
        reader, writer = await asyncio.open_connection(host, int(port))
        bot = Bot(client, writer, chosen.nick)
        await bot.write(f"NICK {chosen.nick}")
        await bot.write(f"USER {chosen.nick} 0 * :a bot on Midstream")
        async for line in reader:
            await bot.handle(line.decode(errors="replace").rstrip("\r\n"), chosen.channel)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(main())
