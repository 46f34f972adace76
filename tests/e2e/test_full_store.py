"""Nobody can take the store from the others, and a service whose store is full starts, is read, and gives memory back.

A real service with a small real Redis. Its rates are lifted, so that attackers are stopped by the store's shares alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from sessions.store.client import connect
from tests.chaos.gateway import UNHURRIED, Script, command
from tests.e2e.websocket_client import WebSocketClient, connect_client
from tests.sample_images import chunk, png
from tests.server_process import ServerProcess
from tests.sessions.server_group import Node, node

MIB = 1024**2
STORE = 48 * MIB
OTHER_ADDRESS = "127.0.0.2"
AT_ONCE = 2
REFUSALS = 8
"""Refusals one after the other that end an attack, or a part of it."""
SIZES = (2 * MIB, 512 * 1024, 64 * 1024, 4096, 128)
ROOM_S = 10.0
"""How long it may take until a store that was full is known to have room: it is measured each second."""
FULL = {"store_full", "too_many_images", "store_unavailable"}


class Service(NamedTuple):
    process: ServerProcess
    store: Node

    async def used(self) -> int:
        return int((await self.memory())["used_memory"])

    async def memory(self) -> dict[str, Any]:
        async with connect(f"redis://127.0.0.1:{self.store.port}") as client:
            return await client.info("memory")


@asynccontextmanager
async def serving(folder: Path, *, pace_s: float = 0.0) -> AsyncIterator[Service]:
    options: dict[str, str | int] = {
        "maxmemory": STORE,
        "maxmemory_policy": "noeviction",
        "appendonly": "yes",
    }
    async with node(folder / "redis", save="", **options) as store:
        url = f"redis://127.0.0.1:{store.port}"
        environ = UNHURRIED | {"MIDSTREAM_REDIS_URL": url}
        process = ServerProcess(folder, environ, command=command(Script(images=True, pace_s=pace_s)))
        await asyncio.to_thread(process.start)
        try:
            yield Service(process, store)
        finally:
            if process.process is not None and process.process.poll() is None:
                process.kill()


async def until_refused(attempt: Callable[[int], Awaitable[bool]], numbers: count[int]) -> None:
    """Attempt something, several at a time, until it is refused again and again."""
    refused = 0
    while refused < REFUSALS:
        admitted = await asyncio.gather(*(attempt(next(numbers)) for _ in range(AT_ONCE)))
        refused = 0 if any(admitted) else refused + AT_ONCE


async def upload_all(service: Service, *, address: str, names: int) -> None:
    """Upload ever smaller images under so many names, until none is taken."""
    numbers = count()
    transport = httpx.AsyncHTTPTransport(local_address=address)
    async with httpx.AsyncClient(base_url=service.process.url, transport=transport, timeout=60) as client:
        for size in SIZES:

            async def upload(number: int, size: int = size) -> bool:
                image = png(more=chunk(b"pRIv", number.to_bytes(8) + bytes(size)))
                params = {"client_id": f"attacker-{number % names}"}
                answer = await client.post("/v1/attachments", params=params, content=image)
                assert answer.status_code == 200 or answer.json()["error"]["code"] in FULL, answer.text
                return answer.status_code == 200

            await until_refused(upload, numbers)


async def send_all(service: Service, *, address: str, names: int) -> None:
    """Send ever shorter messages under so many names, until none is taken."""
    numbers = count()
    for size in (32_000, 2_000, 10):

        async def send_message(number: int, size: int = size) -> bool:
            options = {"local_addr": (address, 0), "max_size": None}
            async with connect_client(
                service.process.ws_url, f"attacker-{number % names}", **options
            ) as attacker:
                answer = await attacker.send_message("x" * size, conversation_id=f"c{number}")
                assert answer["type"] == "accepted" or answer["code"] in FULL, answer
                return bool(answer["type"] == "accepted")

        await until_refused(send_message, numbers)


async def works_for(name: str, service: Service) -> None:
    """Everything that one who did nothing wrong may do."""
    async with (
        connect_client(service.process.ws_url, name) as victim,
        httpx.AsyncClient(base_url=service.process.url, params={"client_id": name}) as client,
    ):
        assert (await client.get("/readyz")).status_code == 200
        for number in range(3):
            _, done = await victim.chat(f"Hello {number}!")
            assert (done["reason"], done["saved"]) == ("stop", True)
        assert len(await victim.history()) == 6
        assert (await client.post("/v1/attachments", content=png())).status_code == 200
        assert (await client.delete("/v1/me")).json() == {"conversations": 1}


ATTACKS = {
    "uploads of one name": (upload_all, OTHER_ADDRESS, 1),
    "uploads of one address": (upload_all, OTHER_ADDRESS, 40),
    "uploads of nobody knows whom": (upload_all, "127.0.0.1", 40),
    "messages of one address": (send_all, OTHER_ADDRESS, 40),
}


@pytest.mark.parametrize("attack", ATTACKS)
async def test_an_attacker_who_takes_all_that_it_can_stops_neither_others_nor_a_restart(
    tmp_path: Path, attack: str
) -> None:
    attempt, address, names = ATTACKS[attack]
    async with serving(tmp_path) as service:
        await attempt(service, address=address, names=names)
        assert await service.used() < 0.85 * STORE
        await works_for("victim", service)
        await asyncio.to_thread(service.process.restart)
        await works_for("other-victim", service)


async def overfill(service: Service) -> None:
    """Have the store hold more than it may, as after an upgrade from a version that filled it."""
    await service.store.ask("CONFIG", "SET", "maxmemory", await service.used() - MIB)


async def refused(victim: WebSocketClient) -> str:
    answer = await victim.send_message("And now?")
    assert answer["type"] == "error", answer
    return str(answer["code"])


async def test_a_service_whose_store_is_full_starts_and_is_read_and_emptied(tmp_path: Path) -> None:
    async with serving(tmp_path) as service:
        async with connect_client(service.process.ws_url, "ann") as ann:
            await ann.chat("x" * 30_000)
        await asyncio.to_thread(service.process.stop)
        await overfill(service)
        await asyncio.to_thread(service.process.start)  # ready, though full
        async with (
            connect_client(service.process.ws_url, "ann") as ann,
            httpx.AsyncClient(base_url=service.process.url, params={"client_id": "ann"}) as client,
        ):
            report = (await client.get("/readyz")).json()
            assert (report["ready"], report["store"]) == (True, "full")
            assert [message["content"] for message in await ann.history()][:1] == ["x" * 30_000]
            assert await refused(ann) == "store_full"
            exported = (await client.get("/v1/export")).text
            assert "x" * 30_000 in exported
            assert (await client.delete("/v1/me")).json() == {"conversations": 1}
            await service.store.ask("CONFIG", "SET", "maxmemory", STORE)
            async with asyncio.timeout(ROOM_S):
                while (await client.get("/readyz")).json()["store"] == "full":  # noqa: ASYNC110 - a server tells nobody
                    await asyncio.sleep(0.05)
        await works_for("ann", service)


async def test_a_service_that_died_with_a_full_store_ends_its_replies_when_it_starts(tmp_path: Path) -> None:
    async with serving(tmp_path, pace_s=60.0) as service:
        async with connect_client(service.process.ws_url, "ann") as ann:
            assert (await ann.send_message("Hello!"))["type"] == "accepted"
            await asyncio.to_thread(service.process.kill)
        await overfill(service)
        await asyncio.to_thread(service.process.start)
        async with connect_client(service.process.ws_url, "ann") as ann:
            if (await ann.history())[-1]["status"] == "running":
                await ann.until("done")
            assert [message["status"] for message in await ann.history()] == ["complete", "interrupted"]


async def test_an_embedded_store_that_holds_more_than_it_may_starts(tmp_path: Path) -> None:
    """As when an operator gives it less memory."""
    for limit in (64 * MIB, 16 * MIB):
        environ = UNHURRIED | {"MIDSTREAM_STORE_MEMORY": str(limit)}
        process = ServerProcess(tmp_path, environ, command=command(Script(images=True)))
        await asyncio.to_thread(process.start)
        try:
            async with (
                connect_client(process.ws_url, "ann") as ann,
                httpx.AsyncClient(base_url=process.url, params={"client_id": "ann"}) as client,
            ):
                if limit > 16 * MIB:
                    await ann.chat("Hello!")
                    for number in range(8):
                        image = png(more=chunk(b"pRIv", number.to_bytes(8) + bytes(2 * MIB)))
                        params = {"client_id": f"other-{number}"}
                        answer = await client.post("/v1/attachments", params=params, content=image)
                        assert answer.status_code == 200, answer.text
                else:
                    assert (await client.get("/readyz")).json()["store"] == "full"
                    assert len(await ann.history()) == 2
                    assert await refused(ann) == "store_full"
                    assert (await client.delete("/v1/me")).json() == {"conversations": 1}
        finally:
            await asyncio.to_thread(process.stop)
