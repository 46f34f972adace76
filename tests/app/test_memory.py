"""Memory that was free in between goes back to the system, and a closed connection leaves nothing behind."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from app import memory
from connections.connection import Connection
from connections.http_protocol import HttpProtocol
from connections.websocket_protocol import LimitedProtocol, WebSocketProtocol
from sessions.limits.rates import LocalRateLimits
from tests.app.in_process_service import serving
from tests.chaos.memory import resident_bytes
from tests.chaos.minimal_websocket import MinimalWebSocket
from tests.chaos.odd_input import REALTIME, RESPONSES
from tests.sessions.chat_driver import eventually

MB = 1024 * 1024
PATTERN = re.compile("a")
CONNECTIONS = (HttpProtocol, WebSocketProtocol, LimitedProtocol, Connection)


@pytest.mark.skipif(memory._trim is None or sys.platform != "linux", reason="not glibc")
def test_holes_between_small_things_are_given_back() -> None:
    pairs = [(bytes(30_000), bytes(1_000)) for _ in range(3_000)]
    kept = [small for _, small in pairs]
    pairs.clear()
    before = resident_bytes(os.getpid())
    memory.give_back()
    assert before - resident_bytes(os.getpid()) > 20 * MB
    assert len(kept) == 3_000


@pytest.mark.skipif(memory._trim is None or sys.platform != "linux", reason="not glibc")
def test_large_blocks_between_small_things_are_given_back_at_once() -> None:
    """glibc keeps those that are no larger than one that was freed before, up to 32 MiB. In a process of its own."""
    program = """
from app import memory
from tests.app.test_memory import MB, os, resident_bytes
memory.set_up()
del [bytearray(6 * MB)][0]
before = resident_bytes(os.getpid())
pairs = [(b"a" * 4 * MB, bytes(100_000)) for _ in range(16)]
kept = [small for _, small in pairs]
pairs.clear()
print((resident_bytes(os.getpid()) - before) // MB)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(ran.stdout) < 8


async def test_a_service_gives_back_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []
    monkeypatch.setattr(memory, "GIVE_BACK_S", 0.01)
    monkeypatch.setattr(memory, "_trim", given.append)
    async with serving(tmp_path):
        await eventually(lambda: len(given) > 1)


def still_referenced(names: list[str]) -> int:
    """How many of these names something else holds."""
    alone = sys.getrefcount(str(10**9))
    return sum(sys.getrefcount(names[at]) > alone + 1 for at in range(len(names)))


@pytest.mark.skipif(memory._clear_caches is None, reason="this Python can't clear it")
def test_copies_of_a_name_that_was_looked_up_are_let_go() -> None:
    """C code makes a name anew for each look-up, and Python keeps up to 4,096 of them, each in a page of its own."""
    names = [b"search".decode() for _ in range(1_000)]
    for at in range(len(names)):
        getattr(PATTERN, names[at])
    assert still_referenced(names) > 100
    memory.forget_names()
    assert not still_referenced(names)


async def test_a_service_forgets_who_sent_and_what_was_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgot: set[str] = set()
    monkeypatch.setattr(memory, "GIVE_BACK_S", 0.01)
    monkeypatch.setattr(memory, "_clear_caches", lambda: forgot.add("names"))
    monkeypatch.setattr(LocalRateLimits, "forget", lambda _: forgot.add("senders"))
    async with serving(tmp_path):
        await eventually(lambda: forgot == {"names", "senders"})


def connections() -> list[object]:
    return [
        it for it in gc.get_objects() if type(it) in CONNECTIONS
    ]  # no `isinstance`: proxies answer for themselves


@pytest.mark.parametrize("greets", [False, True], ids=["silent", "greeted"])
@pytest.mark.parametrize(
    ("path", "greeting"),
    [
        ("/v1/ws", {"type": "hello"}),
        *((each.path, each.honest[0]) for each in (REALTIME, RESPONSES)),
    ],
)
async def test_what_a_connection_took_is_freed_without_the_collector(
    path: str, greeting: dict[str, Any], tmp_path: Path, *, greets: bool
) -> None:
    async with serving(tmp_path) as running:
        before = len(connections())
        gc.disable()
        try:
            for _ in range(3):
                one = await MinimalWebSocket.connect(("127.0.0.1", running.port))
                await one.handshake(path=path)
                if greets:
                    await one.put(**greeting)
                    await one.get()
                one.close()
            await eventually(lambda: len(connections()) <= before)
        finally:
            gc.enable()
