"""The start checks the store. It stops if the store lacks something, and logs what may lose conversations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, MutableMapping
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from app.parts import durability_of, look_at_store, store_client, store_url
from app.settings import Settings, SettingsError
from engine.scripted import ScriptedEngine
from sessions.errors import StoreDown
from sessions.service import Sessions
from sessions.store import server_config
from sessions.store.client import Durability, connect
from sessions.store.ownership import Ownership
from sessions.turn.policy import Policy
from tests.sessions.chat_driver import eventually
from tests.sessions.server_group import Node, node, restarted


@pytest.fixture
async def careless(tmp_path: Path) -> AsyncIterator[Redis]:
    """A server without persistence that evicts keys."""
    options = {"save": "", "maxmemory": "64mb", "maxmemory_policy": "volatile-lru"}
    async with (
        node(tmp_path / "one", **options) as one,
        connect(f"redis://127.0.0.1:{one.port}") as store,
    ):
        yield store


def settings(durability: str, *, url: str | None = "redis://somewhere") -> Settings:
    environ = {"MIDSTREAM_STORE_DURABILITY": durability} | ({"MIDSTREAM_REDIS_URL": url} if url else {})
    return Settings.read(environ)


@pytest.mark.parametrize(
    "url",
    [
        *(f"redis://:secret{mark}part@127.0.0.1/0" for mark in "/?#["),
        "redis://ann:secret@one/part@127.0.0.1",
        "redis+sentinel://:secret/part@127.0.0.1/main",
    ],
)
def test_a_password_that_is_not_escaped_is_refused_and_not_quoted(url: str) -> None:
    with pytest.raises(SettingsError, match="Write / as %2F") as refused:
        store_client(url)
    assert "secret" not in str(refused.value)
    assert "part" not in str(refused.value).replace("a part", "")


@pytest.mark.parametrize(
    "url",
    [
        "redis://:a%2Fb@127.0.0.1/0",
        "unix:///tmp/a@b.sock",
        "redis+sentinel://127.0.0.1/main?sentinel_password=a@b",
    ],
)
def test_a_url_may_hold_an_at_sign_elsewhere(url: str) -> None:
    assert store_client(url)


async def test_a_store_that_may_lose_conversations_is_warned_of(careless: Redis) -> None:
    with capture_logs() as logged:
        await look_at_store(settings("memory"), careless)
    warnings = [entry["event"] for entry in logged if entry["log_level"] == "warning"]
    assert len(warnings) == 2
    assert "volatile-lru" in warnings[0]
    assert "writes nothing to disk" in warnings[1]


async def test_a_store_that_writes_each_second_is_warned_of(tmp_path: Path) -> None:
    async with (
        node(tmp_path / "one", save="", appendonly="yes") as one,
        connect(f"redis://127.0.0.1:{one.port}") as store,
    ):
        with capture_logs() as logged:
            await look_at_store(settings("memory"), store)
    assert any("can lose the last two seconds of acknowledged messages" in entry["event"] for entry in logged)


async def test_a_store_that_is_set_up_well_is_not(store: Redis) -> None:
    with capture_logs() as logged:
        await look_at_store(settings("disk"), store)
    assert [entry for entry in logged if entry["log_level"] == "warning"] == []


async def test_what_a_store_can_not_do_stops_the_start(careless: Redis) -> None:
    with pytest.raises(SettingsError, match=r"STORE_DURABILITY.*appendonly"):
        await look_at_store(settings("disk"), careless)


@pytest.fixture
async def dead(tmp_path: Path) -> AsyncIterator[tuple[Node, Redis]]:
    """A killed server, and its client."""
    async with node(tmp_path / "one") as one, connect(f"redis://127.0.0.1:{one.port}") as store:
        one.kill()
        await one.process.wait()
        yield one, store


async def waits_for(one: Node, beginning: Coroutine[None, None, None]) -> list[MutableMapping[str, Any]]:
    """Begins the start, and restarts the server once it is waited for; returns the log."""
    with capture_logs() as logged:
        begun = asyncio.create_task(beginning)
        await eventually(lambda: any(entry["event"] == "waiting for the store" for entry in logged))
        async with restarted(one):
            await begun
    return logged


async def test_a_store_that_is_not_there_yet_is_waited_for(
    dead: tuple[Node, Redis], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like a server that was just started and still loads its data."""
    monkeypatch.setattr(server_config, "PAUSE_S", 0.02)
    one, store = dead
    named = settings("memory", url="redis://ann:secret@somewhere/3?health_check_interval=1")
    logged = await waits_for(one, look_at_store(named, store))
    assert (logged[0]["at"], logged[-1]["event"]) == ("redis://somewhere/3", "store")


async def test_a_store_that_dies_while_a_replica_begins_is_waited_for(
    dead: tuple[Node, Redis], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was checked a moment ago."""
    monkeypatch.setattr(server_config, "PAUSE_S", 0.02)
    one, store = dead
    sessions = Sessions(client=store, engine=ScriptedEngine(), policy=Policy(ttl_s=60, max_turns=10))

    async def begin() -> None:
        async with sessions.running(alone=True):
            pass

    await waits_for(one, begin())


async def test_a_store_that_dies_while_a_replica_begins_and_stays_away_ends_the_start(
    dead: tuple[Node, Redis], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_config, "PATIENCE_S", 0.0)
    sessions = Sessions(client=dead[1], engine=ScriptedEngine(), policy=Policy(ttl_s=60, max_turns=10))
    with pytest.raises(StoreDown):
        async with sessions.running(alone=True):
            pass


def test_the_embedded_store_has_no_replicas() -> None:
    with pytest.raises(SettingsError, match="no replicas"):
        durability_of(settings("replicated", url=None))


def test_the_embedded_store_is_durable_by_default() -> None:
    assert durability_of(Settings.read({})) is Durability.DISK
    assert durability_of(Settings.read({"MIDSTREAM_REDIS_URL": "redis://somewhere"})) is Durability.MEMORY


@pytest.mark.parametrize(
    ("durability", "fsync"), [(None, "always"), ("disk", "always"), ("memory", "everysec")]
)
async def test_the_embedded_store_is_started_as_the_setting_says(
    tmp_path: Path, durability: str | None, fsync: str
) -> None:
    environ = {"MIDSTREAM_DATA_DIR": str(tmp_path)} | (
        {"MIDSTREAM_STORE_DURABILITY": durability} if durability else {}
    )
    async with store_url(Settings.read(environ)) as url, connect(url) as store:
        assert (await store.config_get("appendfsync"))["appendfsync"] == fsync


async def test_a_replica_of_an_older_version_stops_the_start(store: Redis) -> None:
    """It could not read what this one writes. Its lease shows it."""
    here = Ownership(store, replica="here")
    await here.renew()
    await look_at_store(settings("memory"), store)
    await store.set("ms:replica:there", b"1", px=8000)
    with pytest.raises(SettingsError, match="Stop them first"):
        await look_at_store(settings("memory"), store)
    await store.delete("ms:replica:there")
    await look_at_store(settings("memory"), store)
    await here.release_lease()
