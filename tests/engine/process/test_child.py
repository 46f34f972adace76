"""The line to an engine's process, on the event loop that the service has."""

from __future__ import annotations

import asyncio
import socket
import sys

import uvloop

from engine.process.supervision import ChildProcess, _MessageReader


def test_what_is_sent_to_a_process_that_is_gone_is_nothing() -> None:
    """Also before its end is known: uvloop raises where a line that broke is written to again."""

    async def send() -> None:
        ours, theirs = socket.socketpair()
        loop = asyncio.get_running_loop()
        transport, line = await loop.create_unix_connection(lambda: _MessageReader(lambda _: None), sock=ours)
        child = ChildProcess(await asyncio.create_subprocess_exec(sys.executable, "-c", ""), transport, line)
        theirs.close()
        for _ in range(3):
            child.send(b"packed")
        await line.ended.wait()
        child.send(b"packed")
        await child.wait()

    uvloop.run(send())
