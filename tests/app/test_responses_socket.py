"""The WebSocket of the Responses endpoint: one response after the other, several in lanes, and stops within one step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI
from websockets.exceptions import InvalidStatus

from engine.messages import Message
from engine.scripted import Call, ScriptedEngine
from tests.app.in_process_service import InProcessService, serving
from tests.app.responses_client import ResponsesSocket, responses_socket, text_of
from tests.jwt_signing import KEY

WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}


async def test_the_stock_client_speaks_over_a_socket(running: InProcessService) -> None:
    running.engine.script("Good day to you.")
    async with (
        AsyncOpenAI(base_url=f"{running.url}/v1", api_key=KEY) as sdk,
        sdk.responses.connect() as connection,
    ):
        await connection.response.create(model="midstream-demo", input="Hello!")
        text = ""
        async for event in connection:
            if event.type == "response.output_text.delta":
                text += event.delta
            if event.type == "response.completed":
                break
    assert text == "Good day to you."


async def test_a_socket_goes_on_with_calls_and_their_outputs(running: InProcessService) -> None:
    running.engine.script([Call("weather", "{}", call_id="call_1")])
    running.engine.script("Sunny.")
    output = {"type": "function_call_output", "call_id": "call_1", "output": "Sun"}
    async with responses_socket(running) as talk:
        first = await talk.response(store=False, input="Weather?", tools=[WEATHER], instructions="Be brief.")
        await talk.response(store=False, previous_response_id=first["id"], input=[output], tools=[WEATHER])
    roles = [message.role for message in running.engine.requests[-1].messages]
    assert roles == ["user", "assistant", "tool"]  # instructions count for one response


async def test_lanes_are_conversations_side_by_side(running: InProcessService) -> None:
    engine = running.engine
    async with responses_socket(running) as talk:
        firsts: dict[str, Any] = {}
        for stream_id in ("a", "b", "c"):
            await talk.send(store=False, stream_id=stream_id, input=f"I am {stream_id}.")
        while len(firsts) < 3:
            event = await talk.next("response.completed")
            firsts[event["stream_id"]] = event["response"]["id"]
        for stream_id, response_id in firsts.items():
            await talk.send(
                store=False, stream_id=stream_id, previous_response_id=response_id, input="Who am I?"
            )
        ended = {(await talk.next("response.completed"))["stream_id"] for _ in firsts}
    assert ended == {"a", "b", "c"}
    for request in engine.requests[3:]:
        questions = [message.content for message in request.messages if message.role == "user"]
        assert len(questions) == 2
    assert {request.messages[0].content for request in engine.requests[3:]} == {
        f"I am {stream_id}." for stream_id in "abc"
    }


@pytest.mark.parametrize("store", [False, True])
async def test_a_cancel_is_one_step_and_the_next_response_reads_what_was_sent(
    store: bool,  # noqa: FBT001
    tmp_path: Path,
) -> None:
    engine = ScriptedEngine(by_hand=True, reply="One two three four five.")
    known = {"additional_headers": {"Authorization": f"Bearer {KEY}"}}
    async with serving(tmp_path, engine) as running, responses_socket(running, **known) as talk:
        await talk.send(store=store, input="Count.")
        await wait_for_requests(talk, engine, running)
        engine.step()
        engine.step()
        seen = (await talk.next("response.output_text.delta"))["delta"]
        if "two" not in seen:
            seen += (await talk.next("response.output_text.delta"))["delta"]
        await talk.send(type="midstream:response.cancel")
        receipt = await talk.next("midstream:response.cancelled")
        assert receipt["steps_after"] <= 1
        last = await talk.next("response.incomplete")
        assert (last["response"]["status"], text_of(last["response"])) == ("cancelled", seen)
        assert engine.statistics().steps == 2
        assert last["response"]["store"] is store
        await talk.send(store=store, previous_response_id=last["response"]["id"], input="Go on.")
        await wait_for_requests(talk, engine, running, 2)
        assert engine.requests[-1].messages == (
            Message("user", "Count."),
            Message("assistant", seen),
            Message("user", "Go on."),
        )
        await talk.send(type="midstream:response.cancel")
        await talk.next("response.incomplete")


async def test_a_client_that_leaves_stops_all_of_its_lanes(tmp_path: Path) -> None:
    engine = ScriptedEngine(by_hand=True)
    async with serving(tmp_path, engine) as running:
        async with responses_socket(running) as talk:
            await talk.send(store=False, stream_id="a", input="Hello!")
            await talk.send(store=False, stream_id="b", input="Hello!")
            await wait_for_requests(talk, engine, running, 2)
            engine.step()
        while engine.statistics().cancels < 2:
            await running.get("/healthz")
    assert engine.statistics().steps == 1


async def test_a_lane_has_one_response_at_a_time(tmp_path: Path) -> None:
    engine = ScriptedEngine(by_hand=True)
    async with serving(tmp_path, engine) as running, responses_socket(running) as talk:
        await talk.send(store=False, input="Hello!")
        await wait_for_requests(talk, engine, running)
        await talk.send(store=False, input="And?")
        assert (await talk.next("error"))["code"] == "response_in_progress"


async def test_a_reply_that_breaks_off_is_told_as_failed_and_not_gone_on_from(tmp_path: Path) -> None:
    engine = ScriptedEngine(by_hand=True)
    async with serving(tmp_path, engine) as running, responses_socket(running) as talk:
        await talk.send(store=False, input="Hello!")
        await wait_for_requests(talk, engine, running)
        engine.step()
        await talk.next("response.output_text.delta")
        engine.die()
        failed = (await talk.next("response.failed"))["response"]
        assert (failed["status"], failed["error"]["message"][-1]) == ("failed", ".")
        code = await talk.refused(store=False, previous_response_id=failed["id"], input="Go on.")
        assert code == "previous_response_not_found"


async def test_what_is_said_in_a_wrong_way_is_an_event(running: InProcessService) -> None:
    async with responses_socket(running) as talk:
        assert await talk.refused(type="response.steer") == "unsupported_event"
        assert await talk.refused(type="response.cancel") == "response_not_found"
        assert (
            await talk.refused(input=[{"role": "user", "content": [{"type": "input_image"}]}])
            == "unsupported_parameter"
        )
        assert await talk.refused(model="gpt-9", input="Hello!") == "model_not_found"
        await talk.opened.send("{")
        assert (await talk.next("error"))["code"] == "bad_frame"
        assert await talk.response(input="Hello!")


async def test_nobody_without_a_key_comes_in(tmp_path: Path, keys: Path) -> None:
    async with serving(tmp_path, api_keys=str(keys)) as running:
        with pytest.raises(InvalidStatus) as denied:
            async with responses_socket(running):
                pass
        assert denied.value.response.status_code == 401


async def wait_for_requests(
    talk: ResponsesSocket, engine: ScriptedEngine, running: InProcessService, requests: int = 1
) -> None:
    """Returns once the engine has been asked."""
    while len(engine.requests) < requests:
        await running.get("/healthz")
    assert talk.opened.close_code is None
