"""The admin API: what an operator's key opens and nothing else does, and what it does, over real sockets and a real store."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from app import logs
from app.keys import add_key, revoke_key
from connections.api import admin
from connections.api.admin import PATH
from connections.authentication.api_keys import KeyPolicy, Kind, digest_of, parse_policy
from engine.scripted import ScriptedEngine
from sessions.replicas import rpc
from tests.app.in_process_service import Frame, InProcessService, serving
from tests.app.test_account import create_user_data, names_in, reads_nothing
from tests.app.test_frames import send_and_wait
from tests.app.test_replicas import begin
from tests.jwt_signing import SECRET, token
from tests.sessions.recorder import WAIT_S

Lines = list[dict[str, Any]]


def replica(keys: Path, folder: Path, store_url: str) -> AbstractAsyncContextManager[InProcessService]:
    """A replica whose engine the test steps."""
    known: dict[str, Any] = {"api_keys": str(keys), "jwt_secret": SECRET, "redis_url": store_url}
    return serving(folder, ScriptedEngine(by_hand=True), **known, read_rate=1000)


@pytest.fixture
async def first_replica(
    keys: Path, operator: str, tmp_path: Path, store_url: str
) -> AsyncIterator[InProcessService]:
    async with replica(keys, tmp_path, store_url) as running:
        yield running


@pytest.fixture
async def second_replica(
    first_replica: InProcessService, keys: Path, tmp_path: Path, store_url: str
) -> AsyncIterator[InProcessService]:
    async with replica(keys, tmp_path, store_url) as running:
        yield running


@pytest.fixture
def audit() -> Iterator[Lines]:
    """The lines of the audit log so far."""
    with capture_logs() as lines:
        yield lines


def admin_entries(audit: Lines) -> Lines:
    return [line for line in audit if line["event"] == "admin"]


async def call_api(
    running: InProcessService, key: str | None, method: str, path: str, **more: Any
) -> tuple[int, Any]:
    answer = await running.request(method, f"{PATH}{path}", key or "", headers=more)
    lines = [json.loads(line) for line in answer.text.splitlines()]
    return answer.status_code, lines if path.startswith("/export") and answer.is_success else lines[0]


def hello(name: str, **more: str) -> Frame:
    return {"token": token(sub=name), **more}


# ---- whom it opens to


async def test_what_is_refused_is_in_the_log_without_keys(
    first_replica: InProcessService, keys: Path, operator: str, audit: Lines
) -> None:
    """Every request of strangers, and every bad one: `tests/transcripts/admin`."""
    persons, ended = add_key(keys, "ann"), KeyPolicy(expires_at=time.time() - 1)
    for shown in (None, persons, add_key(keys, "old", kind=Kind.ADMIN, policy=ended), operator[:-1]):
        assert (await call_api(first_replica, shown, "GET", "/keys"))[0] == 401
    assert {(line["operator"], line["outcome"]) for line in admin_entries(audit)} == {
        (None, "unauthenticated")
    }
    for method, path in (("GET", "/turns"), ("GET", "/connections"), ("DELETE", "/connections")):
        assert (await call_api(first_replica, operator, method, f"{path}?principal={operator}"))[0] == 400
    assert (await call_api(first_replica, operator, "GET", f"/keys?after={'a' * 5000}"))[0] == 400
    revoke_key(keys, "olga")
    assert (await call_api(first_replica, operator, "GET", "/keys"))[0] == 401
    assert not any(shown in json.dumps(audit) for shown in (persons, operator))


async def test_who_asks_too_often_is_told_to_wait_and_who_is_no_operator_fills_no_log(
    tmp_path: Path, keys: Path, operator: str, audit: Lines
) -> None:
    async with serving(tmp_path, api_keys=str(keys), read_rate=0.2) as running:
        assert [(await call_api(running, None, "GET", "/keys"))[0] for _ in range(3)] == [401] * 3
        assert (await call_api(running, operator, "GET", "/keys"))[0] == 200
        assert [line["operator"] for line in admin_entries(audit)] == [None, "olga"]
        assert (await call_api(running, operator, "GET", "/keys"))[0] == 429


# ---- connections


async def test_connections_of_all_replicas_are_listed_in_pages(
    first_replica: InProcessService, second_replica: InProcessService, operator: str, audit: Lines
) -> None:
    async with (
        first_replica.socket(hello("ann", client_id="laptop")),
        second_replica.socket(hello("ann", client_id="phone")),
        second_replica.socket(hello("bob", client_id="laptop")),
    ):
        status, whole = await call_api(first_replica, operator, "GET", "/connections")
        assert (status, whole["next"], whole["silent"]) == (200, None, [])
        rows = whole["connections"]
        assert {(row["principal"], row["client_id"], row["api"]) for row in rows} == {
            ("jwt:ann", "laptop", "native"),
            ("jwt:ann", "phone", "native"),
            ("jwt:bob", "laptop", "native"),
        }
        assert len({row["replica"] for row in rows}) == 2
        paged: Lines = []
        after = ""
        for _ in range(3):
            _, page = await call_api(second_replica, operator, "GET", f"/connections?limit=1{after}")
            paged += page["connections"]
            after = f"&after={page['next']}"
        assert page["next"] is None
        assert [row["connection_id"] for row in paged] == [row["connection_id"] for row in rows]
        _, anns = await call_api(
            first_replica, operator, "GET", "/connections?principal=jwt:ann&client_id=phone"
        )
        assert [row["client_id"] for row in anns["connections"]] == ["phone"]
    assert admin_entries(audit)[0] | {"log_level": "info"} == {
        "event": "admin",
        "log_level": "info",
        "operator": "olga",
        "act": "list connections",
        "outcome": "done",
        "connections": 3,
    }


async def test_somebody_is_disconnected_wherever_they_are(
    first_replica: InProcessService, second_replica: InProcessService, operator: str, audit: Lines
) -> None:
    async with (
        first_replica.socket(hello("ann", client_id="laptop")) as laptop,
        second_replica.socket(hello("ann", client_id="phone")) as phone,
        second_replica.socket(hello("bob")) as others,
    ):
        status, reported = await call_api(first_replica, operator, "DELETE", "/connections?principal=jwt:ann")
        assert (status, reported) == (200, {"connections": 2, "silent": []})
        for socket in (laptop, phone):
            error = await socket.next("error")
            assert (error["code"], error["retryable"]) == ("forbidden", False)
            assert await socket.closed() == (4403, "The operator closed this connection.")
        assert (await others.ask(type="ping"))["type"] == "pong"
        theirs = others.ready["connection_id"]
        assert (await call_api(first_replica, operator, "DELETE", f"/connections/{theirs}"))[0] == 200
        assert (await others.closed())[0] == 4403
        assert (await call_api(first_replica, operator, "DELETE", f"/connections/{theirs}"))[0] == 404
    entries = [
        {key: line.get(key) for key in ("act", "principal", "outcome")} for line in admin_entries(audit)
    ]
    assert entries[0] == {"act": "disconnect", "principal": "jwt:ann", "outcome": "done"}
    assert entries[-1]["outcome"] == "not_found"
    assert entries[-2]["principal"] == "jwt:bob"


async def test_a_replica_that_does_not_answer_is_named(
    first_replica: InProcessService, operator: str, store: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lives, and has a version without this request."""
    monkeypatch.setattr(rpc, "PATIENCE_S", 0.1)
    await store.sadd("ms:runners", "old", "dead")  # type: ignore[misc]
    await store.set("ms:replica:old", "3", px=8000)
    async with first_replica.socket(hello("ann")):
        status, page = await call_api(first_replica, operator, "GET", "/connections")
        assert (status, len(page["connections"]), page["silent"]) == (200, 1, ["old"])
        status, refused = await call_api(first_replica, operator, "DELETE", "/connections/conn_none")
        assert (status, refused["error"]["message"]) == (
            404,
            "Connection not found. Replicas that did not answer: old.",
        )


