"""Tools over `/v1/realtime`, with real sockets and a real store. Every event fits OpenAI's own types."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter

from engine.scripted import Call, Thought
from tests.app.in_process_service import Frame, InProcessService, Socket
from tests.app.realtime_client import output_text, paced, session, turn

WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "Tells the weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
BERN = Call("weather", '{"city": "Bern"}')
_events: TypeAdapter[Any] = TypeAdapter(RealtimeServerEvent)


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[InProcessService]:
    async with paced(tmp_path) as service:
        yield service


@pytest.fixture
async def socket(running: InProcessService) -> AsyncIterator[Socket]:
    async with session(running) as socket:
        await offer(socket)
        yield socket


async def offer(socket: Socket, **more: Any) -> Frame:
    await socket.send(type="session.update", session={"type": "realtime", "tools": [WEATHER], **more})
    return (await socket.next("session.updated"))["session"]


async def outcome(socket: Socket, call_id: str, output: str, **more: Any) -> Frame:
    item = {"type": "function_call_output", "call_id": call_id, "output": output}
    return await socket.ask(type="conversation.item.create", item=item, **more)


async def call(socket: Socket, running: InProcessService, *steps: Any, **response: Any) -> list[Frame]:
    running.engine.script(list(steps))
    return await turn(socket, "Weather?", **response)


def types(events: list[Frame]) -> list[str]:
    return [event["type"] for event in events]


async def test_a_call_its_output_and_the_reply_to_it(socket: Socket, running: InProcessService) -> None:
    events = await call(socket, running, Thought("Hm."), BERN)
    assert types(events) == [
        "response.created",
        "response.output_item.added",
        "conversation.item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "conversation.item.done",
        "response.output_item.done",
        "response.done",
    ]
    started, item, arguments = events[1]["item"], events[6]["item"], events[4]
    assert (started["status"], started["arguments"], started["name"]) == ("in_progress", "", "weather")
    assert (item["type"], item["status"], item["arguments"]) == ("function_call", "completed", BERN.arguments)
    assert (arguments["name"], arguments["arguments"], arguments["item_id"]) == (
        "weather",
        BERN.arguments,
        item["id"],
    )
    response = events[-1]["response"]
    assert (response["status"], response["output"]) == ("completed", [item])
    added = await outcome(socket, item["call_id"], "Rain.")
    assert (added["type"], added["previous_item_id"], added["item"]["output"]) == (
        "conversation.item.added",
        item["id"],
        "Rain.",
    )
    running.engine.script("It rains in Bern.")
    await socket.send(type="response.create", response={"metadata": {"round": "two"}})
    second = await socket.until("response.done")
    assert output_text(second) == "It rains in Bern."
    assert second[-1]["response"]["metadata"] == {"round": "two"}
    placed = next(one for one in second if one["type"] == "conversation.item.added")
    assert placed["previous_item_id"] == added["item"]["id"]
    prompt = running.engine.requests[-1].messages
    assert [(one.role, one.content) for one in prompt] == [
        ("user", "Weather?"),
        ("assistant", ""),
        ("tool", "Rain."),
    ]
    assert prompt[1].calls[0].call_id == prompt[2].call_id == item["call_id"]
    for event in [*events, added, *second]:
        _events.validate_python(event)


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([WEATHER] * 129, "session.tools"),
        ([{**WEATHER, "description": "x" * 4097}], "session.tools[0].description"),
        ([{**WEATHER, "parameters": {"x": "y" * 33_000}}], "session.tools[0].parameters"),
    ],
)
async def test_too_much_of_tools_is_refused_by_its_name(
    socket: Socket, tools: list[dict[str, Any]], param: str
) -> None:
    """`tests/transcripts/realtime/refused-tools` has all other refusals."""
    error = (await socket.ask(type="session.update", session={"tools": tools}))["error"]
    assert (error["param"], error["code"]) == (param, "invalid_value")
