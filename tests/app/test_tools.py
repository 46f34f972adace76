"""Tools and reasoning over real sockets: clients that name the features get the frames, and open calls outlive the service."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.scripted import Call, ScriptedEngine, Thought
from sessions.tools.tool_registry import Outcome
from tests.app.in_process_service import InProcessService, Socket, serving
from tests.e2e.websocket_client import Frame

ALL = {"features": ["reasoning", "tools"]}
WEATHER = {
    "name": "weather",
    "description": "Tells the weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
PAY = {"name": "pay", "approval": "always"}
BERN = Call("weather", '{"city": "Bern"}')


async def send_with_tools(socket: Socket, content: str = "Weather?", **more: Any) -> Frame:
    await socket.send(type="send", client_msg_id=content, content=content, **({"tools": [WEATHER]} | more))
    return await socket.next()


async def test_a_readers_pace_holds_for_thoughts_as_for_text(running: InProcessService) -> None:
    """A stop keeps the part of them that was sent."""
    running.engine.script([Thought("hmm " * 100), "So."])
    async with running.socket(ALL) as socket:
        await send_with_tools(socket, params={"chars_per_s": 20})
        thought = ""
        while len(thought) < 6:
            thought += (await socket.next("reasoning"))["text"]
        await socket.send(type="cancel")
        done = (await socket.until("done"))[-1]
        page = await socket.ask(type="history")
    assert (done["reason"], done["chars"]) == ("cancelled", 0)
    assert len(thought) < 100
    assert page["messages"][-1]["reasoning"].startswith(thought)


async def test_who_is_told_no_thoughts_does_not_wait_for_them(running: InProcessService) -> None:
    running.engine.script([Thought("hmm " * 5_000), "So."])
    async with running.socket({"features": ["tools"]}) as socket:
        await send_with_tools(socket, params={"chars_per_s": 20})
        assert (await socket.next("delta"))["text"].startswith("So")


async def test_calls_of_the_servers_tools_are_metrics(tmp_path: Path) -> None:
    """The frames: `tests/transcripts/native/features.yaml`."""
    async with serving(tmp_path, tools=("tests.app.server_tools:noon",)) as running:
        running.engine.script([Call("noon", '{"zone": "Bern"}')])
        running.engine.script("Noon.")
        async with running.socket(ALL) as socket:
            await send_with_tools(socket, tools=[{"name": "noon", "where": "server"}])
            for _ in range(2):
                await socket.until("done")
        metrics = (await running.get("/metrics"))[2].splitlines()
    assert {
        "midstream_tool_calls_started_total 1.0",
        'midstream_tool_calls_total{outcome="done"} 1.0',
        'midstream_tool_calls_total{outcome="cancelled"} 0.0',
        "midstream_tool_calls_running 0.0",
    } <= set(metrics)
    assert sum(line.startswith("midstream_tool_") for line in metrics) == 2 + 2 * len(Outcome)


async def test_open_calls_outlive_the_service(tmp_path: Path) -> None:
    """The client resumes behind the events that it saw, with the approval and the result."""
    engine = ScriptedEngine()
    engine.script(["I look.", BERN, Call("pay", '{"sum": 5}')])
    async with serving(tmp_path, engine) as running, running.socket(ALL | {"client_id": "ann"}) as socket:
        seen = [await send_with_tools(socket, tools=[WEATHER, PAY], on_disconnect="continue")]
        seen += await socket.until("done")
    engine = ScriptedEngine()
    engine.script("Paid.")
    async with serving(tmp_path, engine) as running, running.socket(ALL | {"client_id": "ann"}) as socket:
        await socket.send(
            type="resume", conversation_id="default", epoch=seen[0]["epoch"], after_seq=seen[-1]["seq"]
        )
        assert (await socket.next("resumed"))["replayed"] == 0
        weather, pay = (frame for frame in seen if frame["type"] == "tool_call")
        await socket.send(type="tool_result", call_id=weather["call_id"], content="Rain.")
        await socket.next("tool_ack")
        await socket.send(
            type="tool_decision", call_id=pay["call_id"], args_sha256=pay["args_sha256"], decision="deny"
        )
        reported = await socket.until("done")
        assert reported[-1]["reason"] == "stop"
        await socket.send(type="history")
        messages = (await socket.next("history"))["messages"]
    assert [call["state"] for call in messages[1]["calls"]] == ["done", "denied"]
    assert messages[2]["content"] == "Paid."
