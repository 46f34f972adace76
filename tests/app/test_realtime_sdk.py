"""`/v1/realtime` as OpenAI's own client sees it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI
from openai.types.realtime import RealtimeServerEvent
from openai.types.websocket_reconnection import ReconnectingEvent, ReconnectingOverrides
from pydantic import TypeAdapter
from websockets.exceptions import ConnectionClosedError

from engine.scripted import Call, Thought
from tests.app.in_process_service import InProcessService, serving
from tests.app.realtime_client import LONG, output_text, paced, session, turn
from tests.jwt_signing import KEY

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


async def test_openais_client_works_unchanged(running: InProcessService) -> None:
    """Two turns, a cancel, an error, and what is kept."""
    running.engine.script("Good day.")
    user: Any = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello!"}]}
    async with (
        AsyncOpenAI(api_key=KEY, base_url=f"{running.url}/v1") as client,
        client.realtime.connect(model=MODEL) as connection,
    ):
        await connection.session.update(session={"type": "realtime", "instructions": "Be brief."})
        await connection.conversation.item.create(item=user)
        await connection.response.create()
        text = ""
        async for event in connection:
            if event.type == "response.output_text.delta":
                text += event.delta
            if event.type == "response.done":
                break
        assert (text, event.response.status) == ("Good day.", "completed")
        running.engine.script(LONG)
        await connection.conversation.item.create(item=user)
        await connection.response.create(response={"max_output_tokens": 4000})
        seen = ""
        async for event in connection:
            if event.type == "response.output_text.delta":
                seen += event.delta
                if seen == event.delta:
                    await connection.response.cancel()
            if event.type == "response.done":
                break
        assert event.response.output is not None
        item_id = event.response.output[0].id
        assert (event.response.status, item_id is not None) == ("cancelled", True)
        await connection.conversation.item.retrieve(item_id=str(item_id))
        kept = await connection.recv()
        assert kept.type == "conversation.item.retrieved"
        assert kept.item.type == "message"
        assert kept.item.content[0].text == seen
        await connection.response.cancel(event_id="mine")
        refused = await connection.recv()
        assert refused.type == "error"
        assert refused.error.event_id == "mine"


async def test_events_of_calls_fit_openais_types(running: InProcessService) -> None:
    """Their values: `tests/transcripts/realtime/tools.yaml`, `calls-elsewhere.yaml`."""
    async with session(running) as socket:
        await socket.send(type="session.update", session={"type": "realtime", "tools": [WEATHER]})
        running.engine.script([Thought("Hm."), Call("weather", '{"city": "Bern"}')])
        running.engine.script("It rains in Bern.")
        events = [await socket.next("session.updated"), *await turn(socket, "Weather?")]
        (call,) = events[-1]["response"]["output"]
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "Rain."}
        await socket.send(type="conversation.item.create", item=output)
        await socket.send(type="response.create")
        events += await socket.until("response.done")
    for event in events:
        _events.validate_python(event)
    assert output_text(events) == "It rains in Bern."