# ---- turns


@pytest.mark.parametrize("replica", ["home", "abroad"])
async def test_a_turn_is_listed_and_stopped_from_any_replica(
    replica: str,
    first_replica: InProcessService,
    second_replica: InProcessService,
    operator: str,
    audit: Lines,
) -> None:
    at = {"home": first_replica, "abroad": second_replica}[replica]
    async with first_replica.socket(hello("ann")) as socket:
        turn_id = (await begin(socket, first_replica))["turn_id"]
        status, page = await call_api(at, operator, "GET", "/turns?principal=jwt:ann")
        (row,) = page["turns"]
        assert status == 200
        assert row | {"replica": "", "chars": 0, "model": ""} == {
            "turn_id": turn_id,
            "conversation_id": "default",
            "principal": "jwt:ann",
            "client_id": "",
            "state": "streaming",
            "chars": 0,
            "model": "",
            "replica": "",
        }
        assert row["chars"] > 0
        assert await call_api(at, operator, "DELETE", f"/turns/{turn_id}") == (
            200,
            {"turn_id": turn_id, "already": False},
        )
        done = await socket.next("done")
        assert (done["reason"], done["cancel"]["cause"]) == ("cancelled", "operator")
        history = await socket.ask(type="history")
        assert history["messages"][-1]["status"] == "cancelled"
        assert len(history["messages"][-1]["content"]) == done["chars"] > 0  # history is what was seen
        assert (await call_api(at, operator, "DELETE", f"/turns/{turn_id}"))[0] == 404
    line = next(line for line in admin_entries(audit) if line["act"] == "stop turn")
    assert (line["principal"], line["turn_id"], line["outcome"]) == ("jwt:ann", turn_id, "done")
    assert "Hello?" not in json.dumps(audit)


