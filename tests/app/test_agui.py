"""AG-UI behavior that no transcript (`tests/transcripts/ag-ui`) covers: options of stored threads, and failures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from connections.api.agui.endpoint import StoredThreads
from engine.scripted import Call, ScriptedEngine
from sessions.errors import StoreDown
from sessions.events import Deleted
from tests.app.in_process_service import InProcessService, serving
from tests.jwt_signing import KEY
from tests.sessions.chat_driver import eventually

TOOLS = ("tests.app.server_tools:noon", "tests.app.server_tools:pay")


HEADERS = {"Authorization": f"Bearer {KEY}"}


def body(thread_id: str, **more: Any) -> dict[str, Any]:
    """Return the body of a run of a stored thread."""
    message = {"id": "1", "role": "user", "content": "Hello!"}
    run = {
        "threadId": thread_id,
        "runId": "r",
        "state": {},
        "messages": [message],
        "tools": [],
        "context": [],
    }
    return run | {"forwardedProps": {"server_tools": ["*"]}} | more


async def run(running: InProcessService, thread_id: str, **more: Any) -> httpx.Response:
    return await running.request("POST", "/v1/ag-ui", KEY, json=body(thread_id, **more))


async def test_wishes_count_where_the_tools_are_the_servers_alone(tmp_path: Path) -> None:
    async with serving(tmp_path, tools=TOOLS) as running:
        for choice in ("required", "none"):
            running.engine.script("Well.")
            await run(running, choice, forwardedProps={"server_tools": ["*"], "tool_choice": choice})
            spec = running.engine.requests[-1].spec
            assert (spec.tool_choice, [one.name for one in spec.tools]) == (choice, ["noon", "pay"])


async def test_nothing_is_left_of_a_run_that_fails_once_its_turn_was_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path, tools=TOOLS) as running:
        running.engine.script([Call("pay", '{"to":"Ann"}')])
        running.engine.script("Paid.")
        *_, last = (await run(running, "t")).text.strip().split("\n\n")
        (interrupt,) = json.loads(last.removeprefix("data: "))["outcome"]["interrupts"]
        looks = iter((StoredThreads._recent_messages,))  # before the answer is taken

        async def failing(self: StoredThreads, *place: Any) -> Any:
            if (look := next(looks, None)) is None:
                raise StoreDown("The store is away.")
            return await look(self, *place)

        monkeypatch.setattr(StoredThreads, "_recent_messages", failing)
        answer = {"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True}}
        assert (await run(running, "t", resume=[answer])).json()["type"] == "RUN_ERROR"
        await eventually(lambda: running.service._sessions.statistics().conversations == 0)


async def test_a_thread_that_is_deleted_ends_its_run_in_an_error(tmp_path: Path) -> None:
    """The turn has not ended, so there is no `done`."""
    async with (
        serving(tmp_path, ScriptedEngine(by_hand=True), tools=TOOLS) as running,
        httpx.AsyncClient(base_url=running.url, headers=HEADERS) as client,
        client.stream("POST", "/v1/ag-ui", json=body("t")) as answer,
    ):
        lines = answer.aiter_lines()
        await anext(lines)
        (conversation,) = running.service._sessions.directory.with_turns()
        conversation.publish(Deleted(conversation_id="t"))
        *_, last = [line async for line in lines if line.startswith("data: ")]
    error = json.loads(last.removeprefix("data: "))
    assert (error["type"], error["code"]) == ("RUN_ERROR", "not_found")


async def test_a_run_that_fails_says_why(running: InProcessService) -> None:
    await running.get("/readyz")
    running.engine.fail()
    answer = await run(running, "t", forwardedProps={})
    assert (answer.status_code, answer.json()["type"]) == (503, "RUN_ERROR")
    assert answer.json()["code"] == "engine_unavailable"
    assert answer.headers["retry-after"]
