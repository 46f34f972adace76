"""All that is kept of a person: they get it, and they get rid of it; nobody else's is touched."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from app.keys import add_key, revoke_key
from connections.api import endpoint
from connections.api.endpoint import AT_ONCE
from connections.authentication.api_keys import Kind
from engine.scripted import ScriptedEngine
from sessions.commands import removal
from sessions.records import Owner
from sessions.store.index import list_name
from tests.app.in_process_service import Frame, InProcessService, serving
from tests.app.test_frames import send_and_wait
from tests.jwt_signing import KEY, SECRET, token

COUNTS = ("ms:limit:", "ms:charged:")
"""Numbers, which end by themselves."""


@pytest.fixture
async def guarded(keys: Path, tmp_path: Path, store_url: str) -> AsyncIterator[InProcessService]:
    async with serving(
        tmp_path,
        api_keys=str(keys),
        jwt_secret=SECRET,
        redis_url=store_url,
        tokens_per_day=100_000,
        read_rate=1000,
        message_rate=1000,
    ) as running:
        yield running


def bearer_headers(name: str = "ann", **claims: Any) -> dict[str, str]:
    return {"Authorization": f"Bearer {token(sub=name, **claims)}"}


async def exported(running: InProcessService, name: str = "ann") -> list[Frame]:
    answer = await running.request("GET", "/v1/export", headers=bearer_headers(name))
    assert answer.status_code == 200
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert lines[-1]["type"] == "end"
    assert lines[-1]["conversations"] == sum(line["type"] == "conversation" for line in lines)
    return lines[:-1]


async def names_in(store: Redis, part: str) -> set[str]:
    return {name.decode() async for name in store.scan_iter() if part in name.decode()}


async def create_user_data(running: InProcessService, name: str) -> None:
    """A person's conversations: one with two branches, one that is shared, one with a title of their own."""
    async with running.socket({"token": token(sub=name)}) as socket:
        first = (await send_and_wait(socket, "What grows?", conversation_id="garden"))[0]
        await send_and_wait(socket, "And in winter?", conversation_id="garden")
        await send_and_wait(socket, "What swims?", conversation_id="garden", parent_id=first.get("parent_id"))
        await send_and_wait(socket, "A secret.", conversation_id="diary")
        await socket.ask(type="share", conversation_id="diary")
        await send_and_wait(socket, "Hello.", conversation_id="named")
        await socket.ask(type="rename", conversation_id="named", title="My own")


async def test_what_left_the_list_is_exported_and_erased_too(guarded: InProcessService, store: Redis) -> None:
    await create_user_data(guarded, "ann")
    await store.zrem(list_name(Owner("jwt:ann", "")), "diary")
    assert "A secret." in [line.get("content") for line in await exported(guarded)]
    await guarded.request("DELETE", "/v1/me", headers=bearer_headers())
    assert await names_in(store, "diary") == set()


async def test_a_name_is_no_pattern(guarded: InProcessService) -> None:
    """Whoever is called `a|*` by their issuer has what is theirs."""
    await create_user_data(guarded, "a|[n]n@")
    await create_user_data(guarded, "a|nn@")
    assert (await guarded.request("DELETE", "/v1/me", headers=bearer_headers("a|[n]n@"))).json() == {
        "conversations": 3
    }
    assert len(await exported(guarded, "a|nn@")) > 3


async def test_a_running_reply_ends_and_its_readers_are_told_though_another_replica_runs_it(
    guarded: InProcessService, tmp_path: Path, store_url: str
) -> None:
    slow = ScriptedEngine(by_hand=True, reply="This takes long.")
    async with (
        serving(tmp_path, slow, jwt_secret=SECRET, redis_url=store_url) as other,
        other.socket({"token": token()}) as socket,
    ):
        await socket.send(type="send", client_msg_id="m", content="Hello?")
        await socket.next("accepted")
        slow.step()
        await socket.next("delta")
        answer = await guarded.request("DELETE", "/v1/me", headers=bearer_headers())
        assert answer.json() == {"conversations": 1}
        assert (await socket.next("deleted"))["conversation_id"] == "default"


async def test_a_ticket_exports_and_erases_nothing(guarded: InProcessService) -> None:
    """Strangers and foreign pages: `tests/transcripts/native/authentication.yaml`."""
    once = (await guarded.request("POST", "/v1/tickets", headers=bearer_headers())).json()["ticket"]
    for method, path in (("GET", "/v1/export"), ("DELETE", "/v1/me")):
        by_ticket = await guarded.request(method, path, headers={"Authorization": f"Bearer {once}"})
        assert (by_ticket.status_code, "Tickets" in by_ticket.text) == (401, True)