async def test_a_turn_without_a_conversation_is_listed_and_stopped_from_another_replica(
    first_replica: InProcessService, second_replica: InProcessService, keys: Path, operator: str, audit: Lines
) -> None:
    shop = add_key(keys, "shop", kind=Kind.APPLICATION)
    chat = {"model": "midstream-demo", "messages": [{"role": "user", "content": "Hello?"}], "stream": True}
    headers = {"Authorization": f"Bearer {shop}"}
    async with (
        httpx.AsyncClient(base_url=first_replica.url, headers=headers, timeout=30) as client,
        client.stream("POST", "/v1/chat/completions", json=chat) as reply,
    ):
        _, page = await call_api(second_replica, operator, "GET", "/turns")
        (row,) = page["turns"]
        assert (row["conversation_id"], row["principal"]) == (None, "key:shop")
        stopped = await call_api(second_replica, operator, "DELETE", f"/turns/{row['turn_id']}")
        assert stopped == (200, {"turn_id": row["turn_id"], "already": False})
        reported = [line async for line in reply.aiter_lines() if line]
    assert reported  # it ends
    assert "The operator ended this reply." in "".join(reported)
    line = next(line for line in admin_entries(audit) if line["act"] == "stop turn")
    assert (line["principal"], line["client_id"]) == ("key:shop", "/openai")


# ---- what is kept of somebody


async def test_an_operator_exports_and_erases_what_a_person_has(  # noqa: PLR0917 - fixtures
    keys: Path, operator: str, tmp_path: Path, store_url: str, store: Redis, audit: Lines
) -> None:
    async with serving(
        tmp_path, api_keys=str(keys), jwt_secret=SECRET, redis_url=store_url, read_rate=1000
    ) as running:
        await create_user_data(running, "ann")
        await create_user_data(running, "anna")
        status, lines = await call_api(running, operator, "GET", "/export?principal=jwt:ann")
        own = await running.request("GET", "/v1/export", token(sub="ann"))
        assert (status, lines) == (200, [json.loads(line) for line in own.text.splitlines()])
        erased = await call_api(running, operator, "DELETE", "/owner?principal=jwt:ann")
        assert erased == (200, {"conversations": 3})
        assert await names_in(store, "{jwt:ann/") == set()
        assert len(await names_in(store, "{jwt:anna/")) > 3
    line = admin_entries(audit)[-1]
    assert (line["act"], line["principal"], line["conversations"]) == ("erase", "jwt:ann", 3)
    assert "garden" not in json.dumps(admin_entries(audit))


