"""One person, one history: who shares conversations and running replies, and who does not, over real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from app.keys import add_key
from connections.authentication.api_keys import Kind
from engine.scripted import ScriptedEngine
from tests.app.in_process_service import Frame, InProcessService, Socket, serving
from tests.jwt_signing import SECRET

PACE_S = 0.01
STORY = "word " * 4000


@pytest.fixture
async def guarded(keys: Path, tmp_path: Path) -> AsyncIterator[InProcessService]:
    """A service that asks for a key of the file, or a JWT; its replies are slow."""
    async with serving(
        tmp_path, ScriptedEngine(pace_s=PACE_S), api_keys=str(keys), jwt_secret=SECRET
    ) as running:
        yield running


def rewrite(keys: Path, kind: str, other: str) -> None:
    """Change the keys' kind, as an operator does."""
    keys.write_text(keys.read_text().replace(kind, other))


async def begin(socket: Socket, text: str = "Tell me a story.", **more: Any) -> list[Frame]:
    """Send a message with a long reply; return all frames up to its first text."""
    await socket.send(type="send", client_msg_id="m1", content=text, params={"max_new_tokens": 4000}, **more)
    return await socket.until("delta")


async def test_devices_of_a_person_share_across_replicas(keys: Path, tmp_path: Path, store_url: str) -> None:
    key = add_key(keys, "ann")
    async with AsyncExitStack() as stack:
        one, other = [
            await stack.enter_async_context(
                serving(
                    tmp_path / name, ScriptedEngine(pace_s=PACE_S), redis_url=store_url, api_keys=str(keys)
                )
            )
            for name in ("one", "other")
        ]
        laptop = await stack.enter_async_context(one.socket({"client_id": "laptop", "token": key}))
        phone = await stack.enter_async_context(other.socket({"client_id": "phone", "token": key}))
        one.engine.script(STORY)
        await begin(laptop)
        await phone.ask(type="history")
        await phone.next("delta")
        await phone.send(type="cancel")
        assert (await laptop.next("done"))["reason"] == (await phone.next("done"))["reason"] == "cancelled"


async def test_a_key_that_becomes_another_kind_ends_what_it_opened(
    guarded: InProcessService, keys: Path
) -> None:
    key = add_key(keys, "ann")
    async with guarded.socket({"client_id": "laptop", "token": key}) as socket:
        rewrite(keys, ":personal", ":app")
        async with guarded.socket({"client_id": "laptop", "token": key}):
            assert (await socket.closed())[0] == 4401


async def test_tokens_count_for_the_device_that_sent(
    keys: Path, tmp_path: Path, store: Redis, store_url: str
) -> None:
    key = add_key(keys, "ann")
    async with serving(tmp_path, api_keys=str(keys), redis_url=store_url, tokens_per_day=10) as running:
        async with running.socket({"client_id": "laptop", "token": key}) as laptop:
            await laptop.send(type="send", client_msg_id="m1", content="A long question, or so.")
            await laptop.next("done")
            while not await store.keys("ms:limit:tokens:*"):
                pass
            await laptop.send(type="send", client_msg_id="m2", content="More.")
            assert (await laptop.next("error"))["code"] == "rate_limited"
        async with running.socket({"client_id": "phone", "token": key}) as phone:
            await phone.send(type="send", client_msg_id="m3", content="Mine.")
            assert (await phone.next("accepted"))["client_msg_id"] == "m3"


async def test_what_is_kept_of_a_prompt_is_found_from_each_device_of_a_person(
    guarded: InProcessService, keys: Path
) -> None:
    """By OpenAI's endpoint too; an application's users don't learn by it what others said."""
    personal, shop = add_key(keys, "ann"), add_key(keys, "shop", kind=Kind.APPLICATION)
    for key in (personal, shop):
        for client_id in ("one", "other"):
            async with guarded.socket({"client_id": client_id, "token": key}) as socket:
                guarded.engine.script("Well.")
                await begin(socket, conversation_id=client_id)
                await socket.next("done")
    async with httpx.AsyncClient(
        base_url=guarded.url, headers={"Authorization": f"Bearer {personal}"}
    ) as client:
        guarded.engine.script("Well.")
        requested = {"model": "midstream-demo", "messages": [{"role": "user", "content": "Hello?"}]}
        assert (await client.post("/v1/chat/completions", json=requested)).status_code == 200
    salts = [request.cache_salt for request in guarded.engine.requests]
    assert salts[0] == salts[1] == salts[4]
    assert len(set(salts)) == 3