async def test_whoever_asks_too_often_is_told_to_wait(tmp_path: Path) -> None:
    async with serving(tmp_path, jwt_secret=SECRET, read_rate=1) as running:
        answers = [await running.request("GET", "/v1/export", headers=bearer_headers()) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200, 429]
        assert answers[1].headers["retry-after"] == "5"
        assert (await running.request("GET", "/v1/export", headers=bearer_headers("bob"))).status_code == 200


async def test_few_are_served_at_a_time_one_of_each_and_whoever_leaves_gives_the_place_back(
    keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader who takes nothing holds a place, and no more memory than a part of the answer; no longer than the key is good."""
    monkeypatch.setattr(endpoint, "PART_S", endpoint.LONGEST_S)
    engine = ScriptedEngine(reply="much" * 60_000)
    key = add_key(keys, "ann", kind=Kind.PERSONAL)
    known: dict[str, Any] = {"api_keys": str(keys), "jwt_secret": SECRET}
    async with serving(tmp_path, engine, **known, message_rate=1000, read_rate=1000) as running:
        names = [key, *(token(sub=f"reader{number}") for number in range(1, AT_ONCE))]
        stuck = [await reads_nothing(running, name) for name in names]
        mine = {"Authorization": f"Bearer {names[1]}"}
        assert (await running.request("GET", "/v1/export", headers=mine)).status_code == 503
        await until_status(running, 503)
        assert (await running.request("DELETE", "/v1/me", headers=mine)).json() == {"conversations": 1}
        revoke_key(keys, "ann")
        await until_status(running, 200)
        for one in stuck:
            one.close()


async def test_an_export_that_is_read_too_slowly_is_cut_off_and_gives_its_place_back(
    keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "PART_S", 0.2)
    key = add_key(keys, "ann", kind=Kind.PERSONAL)
    engine = ScriptedEngine(reply="much" * 60_000)
    async with serving(tmp_path, engine, api_keys=str(keys), message_rate=1000) as running:
        with capture_logs() as log, suppress(ConnectionResetError):
            slow = await reads_nothing(running, key)
            for _ in range(2000):
                await asyncio.get_running_loop().sock_recv(slow, 16)
                await running.get("/healthz")
        (line,) = (line for line in log if line["event"] == "exported")
        assert line["cut_short"] is True
        slow.close()


async def reads_nothing(
    running: InProcessService, key: str, path: str = "/v1/export", exporter: str = ""
) -> socket.socket:
    """Somebody with much to read, or another one who reads that."""
    async with running.socket({"token": key}) as talk:
        for number in range(4):
            await send_and_wait(talk, f"{number}")
    reader = await running.small_buffer_socket()
    head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {exporter or key}\r\n\r\n"
    reader.send(head.encode())
    await asyncio.get_running_loop().sock_recv(reader, 1)
    return reader


def make_personal(keys: Path) -> None:
    """Change the key file as an operator does."""
    keys.write_text(keys.read_text().replace(":app", ":personal"))


async def test_a_key_that_became_personal_exports_and_erases_its_former_users_conversations(
    guarded: InProcessService, keys: Path, store: Redis
) -> None:
    key = add_key(keys, "ann", kind=Kind.APPLICATION)
    for client_id in ("laptop", "phone"):
        async with guarded.socket({"client_id": client_id, "token": key}) as socket:
            await send_and_wait(socket, "Hello?")
    make_personal(keys)
    headers = {"Authorization": f"Bearer {key}"}
    lines = [
        json.loads(line)
        for line in (await guarded.request("GET", "/v1/export", headers=headers)).text.splitlines()
    ]
    kept = {(line["client_id"], line["conversation_id"]) for line in lines if line["type"] == "conversation"}
    assert kept == {("laptop", "default"), ("phone", "default")}
    assert (await guarded.request("DELETE", "/v1/me", headers=headers)).json() == {"conversations": 2}
    assert {name for name in await names_in(store, "key:ann/") if not name.startswith(COUNTS)} == set()


async def test_the_names_of_the_store_are_looked_through_once(
    guarded: InProcessService, store: Redis
) -> None:
    await create_user_data(guarded, "ann")

    async def looked() -> int:
        return int((await store.info("commandstats")).get("cmdstat_scan", {}).get("calls", 0))

    before = await looked()
    await guarded.request("DELETE", "/v1/me", headers=bearer_headers())
    assert await looked() == before + 1


async def test_an_erasure_that_new_conversations_outrun_is_no_success(
    guarded: InProcessService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removal, "ROUNDS", 1)
    await create_user_data(guarded, "ann")
    with capture_logs() as log:
        answer = await guarded.request("DELETE", "/v1/me", headers=bearer_headers())
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "busy")
    (line,) = (line for line in log if line["event"] == "erased")
    assert (line["conversations"], line["cut_short"]) == (3, True)


async def test_a_fault_is_told_with_its_number_before_the_answer_begins(
    guarded: InProcessService, store: Redis
) -> None:
    await create_user_data(guarded, "ann")
    await store.hset("ms:{jwt:ann//named}", "updated_at", "no number")
    answer = await guarded.request("GET", "/v1/export", headers=bearer_headers())
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal")
    assert "number" in answer.json()["error"]["message"]
    await store.delete(list_name(Owner("jwt:ann", "")))
    await store.set(list_name(Owner("jwt:ann", "")), "no list")
    assert (await guarded.request("GET", "/v1/export", headers=bearer_headers())).status_code == 500


async def until_status(running: InProcessService, status: int) -> None:
    """Asks as somebody else until that is the answer."""
    for number in range(50):
        if (
            await running.request("GET", "/v1/export", headers=bearer_headers(f"bob{number}"))
        ).status_code == status:
            return
    raise AssertionError(status)


async def respond(client: httpx.AsyncClient, key: str, **more: Any) -> Any:
    body = {"model": "midstream-demo", "input": "My secret."} | more
    headers = {"Authorization": f"Bearer {key}"}
    return (await client.post("/v1/responses", json=body, headers=headers)).json()


async def test_nothing_is_kept_for_a_key_that_others_may_send_as_well(running: InProcessService) -> None:
    """Without authentication."""
    keys = ("none", "EMPTY", "sk-no-key-required", "ollama", "dummy", "a name of your own")
    async with httpx.AsyncClient(base_url=running.url) as client:
        for key in (*keys, "not-needed-by-this-server"):
            known = {"Authorization": f"Bearer {key}"}
            name = f"/openai/{sha256(key.encode()).hexdigest()[:32]}"
            response = await respond(client, key)
            assert (response["status"], response["store"]) == ("completed", False)
            assert (await client.get(f"/v1/responses/{response['id']}", headers=known)).status_code == 404
            again = await respond(client, key, previous_response_id=response["id"])
            assert again["error"]["code"] == "previous_response_not_found"
            await respond(client, key)
            for headers, query in ((known, {}), ({}, {"client_id": name}), (known, {"client_id": name})):
                assert (await client.get("/v1/export", params=query, headers=headers)).status_code == 400
                assert (await client.delete("/v1/me", params=query, headers=headers)).status_code == 400
            one, two = running.engine.requests[-2:]
            assert one.cache_salt == two.cache_salt  # a conversation over OpenAI's client is still cached


async def test_what_is_kept_for_a_secret_key_is_reached_by_the_key_and_not_by_its_hash(
    running: InProcessService,
) -> None:
    own = f"/openai/{sha256(KEY.encode()).hexdigest()[:32]}"
    known, other = {"Authorization": f"Bearer {KEY}"}, {"Authorization": f"Bearer {KEY[::-1]}"}
    async with httpx.AsyncClient(base_url=running.url) as client:
        assert (await respond(client, KEY))["store"] is True
        for headers in ({}, other):
            for name in (own, f"{own}/talk", "/openai", "/openai/-"):
                for method, path in (
                    ("GET", "/v1/export"),
                    ("DELETE", "/v1/me"),
                    ("POST", "/v1/attachments"),
                ):
                    answer = await client.request(method, path, params={"client_id": name}, headers=headers)
                    assert (answer.status_code, "API key" in answer.text) == (400, True)
        assert (await client.delete("/v1/me", headers=other)).json() == {"conversations": 0}
        for query in ({}, {"client_id": own}):
            answer = await client.get("/v1/export", params=query, headers=known)
            assert "My secret." in answer.text
        nothing = await client.get("/v1/export", params={"client_id": f"{own}/talk"}, headers=known)
        assert (nothing.status_code, "My secret." in nothing.text) == (200, False)
        assert (await client.delete("/v1/me", headers=known)).json() == {"conversations": 1}
