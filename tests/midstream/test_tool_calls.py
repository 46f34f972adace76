"""Tools and reasoning through the Python client: told, answered, decided, stopped, and there again after a lost connection."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

import midstream
from engine.scripted import Call, ScriptedEngine, Thought
from tests.app.in_process_service import InProcessService, serving
from tests.midstream.conftest import cut

ALL = ("reasoning", "tools")
WEATHER = {"name": "weather", "parameters": {"type": "object"}}
PAY = {"name": "pay", "approval": "always"}
BERN = Call("weather", '{"city": "Bern"}')


async def test_a_call_is_answered_and_the_next_reply_follows(running: InProcessService) -> None:
    running.engine.script([Thought("Hm."), "I look.", BERN])
    running.engine.script(["Rain."])
    async with midstream.connect(running.ws_url, features=ALL) as client:
        reply = await client.send("Weather?", tools=[WEATHER])
        assert [text async for text in reply] == ["I look."]
        assert reply.reasoning == "Hm."
        (call,) = reply.calls
        assert (call.name, call.arguments, call.state) == ("weather", {"city": "Bern"}, "waiting")
        ack = await client.tool_result(call.call_id, content="Rain.")
        assert (ack["state"], ack["already"]) == ("done", False)
        following = await reply.following()
        assert following is not None
        assert (await following.wait())["reason"] == "stop"
        assert (following.text, await following.following()) == ("Rain.", None)
        assert (call.state, call.content) == ("done", "Rain.")
        assert (await client.tool_result(call.call_id, content="Rain."))["already"] is True
        with pytest.raises(midstream.Refused, match="conflict"):
            await client.tool_result(call.call_id, error="No.")


async def test_events_tell_thoughts_and_each_step_of_a_call(running: InProcessService) -> None:
    running.engine.script([Thought("Hm."), "Pay?", Call("pay", '{"sum": 5}')])
    running.engine.script(["Fine."])
    seen: list[object] = []
    async with midstream.connect(running.ws_url, features=ALL) as client:
        reply = await client.send("Pay.", tools=[PAY])
        async for event in reply.events():
            seen.append(event.state if isinstance(event, midstream.Call) else event)
            if isinstance(event, midstream.Call) and event.needs_decision:
                await client.tool_decision(
                    event.call_id, "allow", args_sha256=event.args_sha256, args='{"sum": 4}'
                )
            elif isinstance(event, midstream.Call) and event.state == "running":
                assert json.loads(event.args) == {"sum": 4}
                await client.tool_result(event.call_id, error="No money.")
        assert seen == [midstream.Reasoning("Hm."), "Pay?", "waiting", "running", "done"]
        assert reply.calls[0].error == "No money."
        following = await reply.following()
        assert following is not None
        assert (await following.wait())["reason"] == "stop"


async def test_a_cancel_settles_the_calls_and_the_reply_that_follows_is_cancelled(
    running: InProcessService,
) -> None:
    running.engine.script(["I ask.", BERN])
    async with midstream.connect(running.ws_url, features=ALL) as client:
        reply = await client.send("Weather?", tools=[WEATHER])
        assert (await reply.wait())["reason"] == "tools"
        assert (await reply.cancel())["already"] is False
        following = await reply.following()
        assert following is not None
        assert (await following.wait())["reason"] == "cancelled"
        assert [call.state for call in reply.calls] == ["cancelled"]
        kept = (await client.history())[1]
    assert (kept["content"], kept["calls"][0]["state"]) == ("I ask.", "cancelled")


async def test_open_calls_outlive_a_lost_connection(running: InProcessService) -> None:
    running.engine.script(["I look.", BERN])
    running.engine.script(["Rain."])
    back = asyncio.Event()
    watching = midstream.Reconnecting(watch=lambda lost: back.set() if lost is None else None)
    async with midstream.connect(running.ws_url, features=ALL, reconnecting=watching) as client:
        reply = await client.send("Weather?", tools=[WEATHER])
        await reply.wait()
        cut(running)
        await back.wait()
        await client.tool_result(reply.calls[0].call_id, content="Rain.", conversation_id="default")
        following = await reply.following()
        assert following is not None
        await following.wait()
        assert following.text == "Rain."


async def test_a_client_that_comes_later_goes_on_with_the_calls_of_another(running: InProcessService) -> None:
    running.engine.script([Thought("Hm."), "I ask.", Call("pay", '{"sum": 5}')])
    running.engine.script(["Not paid."])
    async with (
        midstream.connect(running.ws_url, client_id="ann", features=ALL) as first,
        midstream.connect(running.ws_url, client_id="ann", features=ALL) as second,
    ):
        await (await first.send("Pay.", tools=[PAY])).wait()
        reply = await second.rejoin()
        assert reply is not None
        assert (reply.text, reply.reasoning, reply.calls[0].needs_decision) == ("I ask.", "Hm.", True)
        await second.tool_decision(reply.calls[0].call_id, "deny", args_sha256=reply.calls[0].args_sha256)
        following = await reply.following()
        assert following is not None
        await following.wait()
        assert following.text == "Not paid."
        assert reply.calls[0].state == "denied"
        assert await second.rejoin() is None


async def test_a_reply_that_runs_is_rejoined_in_its_middle_whatever_waits_behind_it(tmp_path: Path) -> None:
    engine = ScriptedEngine(by_hand=True)
    engine.script([Thought("Hm."), "One", " two", " three."])
    async with (
        serving(tmp_path, engine) as running,
        midstream.connect(running.ws_url, client_id="ann", features=ALL) as first,
        midstream.connect(running.ws_url, client_id="ann", features=ALL) as second,
    ):
        started = await first.send("Count.")
        engine.step(2)
        assert await anext(aiter(started)) == "One"
        for content in ("And?", "So?"):
            await first.send(content, on_busy="enqueue")
        reply = await second.rejoin()
        assert reply is not None
        assert (reply.turn_id, reply.text, reply.reasoning) == (started.turn_id, "One", "Hm.")
        engine.step(4)
        assert "".join([text async for text in reply]) == " two three."
        assert reply.text == "One two three."
