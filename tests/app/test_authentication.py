"""Who comes in and who does not, over real sockets and a real store."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis
from websockets.asyncio.client import connect

from app import parts
from app.keys import add_key, revoke_key
from app.settings import SettingsError
from engine.scripted import ScriptedEngine
from sessions.store.embedded import embedded_store
from tests.app.in_process_service import Frame, InProcessService, Socket, serving
from tests.jwt_signing import SECRET, jwk, provider, rsa_key, token

SOON = 0.05


@pytest.fixture
async def guarded(keys: Path, tmp_path: Path) -> AsyncIterator[InProcessService]:
    """A service that asks for a key of the file, or a JWT."""
    async with serving(tmp_path, api_keys=str(keys), jwt_secret=SECRET, refresh_s=SOON) as running:
        yield running


def bearer(shown: str) -> dict[str, Any]:
    return {"additional_headers": {"Authorization": f"Bearer {shown}"}}


async def refusal(running: InProcessService, shown: str | None, **options: Any) -> str:
    """Say hello with a token that must be invalid; return the error's message."""
    async with connect(running.ws_url, **options) as opened:
        socket = Socket(opened)
        await socket.send(type="hello", client_id="ann", ref="r1", **({"token": shown} if shown else {}))
        error = await socket.next()
        assert (error["type"], error["code"], error["ref"]) == ("error", "unauthenticated", "r1")
        assert not error["retryable"]
        assert (await socket.closed())[0] == 4401
        message: str = error["message"]
        return message


async def ticket(running: InProcessService, shown: str) -> str:
    status, headers, body = await running.get("/v1/tickets", method="POST", Authorization=f"Bearer {shown}")
    answer = json.loads(body)
    assert (status, answer["expires_in_s"], headers["cache-control"]) == (200, 30, "no-store")
    reported: str = answer["ticket"]
    return reported


HELLO = [{"role": "user", "content": "Hello?", "id": "1"}]
REPLIES: dict[str, Frame] = {
    "/v1/chat/completions": {"messages": HELLO, "stream": True},
    "/v1/messages": {"messages": HELLO, "max_tokens": 500, "stream": True},
    "/v1/responses": {"input": "Hello?", "stream": True},
    "/v1/ag-ui": {"threadId": "t", "runId": "r", "messages": HELLO},
}


async def test_a_key_that_is_revoked_ends_its_replies_over_http(
    keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "CHECK_S", SOON)
    key = add_key(keys, "ann")
    engine = ScriptedEngine(by_hand=True, reply="word " * 50)
    headers = {"Authorization": f"Bearer {key}"}
    async with (
        serving(tmp_path, engine, api_keys=str(keys)) as running,
        httpx.AsyncClient(base_url=running.url, headers=headers, timeout=60) as client,
        AsyncExitStack() as stack,
    ):
        replies = [
            await stack.enter_async_context(
                client.stream("POST", path, json={"model": "midstream-demo"} | body)
            )
            for path, body in REPLIES.items()
        ]
        assert [reply.status_code for reply in replies] == [200] * len(REPLIES)
        revoke_key(keys, "ann")
        for reply in replies:
            with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
                await reply.aread()


async def test_a_jwt_by_a_key_set_opens(tmp_path: Path) -> None:
    with provider(jwk(rsa_key(), kid="k")) as published:
        async with serving(tmp_path, jwks_url=published.url, jwt_audience="midstream") as running:
            good = token(rsa_key(), "RS256", kid="k", aud="midstream")
            async with running.socket({"token": good}):
                pass
            await refusal(running, token(rsa_key(), "RS256", kid="k", aud="another"))
            await refusal(running, token(rsa_key(1), "RS256", kid="k", aud="midstream"))


async def test_a_jwt_of_an_openid_issuer_opens_where_its_url_and_the_audience_are_all_that_is_known(
    tmp_path: Path,
) -> None:
    with provider(jwk(rsa_key(), kid="k")) as published:
        issuer = {"iss": published.issuer, "aud": "midstream"}
        async with serving(tmp_path, jwt_issuer=published.issuer, jwt_audience="midstream") as running:
            async with running.socket({"token": token(rsa_key(), "RS256", kid="k", **issuer)}):
                pass
            for other in ({"aud": "another"}, {"iss": "https://another.example"}):
                await refusal(running, token(rsa_key(), "RS256", kid="k", **issuer | other))


