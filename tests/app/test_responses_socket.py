"""The WebSocket of the Responses endpoint: one response after the other, several in lanes, and stops within one step."""

from __future__ import annotations

from pathlib import Path

from openai import AsyncOpenAI

from engine.scripted import ScriptedEngine
from tests.app.in_process_service import InProcessService, serving
from tests.app.responses_client import ResponsesSocket, responses_socket
from tests.jwt_signing import KEY


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


async def wait_for_requests(
    talk: ResponsesSocket, engine: ScriptedEngine, running: InProcessService, requests: int = 1
) -> None:
    """Returns once the engine has been asked."""
    while len(engine.requests) < requests:
        await running.get("/healthz")
    assert talk.opened.close_code is None
