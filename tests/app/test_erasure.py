"""Every key of the store about a person is of a kind listed here; erasure leaves none with content."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
from redis.asyncio import Redis

from app.keys import add_key
from connections.authentication.access import TICKET_S
from connections.authentication.api_keys import parse_policy
from tests.app.in_process_service import serving
from tests.app.test_attachments import vision_engine
from tests.app.test_authentication import ticket
from tests.app.test_frames import send_and_wait
from tests.sample_images import PNG

ME = b"key:ann"
TEXTS = (b"What grows?", b"And in winter?", b"A secret.", b"My own", b"first_system_words")
HELD = {
    "ms:{CONVERSATION}": "a conversation",
    "ms:{CONVERSATION}:journal": "its newest events",
    "ms:{CONVERSATION}:images": "what its messages show",
    "ms:upload:{OWNER}:ID": "an image that was uploaded in the last hour",
    "ms:uploaded:{OWNER}": "the list of those",
    "ms:stored:{OWNER}": "how many bytes are stored",
    "ms:conversations:{OWNER}": "the list",
    "ms:share:{ID}": "a link's half of a share",
}
"""Kinds of keys that erasure deletes."""
PASSING = {
    "ms:limit:messages:key:{KEY}": 60,
    "ms:limit:today:key:{KEY}": 86_400,
    "ms:limit:replies:key:{KEY}": 86_400,
    "ms:limit:tokens:key:{KEY}": 86_400,
    "ms:limit:messages:client:{CLIENT}": 60,
    "ms:limit:tokens:client:{CLIENT}": 86_400,
    "ms:charged:key:{KEY}": 86_400,
    "ms:charged:client:{CLIENT}": 86_400,
    "ms:ticket:ID": TICKET_S,
}
"""Numbers of limits and unused tickets, which hold nothing that was said: for how many seconds at most they stay."""


def kind(name: str) -> str:
    """Return the name of a key without its owner."""
    for mine, what in (("//[^}]+", "CONVERSATION"), ("/", "OWNER"), ("/[^}/]+", "CLIENT"), ("", "KEY")):
        name = re.sub(rf"\{{key:ann{mine}\}}", f"{{{what}}}", name)
    name = re.sub(r"^(ms:share:)\{.*\}$", r"\1{ID}", name)
    return re.sub(r"^(ms:ticket:|ms:upload:.*:)[^:{}]+$", r"\1ID", name)


async def content(store: Redis, name: bytes) -> bytes:
    """Return everything that a key holds, whatever its type."""
    held: Any
    match await store.type(name):
        case b"string":
            held = await store.get(name)
        case b"hash":
            held = await store.hgetall(name)  # type: ignore[misc]
        case b"set":
            held = await store.smembers(name)  # type: ignore[misc]
        case b"zset":
            held = await store.zrange(name, 0, -1)
        case b"list":
            held = await store.lrange(name, 0, -1)  # type: ignore[misc]
        case b"stream":
            held = await store.xrange(name)
        case other:
            raise AssertionError(other)
    return str(held).encode()


async def matching_keys(store: Redis, marks: tuple[bytes, ...]) -> dict[str, bytes]:
    """Return the keys with one of the marks in their name or in their content."""
    every = {name: await content(store, name) async for name in store.scan_iter()}
    return {
        name.decode(): held
        for name, held in every.items()
        if any(mark in name or mark in held for mark in marks)
    }


async def test_nothing_is_left_that_holds_what_a_person_said(
    keys: Path, tmp_path: Path, store_url: str, store: Redis
) -> None:
    terms = parse_policy(["messages_per_day=100", "tokens_per_day=100000", "messages_per_minute=100"])
    key = add_key(keys, "ann", policy=terms)
    limits: dict[str, Any] = {"messages_per_minute": 500, "tokens_per_day": 10**6}
    async with (
        serving(tmp_path, vision_engine(), api_keys=str(keys), redis_url=store_url, **limits) as running,
        running.socket({"token": key, "client_id": "laptop"}) as socket,
        httpx.AsyncClient(base_url=running.url, headers={"Authorization": f"Bearer {key}"}) as client,
    ):
        image = (await client.post("/v1/attachments", content=PNG.data)).json()["id"]
        params = {"system": "first_system_words"}
        first = (
            await send_and_wait(
                socket, "What grows?", conversation_id="garden", params=params, attachments=[image]
            )
        )[0]
        await send_and_wait(socket, "And in winter?", conversation_id="garden")
        await send_and_wait(socket, "What swims?", conversation_id="garden", parent_id=first.get("parent_id"))
        await send_and_wait(socket, "A secret.", conversation_id="diary")
        await socket.ask(type="share", conversation_id="diary")
        await socket.ask(type="rename", conversation_id="garden", title="My own")
        await socket.ask(type="search", query="winter")
        await ticket(running, key)  # nobody redeems it
        before = await matching_keys(store, (ME, *TEXTS))
        assert {kind(name) for name in before} == HELD.keys() | PASSING.keys()
        assert all(mark in b"".join(before.values()) for mark in TEXTS)
        answer = await running.request("DELETE", "/v1/me", headers={"Authorization": f"Bearer {key}"})
        assert answer.json() == {"conversations": 2}
        left = await matching_keys(store, (ME, *TEXTS))
        assert {kind(name) for name in left} <= PASSING.keys()
        assert await matching_keys(store, TEXTS) == {}
        for name in left:
            assert 0 < await store.ttl(name) <= PASSING[kind(name)], name