async def test_where_keys_of_signers_can_not_be_had_a_client_is_told_to_come_back(tmp_path: Path) -> None:
    with provider() as published:
        published.status = 503
        async with serving(tmp_path, jwks_url=published.url) as running, connect(running.ws_url) as opened:
            await Socket(opened).send(type="hello", token=token(rsa_key(), "RS256", kid="k"))
            error = await Socket(opened).next()
            assert (error["code"], error["retryable"]) == ("unauthenticated", True)
            assert (await Socket(opened).closed())[0] == 1013


# ---- tickets


async def test_a_ticket_opens_once_what_its_key_opens(guarded: InProcessService, keys: Path) -> None:
    key = add_key(keys, "ann")
    async with guarded.socket({"client_id": "same", "token": key}) as socket:
        await socket.send(type="send", client_msg_id="m1", conversation_id="diary", content="Dear diary")
        await socket.next("done")
    single = await ticket(guarded, key)
    async with guarded.socket({"client_id": "same", "token": single}) as socket:
        assert len((await socket.ask(type="history", conversation_id="diary"))["messages"]) == 2
        await refusal(guarded, single)


async def test_a_ticket_of_one_replica_opens_another_once(
    tmp_path: Path, store_url: str, store: Redis
) -> None:
    async with AsyncExitStack() as stack:
        one, other = [
            await stack.enter_async_context(serving(tmp_path / name, redis_url=store_url, jwt_secret=SECRET))
            for name in ("one", "other")
        ]
        single = await ticket(one, token())
        kept = [name.decode() async for name in store.scan_iter("ms:ticket:*")]
        assert len(kept) == 1
        assert single not in kept[0]
        assert 0 < await store.ttl(kept[0]) <= 30
        async with other.socket({"token": single}):
            await refusal(one, single)
            await refusal(other, single)


async def test_a_ticket_opens_nothing_once_its_key_is_revoked(guarded: InProcessService, keys: Path) -> None:
    single = await ticket(guarded, add_key(keys, "ann"))
    revoke_key(keys, "ann")
    await refusal(guarded, single)


async def test_a_ticket_buys_no_ticket_and_a_key_buys_few(keys: Path, tmp_path: Path) -> None:
    key = add_key(keys, "ann")
    async with serving(tmp_path, api_keys=str(keys), read_rate=0.2) as running:

        async def refused(shown: str) -> tuple[int, str | None, str]:
            headers = {"Authorization": f"Bearer {shown}"}
            status, answered, body = await running.get("/v1/tickets", method="POST", **headers)
            return status, answered.get("www-authenticate"), json.loads(body)["error"]["code"]

        assert await refused(await ticket(running, key)) == (401, "bearer", "unauthenticated")
        assert await refused(key) == (429, None, "rate_limited")


async def test_without_the_store_there_are_no_tickets_and_keys_open_all_the_same(
    tmp_path: Path, keys: Path
) -> None:
    key = add_key(keys, "ann")
    async with AsyncExitStack() as stack:
        gone = await stack.enter_async_context(AsyncExitStack())
        url = await gone.enter_async_context(embedded_store(tmp_path / "store"))
        running = await stack.enter_async_context(serving(tmp_path, redis_url=url, api_keys=str(keys)))
        await gone.aclose()
        status, _, body = await running.get("/v1/tickets", method="POST", Authorization=f"Bearer {key}")
        assert (status, json.loads(body)["error"]["code"]) == (503, "store_unavailable")
        async with running.socket({"token": key}), connect(running.ws_url) as opened:
            await Socket(opened).send(type="hello", token="mst_any")
            assert (await Socket(opened).next())["code"] == "store_unavailable"
            assert (await Socket(opened).closed())[0] == 1013


# ---- revoked keys


@pytest.mark.parametrize("notice", ["a signal", "the next hello", "time"])
async def test_a_revoked_key_opens_nothing_and_what_it_opened_is_closed(
    notice: str, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "CHECK_S", SOON if notice == "time" else 3600)
    ann, bob = add_key(keys, "ann"), add_key(keys, "bob")
    async with (
        serving(tmp_path, api_keys=str(keys)) as running,
        running.socket({"token": ann}) as theirs,
        running.socket({"token": bob}) as others,
    ):
        revoke_key(keys, "ann")
        match notice:
            case "a signal":
                os.kill(os.getpid(), signal.SIGHUP)
            case "the next hello":
                await refusal(running, "msk_wrong")
        error = await theirs.next()
        assert (error["type"], error["code"]) == ("error", "unauthenticated")
        assert await theirs.closed() == (4401, "The key was revoked.")
        await refusal(running, ann)
        assert (await others.ask(type="ping"))["type"] == "pong"