# ---- keys


async def test_keys_are_listed_with_their_terms_and_their_use(
    keys: Path, operator: str, tmp_path: Path
) -> None:
    key = add_key(
        keys, "ann", policy=parse_policy(["messages_per_day=5", "expires=2100-01-01", "scopes=chat"])
    )
    free = add_key(keys, "bob")
    async with serving(tmp_path, api_keys=str(keys)) as running:
        for shown, messages in ((key, 2), (free, 1)):
            async with running.socket({"token": shown}) as socket:
                for number in range(messages):
                    await send_and_wait(socket, f"{number}")
        rows = await used(running, operator, replies=2)
        assert [row["name"] for row in rows] == ["ann", "bob", "olga"]
        ann, bob, _ = rows
        assert (ann["scopes"], ann["expires_at"], ann["messages_per_day"]) == (
            ["chat"],
            "2100-01-01T00:00:00+00:00",
            5,
        )
        assert (ann["messages_today"], bob["messages_today"], bob["replies_today"]) == (2, None, 1)
        assert ann["tokens_today"] > bob["tokens_today"] > 0
        _, page = await call_api(running, operator, "GET", "/keys?limit=1&after=ann")
        assert ([row["name"] for row in page["keys"]], page["next"]) == (["bob"], "bob")
        reported = json.dumps(rows)
        assert key not in reported
        assert not any(digest_of(shown) in reported for shown in (key, free, operator))


async def used(running: InProcessService, operator: str, *, replies: int) -> Lines:
    """Return the keys once so many replies of the first one are counted: the store gets the counts after their ends."""
    async with asyncio.timeout(WAIT_S):
        while True:
            _, page = await call_api(running, operator, "GET", "/keys")
            rows: Lines = page["keys"]
            if rows[0]["replies_today"] == replies and rows[1]["replies_today"]:
                return rows
            await asyncio.sleep(0.02)


# ---- the log


@pytest.mark.usefixtures("logging_as_it_was")
async def test_the_audit_is_logged_whatever_level_the_log_has(
    keys: Path, operator: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.set_up(style="json", level="error")
    async with serving(tmp_path, api_keys=str(keys)) as running:
        await call_api(running, operator, "GET", "/keys")
        os.kill(os.getpid(), signal.SIGHUP)  # "keys reloaded" is no audit
        await call_api(running, None, "GET", "/turns")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["act"], line["operator"], line["outcome"]) for line in lines] == [
        ("list keys", "olga", "done"),
        ("list turns", None, "unauthenticated"),
    ]
    assert logging.getLogger("midstream").getEffectiveLevel() == logging.ERROR


# ---- what nothing takes, and what goes wrong


async def test_a_defect_is_answered_by_a_number_that_the_log_has(
    first_replica: InProcessService, operator: str, audit: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(admin, "_gauges", fail)
    status, body = await call_api(first_replica, operator, "GET", "/keys")
    assert (status, body["error"]["code"]) == (500, "internal")
    (number,) = re.findall("[0-9a-f]{8}", body["error"]["message"])
    assert [line["outcome"] for line in admin_entries(audit)] == ["failed"]
    assert [line["incident"] for line in audit if line["event"] == "request failed"] == [number]


async def test_an_export_ends_with_the_key_of_its_operator(
    tmp_path: Path, keys: Path, operator: str, audit: Lines
) -> None:
    persons = add_key(keys, "ann")
    engine = ScriptedEngine(
        reply="much" * 60_000
    )  # more than the kernel takes for a reader who reads nothing
    async with serving(tmp_path, engine, api_keys=str(keys), read_rate=1000) as running:
        reader = await reads_nothing(running, persons, f"{PATH}/export?principal=key:ann", operator)
        revoke_key(keys, "olga")
        while not admin_entries(audit):
            await call_api(running, persons, "GET", "/keys")
            audit[:] = [line for line in audit if line.get("outcome") != "unauthenticated"]
        reader.close()
    assert [(line["operator"], line["act"], line["outcome"]) for line in admin_entries(audit)] == [
        ("olga", "export", "cut off")
    ]
