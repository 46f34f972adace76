"""`/v1/realtime` over real sockets and a real store, by its events and as OpenAI's own client sees it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI
from openai.types.realtime import RealtimeServerEvent
from openai.types.websocket_reconnection import ReconnectingEvent, ReconnectingOverrides
from pydantic import TypeAdapter
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosedError, InvalidStatus
from websockets.typing import Subprotocol

from connections.authentication.api_keys import digest_of
from engine.messages import Message
from engine.scripted import FEATURES, Call, ScriptedEngine, Thought
from sessions.limits.bounds import BAD_FRAMES
from tests.app.in_process_service import InProcessService, Socket, serving
from tests.app.realtime_client import (
    LONG,
    LONGEST,
    begin,
    create,
    output_text,
    paced,
    prompts,
    session,
    turn,
    url_of,
)
from tests.app.test_attachments import large, vision_engine
from tests.jwt_signing import KEY
from tests.sample_images import PNG, Picture
from tests.sessions.store.storage_quotas import MIB

MODEL = "midstream-demo"
WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "Tells the weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
_events: TypeAdapter[Any] = TypeAdapter(RealtimeServerEvent)


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[InProcessService]:
    async with paced(tmp_path) as service:
        yield service


@pytest.fixture
async def socket(running: InProcessService) -> AsyncIterator[Socket]:
    async with session(running) as socket:
        yield socket


@pytest.fixture
def keys(keys: Path) -> Path:
    """A file with one key."""
    keys.write_text(f"ann:{digest_of(KEY)}\n")
    return keys


async def test_a_cancel_right_behind_its_reply_finds_it(socket: Socket, running: InProcessService) -> None:
    running.engine.script(LONG)
    await create(socket, "Go on.")
    await socket.send(type="response.create")
    await socket.send(type="response.cancel")
    done = (await socket.until("response.done"))[-1]
    assert done["response"]["status"] == "cancelled"


async def test_what_comes_behind_a_deletion_comes_in_its_order(
    socket: Socket, running: InProcessService
) -> None:
    """All in one burst: the reply answers the question alone, and the cancel finds it."""
    reply = (await turn(socket, "One?"))[-1]["response"]["output"][0]["id"]
    running.engine.script(LONG)
    content = [{"type": "input_text", "text": "Later."}]
    later = {"type": "message", "id": "later", "role": "user", "content": content}
    await socket.send(type="conversation.item.delete", item_id=reply)
    await socket.send(type="response.create", response=LONGEST)
    await socket.send(type="response.cancel")
    await socket.send(type="conversation.item.create", item=later)
    events = await socket.until("response.done")
    assert events[0]["type"] == "conversation.item.deleted"
    assert events[-1]["response"]["status"] == "cancelled"
    await socket.send(type="conversation.item.delete", item_id="later")  # as only what waits can be
    await socket.send(type="session.update", session={})
    reported = [event["type"] for event in await socket.until("session.updated")]
    assert "conversation.item.deleted" in reported


async def test_what_waits_has_a_bound(socket: Socket) -> None:
    for text, times, code in (("x" * 30_000, 8, "content_too_long"), ("?", 92, "too_many_items")):
        for _ in range(times):
            await create(socket, text)
        content = [{"type": "input_text", "text": text}]
        item = {"type": "message", "role": "user", "content": content}
        refused = await socket.ask(type="conversation.item.create", item=item)
        assert refused["error"]["code"] == code


async def test_who_speaks_another_language_is_sent_away(socket: Socket) -> None:
    for _ in range(BAD_FRAMES):
        await socket.opened.send("hello?")
    assert await socket.closed() == (1008, f"{BAD_FRAMES} bad frames in a minute.")


async def test_a_key_comes_in_by_a_header_or_by_a_subprotocol(tmp_path: Path, keys: Path) -> None:
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


async def test_a_key_has_many_sessions_and_comes_back_to_each(tmp_path: Path, keys: Path) -> None:
    async with (
        serving(tmp_path, api_keys=str(keys), max_client_connections=1) as running,
        session(running, token=KEY) as first,
        session(running, token=KEY),
    ):
        place = first.ready["conversation_id"]
        reply = (await turn(first, "One?"))[-1]["response"]["output"][0]
        await first.opened.close()
        while running.service._lifecycle._manager.statistics().connections > 1:
            await running.get("/healthz")
        async with session(running, token=KEY, conversation_id=place) as back:
            await back.until("conversation.item.done")
            assert (await back.next("conversation.item.done"))["item"] == reply


async def test_a_key_that_is_revoked_ends_its_sessions(tmp_path: Path, keys: Path) -> None:
    async with (
        serving(tmp_path, api_keys=str(keys)) as running,
        session(running, token=KEY) as socket,
    ):
        await asyncio.to_thread(keys.write_text, "")
        running.service._config_reload.access.reload()
        error = (await socket.next())["error"]
        assert (error["type"], error["code"]) == ("authentication_error", "unauthenticated")
        assert (await socket.closed())[0] == 4401


async def test_openais_client_comes_back_after_a_stop_and_not_after_a_refusal(tmp_path: Path) -> None:
    codes: list[int] = []
    ann: Any = {"client_id": "ann"}

    def reconnecting(event: ReconnectingEvent) -> ReconnectingOverrides:
        codes.append(event.close_code)
        return {"abort": True}

    async with (
        serving(tmp_path, max_client_connections=1) as running,
        AsyncOpenAI(api_key=KEY, base_url=f"{running.url}/v1") as client,
        client.realtime.connect(model=MODEL, extra_query=ann, on_reconnecting=reconnecting) as connection,
    ):
        assert (await connection.recv()).type == "session.created"
        async with client.realtime.connect(
            model=MODEL, extra_query=ann, on_reconnecting=reconnecting
        ) as second:
            with pytest.raises(ConnectionClosedError) as refused:
                await anext(aiter(second))
        assert refused.value.rcvd is not None
        assert (refused.value.rcvd.code, codes) == (4429, [])
        running.service.stop()
        with pytest.raises(ConnectionClosedError):
            await anext(aiter(connection))
        assert codes == [1012]


async def test_events_fit_openais_types(running: InProcessService, socket: Socket) -> None:
    """Their values are in `tests/transcripts/realtime`."""
    await socket.send(type="session.update", session={"type": "realtime", "tools": [WEATHER]})
    running.engine.script([Thought("Hm."), Call("weather", '{"city": "Bern"}')])
    running.engine.script("It rains in Bern.")
    events = [await socket.next("session.updated"), *await turn(socket, "Weather?")]
    (call,) = events[-1]["response"]["output"]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "Rain."}
    await socket.send(type="conversation.item.create", item=output)
    await socket.send(type="response.create")
    events += await socket.until("response.done")
    assert output_text(events) == "It rains in Bern."
    await begin(socket, running)
    await socket.send(type="response.cancel")
    events += await socket.until("response.done")
    item = events[-1]["response"]["output"][0]["id"]
    await socket.send(type="conversation.item.retrieve", item_id=item)
    await socket.send(type="conversation.item.delete", item_id=item)
    events += await socket.until("conversation.item.deleted")
    await socket.send(type="response.cancel", event_id="mine")
    events.append(await socket.next("error"))
    for event in events:
        _events.validate_python(event)


async def test_a_full_store_refuses_an_image_and_the_session_goes_on(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, vision_engine(), store_memory=16 * MIB) as running,
        session(running, client_id="ann") as socket,
    ):
        for number in range(16):
            part = {"type": "input_image", "image_url": Picture(large(number, MIB // 2)).url}
            item = {"type": "message", "role": "user", "content": [part]}
            await socket.send(type="conversation.item.create", item=item)
            if (answer := await socket.next())["type"] == "error":
                break
            await socket.next("conversation.item.done")
        assert answer["error"]["code"] == "store_full"
        await create(socket, "Hello!")


async def test_where_an_image_stood_is_forgotten_with_its_message(tmp_path: Path) -> None:
    """Another message shows it where its own client says: before the text, on the native socket."""
    content = [{"type": "input_text", "text": "Look at this:"}, {"type": "input_image", "image_url": PNG.url}]
    engine = ScriptedEngine(features=(*FEATURES, "images"), pace_s=0.001)
    async with (
        serving(tmp_path, engine) as running,
        session(running, client_id="ann") as socket,
        running.socket({"client_id": "ann"}) as native,
    ):
        await create(socket, "", item={"content": content})
        frame = {"client_msg_id": "m", "conversation_id": "other", "content": "And this?"}
        await native.send(type="send", attachments=[PNG.image.digest], **frame)
        await native.until("done")
        assert prompts(running.engine) == [(Message("user", "And this?", images=(PNG.image,)),)]
