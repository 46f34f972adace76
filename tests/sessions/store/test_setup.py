"""What an operator is told about how the store is set up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from sessions.errors import StoreDown
from sessions.store.client import Durability, connect
from sessions.store.server_config import checked_server_configs, config_warnings, server_configs
from tests.sessions.server_group import happened, node


@asynccontextmanager
async def server(folder: Path, **options: str | int) -> AsyncIterator[Redis]:
    async with node(folder / "one", **options) as one, connect(f"redis://127.0.0.1:{one.port}") as store:
        yield store


async def setup_advice(store: Redis, durability: Durability = Durability.MEMORY) -> str:
    return " ".join(config_warnings(await server_configs(store), durability))


async def test_of_the_embedded_store_there_is_nothing_to_say(store: Redis) -> None:
    assert await setup_advice(store) == ""


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"appendonly": "yes", "maxmemory": "64mb", "maxmemory-policy": "volatile-lru"}, "evicts keys"),
        ({"save": ""}, "writes nothing to disk"),
        ({"save": "3600 1"}, "snapshots alone"),
        ({"appendonly": "yes", "appendfsync": "everysec"}, "lose the last two seconds"),
        ({"appendonly": "yes", "appendfsync": "no"}, "lose the last half minute"),
        ({"appendonly": "yes"}, "no limit of its own (maxmemory 0)"),
    ],
)
async def test_what_may_lose_conversations_is_said(
    tmp_path: Path, options: dict[str, str], sentence: str
) -> None:
    async with server(tmp_path, **options) as store:
        assert sentence in await setup_advice(store)


async def test_a_policy_that_never_comes_to_pass_is_not_spoken_of(tmp_path: Path) -> None:
    async with server(
        tmp_path, appendonly="yes", appendfsync="always", maxmemory_policy="allkeys-lru"
    ) as store:
        assert "evicts" not in await setup_advice(store)


async def test_a_server_that_forbids_config_is_asked_otherwise(tmp_path: Path) -> None:
    """As managed ones do."""
    async with server(tmp_path, save="", maxmemory="64mb", maxmemory_policy="allkeys-lru") as store:
        await store.execute_command("ACL", "SETUSER", "default", "-config")
        words = await setup_advice(store)
        assert "evicts keys" in words
        assert "no append-only file" in words
    async with server(tmp_path / "other", appendonly="yes") as store:
        await store.execute_command("ACL", "SETUSER", "default", "-config")
        assert "does not say how it writes to its disk" in await setup_advice(store)


async def test_a_store_that_still_reads_its_file_is_waited_for(tmp_path: Path) -> None:
    """It says that it has no file until then. If it is ready a moment later, nothing else shows why."""
    async with node(tmp_path / "one", appendonly="yes", appendfsync="always") as one:
        one.kill()
        await one.process.wait()
        (file,) = (tmp_path / "one" / "appendonlydir").glob("*.incr.aof")
        with file.open("ab") as data:
            data.write(b"*2\r\n$4\r\nINCR\r\n$7\r\ncounter\r\n" * 200_000)
        # it sleeps at every fourth command, and answers after each 1,024
        one.process = await asyncio.create_subprocess_exec(*one.command, "--key-load-delay", "-4")

        async def is_reading() -> bool:
            try:
                return bool((await one.ask("INFO", "persistence"))["loading"])
            except RedisError:
                return False

        await happened(is_reading)
        async with connect(f"redis://127.0.0.1:{one.port}") as store:
            with pytest.raises(StoreDown, match="BusyLoading"):
                await checked_server_configs(store, Durability.DISK)


async def test_replicas_that_are_asked_for_and_missing_are_spoken_of(tmp_path: Path) -> None:
    async with server(tmp_path, appendonly="yes") as store:
        assert "no replica" in await setup_advice(store, Durability.REPLICATED)
