"""`/v1/realtime` over real sockets and a real store: the same gate, limits, conversations and ends as on the native socket."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Subprotocol

from connections.authentication.api_keys import digest_of
from tests.app.in_process_service import InProcessService, Socket, serving
from tests.app.realtime_client import LONG, begin, create, output_text, paced, session, turn, url_of
from tests.jwt_signing import KEY


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[InProcessService]:
    async with paced(tmp_path) as service:
        yield service


async def test_all_doors_see_one_conversation(running: InProcessService) -> None:
    async with AsyncExitStack() as stack:
        native = await stack.enter_async_context(running.socket({"client_id": "ann"}))
        await native.send(type="send", client_msg_id="m1", conversation_id="ours", content="One?")
        await native.next("done")
        here = await stack.enter_async_context(session(running, conversation_id="ours", client_id="ann"))
        await here.until("conversation.item.done")
        await here.until("conversation.item.done")
        running.engine.script(LONG)
        await native.send(
            type="send",
            client_msg_id="m2",
            conversation_id="ours",
            content="Two?",
            params={"max_new_tokens": 4000},
        )
        message = await here.next("conversation.item.added")
        assert message["item"]["content"] == [{"type": "input_text", "text": "Two?"}]
        response = (await here.next("response.created"))["response"]
        await here.next("response.output_text.delta")
        there = await stack.enter_async_context(session(running, conversation_id="ours", client_id="ann"))
        late = await there.until("response.output_text.delta")  # it comes in the middle of the reply
        await here.send(type="response.cancel", response_id=response["id"])
        done = await native.next("done")
        ends = [(await one.next("response.done"))["response"] for one in (here, there)]
        texts = [end["output"][0]["content"][0]["text"] for end in ends]
        assert texts[0] == texts[1]
        assert texts[0].startswith(output_text(late))
        assert len(texts[0]) == done["chars"]


async def test_a_key_comes_in_by_a_header_or_by_a_subprotocol(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"ann:{digest_of(KEY)}\n")
    async with serving(tmp_path, api_keys=str(keys)) as running:
        for options in (
            {"additional_headers": {"Authorization": f"Bearer {KEY}"}},
            {"subprotocols": [Subprotocol("realtime"), Subprotocol(f"openai-insecure-api-key.{KEY}")]},
        ):
            async with connect(url_of(running), **options) as opened:  # type: ignore[arg-type]
                assert (await Socket(opened).next())["type"] == "session.created"
                assert opened.subprotocol == ("realtime" if "subprotocols" in options else None)
        with pytest.raises(InvalidStatus) as refused:
            await connect(url_of(running))
        assert refused.value.response.status_code == 401
        assert json.loads(refused.value.response.body or b"")["error"]["code"] == "invalid_api_key"


async def test_a_server_that_stops_ends_the_reply_and_asks_to_come_back(tmp_path: Path) -> None:
    async with paced(tmp_path) as running, session(running) as socket:
        await begin(socket, running)
        running.service.stop()
        done = (await socket.next("response.done"))["response"]
        assert (done["status"], done["status_details"]["error"]["type"]) == ("failed", "server_error")
        assert await socket.closed() == (1012, "The server is shutting down; reconnect.")


async def test_messages_are_counted_as_on_every_door(tmp_path: Path) -> None:
    async with serving(tmp_path, messages_per_minute=1) as running, session(running) as socket:
        await turn(socket, "One?")
        await create(socket, "Two?")
        await socket.send(type="response.create", event_id="mine")
        error = (await socket.next("error"))["error"]
        assert (error["type"], error["code"], error["event_id"]) == (
            "rate_limit_error",
            "rate_limit_exceeded",
            "mine",
        )


async def test_what_is_there_is_asked_for_so_often_and_no_more(tmp_path: Path) -> None:
    async with serving(tmp_path, read_rate=0.2) as running:
        async with session(running, conversation_id="ours", client_id="ann"):
            pass
        async with session(running, conversation_id="ours", client_id="ann") as socket:
            code, why = await socket.closed()
        assert code == 1013
        assert why.startswith("You send requests too quickly")


async def test_a_client_has_so_many_connections(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, max_client_connections=1) as running,
        session(running, client_id="ann"),
        connect(url_of(running, client_id="ann")) as second,
    ):
        assert (await Socket(second).closed())[0] == 4429


async def test_a_key_has_many_sessions_and_comes_back_to_each(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"ann:{digest_of(KEY)}\n")
    shown: Any = {"additional_headers": {"Authorization": f"Bearer {KEY}"}}
    async with (
        serving(tmp_path, api_keys=str(keys), max_client_connections=1) as running,
        connect(url_of(running), **shown) as first,
        connect(url_of(running), **shown) as second,
    ):
        socket = Socket(first)
        place = (await socket.next())["session"]["conversation_id"]
        assert (await Socket(second).next())["type"] == "session.created"
        reply = (await turn(socket, "One?"))[-1]["response"]["output"][0]
        await first.close()
        while running.service._lifecycle._manager.statistics().connections > 1:
            await running.get("/healthz")
        async with connect(url_of(running, conversation_id=place), **shown) as again:
            await (back := Socket(again)).until("conversation.item.done")
            assert (await back.next("conversation.item.done"))["item"] == reply


async def test_a_key_that_is_revoked_ends_its_sessions(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"ann:{digest_of(KEY)}\n")
    async with serving(tmp_path, api_keys=str(keys)) as running:
        shown = {"Authorization": f"Bearer {KEY}"}
        async with connect(url_of(running), additional_headers=shown) as opened:
            await Socket(opened).next("session.created")
            keys.write_text("")
            running.service._config_reload.access.reload()
            error = (await Socket(opened).next())["error"]
            assert (error["type"], error["code"]) == ("authentication_error", "unauthenticated")
            assert (await Socket(opened).closed())[0] == 4401
