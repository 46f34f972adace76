"""The bot in a channel: a real service, a real socket, and the few lines of IRC that a server says."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import midstream
from tests.app.in_process_service import InProcessService, serving

ENDS = re.compile(r"(?<=[.!?])\s+")
BOT = Path(__file__).resolve().parents[2] / "examples" / "irc-bot" / "bot.py"


class Channel:
    """What the IRC server sees of the bot."""

    def __init__(self) -> None:
        self.joined: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Future()

    def joins(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.joined.set_result((reader, writer))

    async def received(self) -> str:
        return (await (await self.joined)[0].readline()).decode().rstrip("\r\n")

    async def send(self, line: str) -> None:
        (await self.joined)[1].write(f"{line}\r\n".encode())

    async def answer(self) -> str:
        """What the bot says next, without the channel."""
        return (await self.received()).partition(" :")[2]


@asynccontextmanager
async def in_a_channel(service: InProcessService, folder: Path) -> AsyncIterator[Channel]:
    channel = Channel()
    async with await asyncio.start_server(channel.joins, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        options = ("--irc", f"127.0.0.1:{port}", "--channel", "#tea", "--service", service.ws_url)
        bot = await asyncio.create_subprocess_exec(sys.executable, str(BOT), *options, cwd=folder)
        try:
            assert await channel.received() == "NICK midstream"
            assert (await channel.received()).startswith("USER midstream")
            await channel.send(":irc.test 001 midstream :Welcome")
            assert await channel.received() == "JOIN #tea"
            yield channel
        finally:
            bot.kill()
            await bot.wait()
            (await channel.joined)[1].close()


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[InProcessService]:
    async with serving(tmp_path / "service") as service:
        yield service


async def test_who_speaks_to_the_bot_is_answered_and_others_are_not(
    running: InProcessService, tmp_path: Path
) -> None:
    async with in_a_channel(running, tmp_path) as channel:
        await channel.send("PING :here")
        assert await channel.received() == "PONG :here"
        await channel.send(":ann!a@test PRIVMSG #tea :hello everybody")
        await channel.send(":ann!a@test PRIVMSG #tea :midstream: hello")
        assert (await channel.answer()).startswith("ann: ")


async def test_stop_ends_the_reply_and_the_history_has_what_was_told(
    running: InProcessService, tmp_path: Path
) -> None:
    running.engine._pace_s = 0.002
    running.engine.script([f"Sentence {n}. " for n in range(2000)])
    async with in_a_channel(running, tmp_path) as channel:
        await channel.send(":ann!a@test PRIVMSG #tea :midstream: go on")
        received = [await channel.answer()]
        await channel.send(":ann!a@test PRIVMSG #tea :midstream, stop")
        while received[-1] != "ann: (stopped)":
            received.append(await channel.answer())
        assert len(received) < 2000
        async with midstream.connect(running.ws_url, client_id="irc-midstream") as stranger:
            assert await stranger.search("Sentence") == []
        own = tmp_path / "irc-bot.id"
        assert own.stat().st_mode & 0o077 == 0
        async with midstream.connect(running.ws_url, client_id=own.read_text()) as client:
            (found,) = await client.search("Sentence")
            history = await client.history(found["conversation_id"])
    assert [f"ann: {line}" for line in ENDS.split(history[-1]["content"].strip())] == received[:-1]


async def test_what_a_model_writes_begins_no_command(running: InProcessService, tmp_path: Path) -> None:
    running.engine.script(["Well\rQUIT :bye\x00 then."])
    async with in_a_channel(running, tmp_path) as channel:
        await channel.send(":ann!a@test PRIVMSG midstream :hello")
        assert await channel.received() == "PRIVMSG ann :ann: Well QUIT :bye  then."
