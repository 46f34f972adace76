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
from tests.app.realtime_client import LONG, LONGEST, create, output_text, paced, session, turn

WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "Tells the weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
BERN = Call("weather", '{"city": "Bern"}')
ROME = Call("weather", '{"city": "Rome"}')
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


def call_ids(events: list[Frame]) -> list[str]:
    return [one["call_id"] for one in events[-1]["response"]["output"] if one["type"] == "function_call"]


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


async def test_text_and_calls_are_items_of_one_reply_in_their_order(
    socket: Socket, running: InProcessService
) -> None:
    events = await call(socket, running, "I look.", BERN, ROME)
    output = events[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["message", "function_call", "function_call"]
    places = {
        event["item"]["id"]: event["output_index"] for event in events if "output_item" in event["type"]
    }
    assert [places[item["id"]] for item in output] == [0, 1, 2]
    assert output_text(events) == "I look."
    for event in events:
        _events.validate_python(event)


async def test_a_session_shows_the_tools_that_it_has(running: InProcessService) -> None:
    async with session(running) as socket:
        assert (socket.ready["tools"], socket.ready["tool_choice"]) == ([], "auto")
        shown = await offer(socket, tool_choice={"type": "function", "name": "weather"})
        assert shown["tools"] == [WEATHER]
        assert shown["tool_choice"] == {"type": "function", "name": "weather"}
        await call(socket, running, BERN, tool_choice="required")
        assert [request.spec.tool_choice for request in running.engine.requests] == ["required"]
        _events.validate_python({"type": "session.updated", "event_id": "e", "session": shown})


async def test_tools_of_one_reply_hold_for_its_exchange_alone(running: InProcessService) -> None:
    async with session(running) as socket:
        events = await call(socket, running, BERN, tools=[WEATHER], tool_choice="required")
        await outcome(socket, call_ids(events)[0], "Rain.")
        await socket.next("conversation.item.done")
        await socket.send(type="response.create")
        await socket.until("response.done")
        await turn(socket, "Thanks.")
    specs = [request.spec for request in running.engine.requests]
    assert [len(spec.tools) for spec in specs] == [1, 1, 0]
    assert [spec.tool_choice for spec in specs] == ["required", "auto", "auto"]


async def test_a_reply_waits_for_all_outputs(socket: Socket, running: InProcessService) -> None:
    events = await call(socket, running, BERN, ROME)
    bern, rome = call_ids(events)
    await outcome(socket, bern, "Rain.")
    await socket.next("conversation.item.done")
    error = (await socket.ask(type="response.create", event_id="early"))["error"]
    assert (error["code"], error["event_id"]) == ("missing_function_call_output", "early")
    assert rome in error["message"]
    await outcome(socket, rome, "Sun.")
    await socket.next("conversation.item.done")
    await socket.send(type="response.create")
    await socket.until("response.done")
    results = [one.content for one in running.engine.requests[-1].messages if one.role == "tool"]
    assert results == ["Rain.", "Sun."]


async def test_messages_wait_until_the_calls_are_answered(socket: Socket, running: InProcessService) -> None:
    (call_id,) = call_ids(await call(socket, running, BERN))
    question = await create(socket, "And tomorrow?")
    added = await outcome(socket, call_id, "Rain.")
    assert added["previous_item_id"] != question["item"]["id"]
    await socket.next("conversation.item.done")
    for _ in range(2):
        await socket.send(type="response.create")
        await socket.until("response.done")
    assert [one.role for one in running.engine.requests[-2].messages] == ["user", "assistant", "tool"]
    assert running.engine.requests[-1].messages[-1].content == "And tomorrow?"


async def test_a_cancel_settles_open_calls(socket: Socket, running: InProcessService) -> None:
    events = await call(socket, running, BERN)
    await socket.send(type="response.cancel")
    reported = await socket.until("response.done")
    output = next(one["item"] for one in reported if one["type"] == "conversation.item.done")
    assert (output["type"], output["call_id"], output["output"]) == (
        "function_call_output",
        call_ids(events)[0],
        "The call was cancelled.",
    )
    assert reported[-1]["response"]["status"] == "cancelled"
    late = (await outcome(socket, call_ids(events)[0], "Rain."))["error"]
    assert (late["code"], late["param"]) == ("invalid_tool_call_id", "item.call_id")
    await turn(socket, "Why?")
    assert running.engine.requests[-1].messages[-1].content == "Why?"
    for event in reported:
        _events.validate_python(event)


async def test_a_cancel_of_a_reply_that_called_cancels_its_calls(
    socket: Socket, running: InProcessService
) -> None:
    running.engine.script([BERN, *LONG.split()])
    await create(socket, "Go on.")
    await socket.send(type="response.create", response=LONGEST)
    started = await socket.until("response.output_text.delta")
    await socket.send(type="response.cancel")
    ended = await socket.until("response.done")
    assert ended[-1]["response"]["status"] == "cancelled"
    output = (await socket.next("conversation.item.done"))["item"]
    called = next(one["item"] for one in started if one["type"] == "response.output_item.done")
    assert (output["type"], output["call_id"]) == ("function_call_output", called["call_id"])


async def test_another_device_may_answer(running: InProcessService) -> None:
    async with session(running, client_id="ann", conversation_id="c") as socket:
        await offer(socket)
        (call_id,) = call_ids(await call(socket, running, BERN))
        await outcome(socket, call_id, "Mine.")
        await socket.next("conversation.item.done")
        hello = {"client_id": "ann", "features": ["tools"]}
        async with running.socket(hello) as device:
            await device.send(type="history", conversation_id="c")
            await device.next("history")
            await device.send(type="tool_result", call_id=call_id, content="Theirs.")
            reported = await socket.until("response.done")
    assert types(reported)[:3] == [
        "conversation.item.deleted",
        "conversation.item.added",
        "conversation.item.done",
    ]
    assert reported[2]["item"]["output"] == "Theirs."


async def test_who_comes_back_finds_calls_and_outputs(running: InProcessService) -> None:
    async with session(running, client_id="ann", conversation_id="c") as socket:
        await offer(socket)
        (call_id,) = call_ids(await call(socket, running, BERN))
        await outcome(socket, call_id, "Rain.")
        await socket.next("conversation.item.done")
        await socket.send(type="response.create")
        await socket.until("response.done")
        (open_id,) = call_ids(await call(socket, running, ROME))
        async with session(running, client_id="ann", conversation_id="c") as again:
            items = [(await again.next("conversation.item.done"))["item"] for _ in range(6)]
            kinds = [item.get("role", item["type"]) for item in items]
            assert kinds == [
                "user",
                "function_call",
                "function_call_output",
                "assistant",
                "user",
                "function_call",
            ]
            assert items[2]["output"] == "Rain."
            await outcome(again, open_id, "Sun.")
            await again.next("conversation.item.done")
            await again.send(type="response.create")
            await again.until("response.done")
        async with session(running, client_id="ann", conversation_id="c", after=items[5]["id"]) as last:
            rest = [(await last.next("conversation.item.done"))["item"] for _ in range(2)]
            assert [item["type"] for item in rest] == ["function_call_output", "message"]


async def test_a_reply_that_is_deleted_takes_its_calls_along(
    socket: Socket, running: InProcessService
) -> None:
    (call_id,) = call_ids(await call(socket, running, BERN))
    await outcome(socket, call_id, "Rain.")
    await socket.next("conversation.item.done")
    await socket.send(type="response.create")
    reply = (await socket.until("response.done"))[-1]["response"]["output"][0]["id"]
    await socket.send(type="conversation.item.delete", item_id=reply)
    for _ in range(3):
        await socket.next("conversation.item.deleted")
    await socket.send(type="response.create")
    await socket.until("response.done")
    assert [one.content for one in running.engine.requests[-1].messages] == ["Weather?"]


REFUSED: list[tuple[Frame, str, str]] = [
    ({"session": {"tools": [{"type": "mcp", "server_label": "x"}]}}, "session.tools[0].type", "unsupported_parameter"),
    ({"session": {"tools": [{"type": "function"}]}}, "session.tools[0].name", "invalid_value"),
    ({"session": {"tools": [WEATHER, WEATHER]}}, "session.tools", "invalid_value"),
    ({"session": {"tools": [WEATHER] * 129}}, "session.tools", "invalid_value"),
    ({"session": {"tools": [{**WEATHER, "description": "x" * 4097}]}}, "session.tools[0].description", "invalid_value"),
    ({"session": {"tools": [{**WEATHER, "parameters": {"x": "y" * 33_000}}]}}, "session.tools[0].parameters", "invalid_value"),
    ({"session": {"tool_choice": "required", "tools": []}}, "session.tool_choice", "invalid_value"),
    ({"session": {"tool_choice": "now"}}, "session.tool_choice", "invalid_value"),
    ({"session": {"tool_choice": {"type": "function", "name": "other"}}}, "session.tool_choice", "invalid_value"),
    ({"session": {"tool_choice": {"type": "mcp", "name": "other"}}}, "session.tool_choice", "invalid_value"),
    ({"session": {"parallel_tool_calls": False}}, "session.parallel_tool_calls", "unsupported_parameter"),
]  # fmt: skip


async def test_what_is_no_tool_is_refused_by_its_name(socket: Socket) -> None:
    for update, param, code in REFUSED:
        error = (await socket.ask(type="session.update", **update))["error"]
        assert (error["param"], error["code"]) == (param, code), update
    assert len((await offer(socket))["tools"]) == 1


async def test_an_output_is_of_a_call_that_waits_and_given_once(
    socket: Socket, running: InProcessService
) -> None:
    (call_id,) = call_ids(await call(socket, running, BERN))
    for wrong, param in (
        ({"call_id": "call_of_nobody", "output": "x"}, "item.call_id"),
        ({"output": "x"}, "item.call_id"),
        ({"call_id": call_id}, "item.output"),
    ):
        item = {"type": "function_call_output", **wrong}
        assert (await socket.ask(type="conversation.item.create", item=item))["error"]["param"] == param
    await outcome(socket, call_id, "Rain.")
    await socket.next("conversation.item.done")
    assert (await outcome(socket, call_id, "Sun."))["error"]["param"] == "item.call_id"
    changed = await socket.ask(type="response.create", response={"tool_choice": "required"})
    assert changed["error"]["param"] == "response.tool_choice"
    await socket.send(type="response.create", response={"tool_choice": "auto", "tools": [WEATHER]})
    await socket.until("response.done")


async def test_an_effort_is_asked_of_the_model(socket: Socket, running: InProcessService) -> None:
    await turn(socket, "Hm?", reasoning={"effort": "low"})
    await turn(socket, "Hm?")
    assert [request.spec.reasoning for request in running.engine.requests] == ["low", "auto"]