async def test_a_new_key_of_the_same_name_does_not_keep_the_old_ones_connections(
    guarded: InProcessService, keys: Path
) -> None:
    old = add_key(keys, "ann")
    async with guarded.socket({"client_id": "a", "token": old}) as socket:
        revoke_key(keys, "ann")
        new = add_key(keys, "ann")
        async with guarded.socket({"client_id": "a", "token": new}) as same:
            assert (await socket.closed())[0] == 4401
            assert (await same.ask(type="ping"))["type"] == "pong"


def spoil(keys: Path) -> None:
    """An operator puts a key into the file as it is."""
    keys.write_text("ann:msk_not-a-hash")


async def test_a_file_that_became_unusable_lets_nobody_new_in_and_throws_nobody_out(
    guarded: InProcessService, keys: Path
) -> None:
    key = add_key(keys, "ann")
    async with guarded.socket({"token": key}) as socket:
        spoil(keys)
        async with guarded.socket({"token": key}):
            assert (await socket.ask(type="ping"))["type"] == "pong"
        await refusal(guarded, "msk_not-a-hash")


async def test_a_signal_rereads_origins(tmp_path: Path) -> None:
    origins = tmp_path / "origins"
    origins.write_text("https://old.example # for now\n")

    async def status(running: InProcessService, origin: str) -> int:
        return (await running.get("/v1/tickets", method="OPTIONS", Origin=origin))[0]

    async with serving(tmp_path, allowed_origins=(f"@{origins}", "https://third.example")) as running:
        assert await status(running, "https://old.example") == 204
        assert await status(running, "https://new.example") == 403
        for content in (b"https://new.example", b"\xff"):  # what can't be read changes nothing
            origins.write_bytes(content)
            os.kill(os.getpid(), signal.SIGHUP)
            assert await status(running, "https://old.example") == 403
            assert await status(running, "https://new.example") == 204
            assert await status(running, "https://third.example") == 204


@pytest.mark.parametrize("setting", ["api_keys", "allowed_origins"])
async def test_a_list_that_can_not_be_read_stops_the_start_with_its_setting(
    setting: str, tmp_path: Path
) -> None:
    missing = f"@{tmp_path}/nothing"
    with pytest.raises(SettingsError, match=rf"MIDSTREAM_{setting.upper()} .*nothing can't be read: No such"):
        async with serving(tmp_path, **{setting: (missing,) if setting == "allowed_origins" else missing}):
            pass


# ---- JWTs that expire


async def expiry(socket: Socket) -> Frame:
    error = await socket.next()
    assert (error["type"], error["code"], error["retryable"]) == ("error", "unauthenticated", True)
    return error


async def test_a_token_expires_when_it_says_and_without_another_the_connection_closes(
    guarded: InProcessService,
) -> None:
    expires = int(time.time()) + 1
    async with guarded.socket({"token": token(exp=expires)}) as socket:
        await expiry(socket)
        assert time.time() >= expires
        assert await socket.closed() == (4401, "The token has expired.")


async def test_a_new_token_in_time_keeps_the_connection_and_ends_the_wait_for_its_close(
    tmp_path: Path,
) -> None:
    """The first one expired a moment ago, within the tolerance for clocks."""
    async with (
        serving(tmp_path, jwt_secret=SECRET, refresh_s=0.5) as running,
        running.socket({"client_id": "a", "token": token(exp=int(time.time()) - 2)}) as socket,
    ):
        await expiry(socket)
        again = await socket.ask(type="auth.refresh", token=token(), ref="r9")
        assert again == socket.ready | {"ref": "r9"}
        closing = asyncio.create_task(socket.closed())
        done, _ = await asyncio.wait([closing], timeout=0.7)
        assert not done
        closing.cancel()


async def test_a_refresh_that_can_not_be_judged_now_leaves_things_as_they_are(tmp_path: Path) -> None:
    with provider() as published:
        published.status = 500
        async with (
            serving(tmp_path, jwks_url=published.url, jwt_secret=SECRET) as running,
            running.socket({"token": token()}) as socket,
        ):
            error = await socket.ask(type="auth.refresh", token=token(rsa_key(), "RS256", kid="k"))
            assert (error["code"], error["retryable"]) == ("unauthenticated", True)
            assert (await socket.ask(type="ping"))["type"] == "pong"
