"""The AG-UI endpoint, as its clients see it over HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from connections.api.agui.endpoint import StoredThreads
from engine.scripted import Call, ScriptedEngine, Thought
from sessions.errors import StoreDown
from sessions.events import Deleted
from sessions.tools.function_tools import tool
from tests.app.in_process_service import InProcessService, serving
from tests.jwt_signing import KEY
from tests.sessions.chat_driver import eventually

RUN = "/v1/ag-ui"
HELLO: dict[str, Any] = {
    "protocolVersion": "1.0",
    "threadId": "t",
    "runId": "r",
    "state": {},
    "messages": [{"id": "1", "role": "user", "content": "Hello!"}],
    "tools": [],
    "context": [],
    "forwardedProps": {},
}


def client_of(running: InProcessService) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=running.url)


@pytest.fixture
async def client(running: InProcessService) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(running) as made:
        yield made


async def test_a_run_is_told_as_events(client: httpx.AsyncClient, running: InProcessService) -> None:
    running.engine.script([Thought("Hm."), "Let me", " look.", Call("look", '{"at":1}', "c_1")])
    answer = await client.post(RUN, json=HELLO | {"tools": [{"name": "look", "description": "Looks."}]})
    reported = [json.loads(one.removeprefix("data: ")) for one in answer.text.split("\n\n") if one]
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert [one["type"] for one in reported if "delta" not in one] == [
        "RUN_STARTED",
        "REASONING_START",
        "REASONING_MESSAGE_START",
        "REASONING_MESSAGE_END",
        "REASONING_END",
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_END",
        "TOOL_CALL_START",
        "TOOL_CALL_END",
        "RUN_FINISHED",
    ]
    assert reported[-1]["outcome"] == {"type": "success", "pendingToolCallIds": ["c_1"]}
    assert reported[-1]["usage"][0]["model"] == "midstream-demo"


def noon(zone: str) -> str:
    """Tells the time."""
    return f"It is noon in {zone}."


@tool(approval="always")
def pay(to: str) -> str:
    """Pays."""
    PAID.append(to)
    return f"{to} has it."


PAID: list[str] = []
TOOLS = ("tests.app.test_agui:noon", "tests.app.test_agui:pay")
PAY = Call("pay", '{"to":"Ann"}')


class Thread:
    """A stored thread. Each run sends what a client would: the user's messages, and names of the server's tools."""

    def __init__(self, running: InProcessService, key: str = KEY, thread_id: str = "t") -> None:
        self._running = running
        self._key = key
        self._id = thread_id

    async def run(self, *messages: Any, **more: Any) -> list[Any]:
        """Return the events of a run; a refusal is one of them."""
        input_messages = [
            {"id": "1", "role": "user", "content": one} if isinstance(one, str) else one for one in messages
        ]
        body = (
            HELLO
            | {"threadId": self._id, "messages": input_messages, "forwardedProps": {"server_tools": ["*"]}}
            | more
        )
        async with client_of(self._running) as client:
            answer = await client.post(RUN, json=body, headers={"Authorization": f"Bearer {self._key}"})
        if not answer.headers["content-type"].startswith("text/event-stream"):
            return [answer.json()]
        return [json.loads(one.removeprefix("data: ")) for one in answer.text.split("\n\n") if one]


def resume_payload(run: list[Any], **payload: Any) -> list[Any]:
    """Return a `resume` that answers all interrupts of a run."""
    requested = run[-1]["outcome"]["interrupts"]
    return [{"interruptId": one["id"], "status": "resolved", "payload": payload} for one in requested]


@pytest.fixture
async def kept(tmp_path: Path) -> AsyncIterator[InProcessService]:
    PAID.clear()
    async with serving(tmp_path, tools=TOOLS) as running:
        yield running


async def test_a_servers_tool_runs_within_a_run(kept: InProcessService) -> None:
    kept.engine.script(["Let me see.", Call("noon", '{"zone":"Bern"}')])
    kept.engine.script("Noon.")
    reported = await Thread(kept).run("What time is it?")
    assert [one["type"] for one in reported if "TEXT" not in one["type"]] == [
        "RUN_STARTED", "TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END", "TOOL_CALL_RESULT", "RUN_FINISHED",
    ]  # fmt: skip
    result = next(one for one in reported if one["type"] == "TOOL_CALL_RESULT")
    assert (result["content"], result["role"]) == ("It is noon in Bern.", "tool")
    assert reported[-1]["outcome"] == {"type": "success"}
    await Thread(kept).run("What time is it?", "Thanks.")
    roles = [message.role for message in kept.engine.requests[-1].messages]
    assert roles == ["user", "assistant", "tool", "assistant", "user"]


async def test_an_approval_interrupts_a_run_and_the_next_one_resumes_it(kept: InProcessService) -> None:
    kept.engine.script(["I pay.", PAY])
    kept.engine.script("Paid.")
    thread = Thread(kept)
    requested = await thread.run("Pay Ann.")
    (interrupt,) = requested[-1]["outcome"]["interrupts"]
    call = next(one for one in requested if one["type"] == "TOOL_CALL_START")
    assert (interrupt["reason"], interrupt["toolCallId"]) == ("tool_call", call["toolCallId"])
    assert interrupt["responseSchema"]["required"] == ["approved"]
    assert interrupt["expiresAt"] > "2020"
    (open_,) = await thread.run("Never mind.")
    assert (open_["type"], open_["code"]) == ("RUN_ERROR", "interrupts_open")
    (odd,) = await thread.run("Pay Ann.", resume=resume_payload(requested, allowed=True))
    assert "`resume[0].payload` must be an object" in odd["message"]
    (stranger,) = await Thread(kept, KEY[::-1]).run(resume=resume_payload(requested, approved=True))
    assert stranger["code"] == "interrupt_not_found"
    forged = resume_payload(requested, approved=True)
    forged[0]["interruptId"] = forged[0]["interruptId"][:-64] + "0" * 64
    (other,) = await thread.run("Pay Ann.", resume=forged)
    assert other["code"] == "interrupts_open"
    assert PAID == []
    reported = await thread.run(
        "Pay Ann.", resume=resume_payload(requested, approved=True), forwardedProps={}
    )
    assert [one["type"] for one in reported] == [
        "RUN_STARTED", "TOOL_CALL_RESULT", "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END",
        "RUN_FINISHED",
    ]  # fmt: skip
    assert (reported[1]["toolCallId"], reported[1]["content"], PAID) == (
        call["toolCallId"],
        "Ann has it.",
        ["Ann"],
    )
    (again,) = await thread.run("Pay Ann.", resume=resume_payload(requested, approved=True))
    assert (again["code"], PAID) == ("interrupt_answered", ["Ann"])


async def test_an_interrupt_is_denied_given_up_or_answered_with_other_arguments(
    kept: InProcessService,
) -> None:
    for name, decision in (
        ("denied", {"approved": False}),
        ("edited", {"approved": True, "editedArgs": {"to": "Bo"}}),
    ):
        kept.engine.script([PAY])
        thread = Thread(kept, thread_id=name)
        reported = await thread.run("Pay.", resume=resume_payload(await thread.run("Pay."), **decision))
        assert reported[-1]["outcome"] == {"type": "success"}
    assert PAID == ["Bo"]
    kept.engine.script([PAY])
    thread = Thread(kept, thread_id="given up")
    (refused,) = await thread.run("Pay.")
    assert "`threadId` must have 1 to 128 letters" in refused["message"]
    thread = Thread(kept, thread_id="given-up")
    (entry,) = resume_payload(await thread.run("Pay."))
    reported = await thread.run("Pay.", resume=[{"interruptId": entry["interruptId"], "status": "cancelled"}])
    assert "did not allow" in reported[1]["content"]
    assert PAID == ["Bo"]


async def test_a_clients_own_tool_waits_beside_the_servers(kept: InProcessService) -> None:
    kept.engine.script([Call("look"), PAY])
    kept.engine.script("Done.")
    thread = Thread(kept)
    mine = {"tools": [{"name": "look", "description": "Looks."}]}
    requested = await thread.run("Look and pay.", **mine)
    look = next(one for one in requested if one.get("toolCallName") == "look")
    (half,) = await thread.run("Look and pay.", resume=resume_payload(requested, approved=True), **mine)
    assert half["code"] == "interrupts_open"
    result = {"id": "2", "role": "tool", "toolCallId": look["toolCallId"], "content": "A tree."}
    reported = await thread.run(
        "Look and pay.", result, resume=resume_payload(requested, approved=True), **mine
    )
    assert reported[-1]["outcome"] == {"type": "success"}
    assert [one.content for one in kept.engine.requests[-1].messages[-2:]] == ["A tree.", "Ann has it."]


async def test_where_one_answer_is_refused_none_is_taken(kept: InProcessService) -> None:
    kept.engine.script([PAY, Call("pay", '{"to":"Bo"}')])
    kept.engine.script("Paid.")
    thread = Thread(kept)
    requested = await thread.run("Pay both.")
    first, second = resume_payload(requested, approved=True)
    long = second | {"payload": {"approved": True, "editedArgs": {"to": "x" * 1_100_000}}}
    (refused,) = await thread.run("Pay both.", resume=[first, long])
    assert (refused["code"], PAID) == ("content_too_long", [])
    (twice,) = await thread.run("Pay both.", resume=[first, second, first])
    assert "`resume[2]` answers a call that an earlier entry answers." in twice["message"]
    reported = await thread.run("Pay both.", resume=[first, second])
    assert (reported[-1]["outcome"], sorted(PAID)) == ({"type": "success"}, ["Ann", "Bo"])


async def test_wishes_count_where_the_tools_are_the_servers_alone(kept: InProcessService) -> None:
    for choice in ("required", "none"):
        kept.engine.script("Well.")
        props = {"server_tools": ["*"], "tool_choice": choice}
        await Thread(kept, thread_id=choice).run("Time?", forwardedProps=props)
        spec = kept.engine.requests[-1].spec
        assert (spec.tool_choice, [one.name for one in spec.tools]) == (choice, ["noon", "pay"])
    props = {"server_tools": ["*"], "parallel_tool_calls": False}
    (refused,) = await Thread(kept).run("Time?", forwardedProps=props)
    assert "`forwardedProps.parallel_tool_calls` must not be false" in refused["message"]
    parts = [{"type": "text", "text": "Look."}, {"type": "document", "source": {"type": "url", "value": "x"}}]
    body = HELLO | {
        "messages": [{"id": "1", "role": "user", "content": parts}],
        "forwardedProps": {"server_tools": ["*"]},
    }
    async with client_of(kept) as client:
        answer = await client.post(RUN, json=body, headers={"Authorization": f"Bearer {KEY}"})
    assert (answer.status_code, answer.headers["x-midstream-ignored"]) == (200, "messages")


async def test_nothing_is_left_of_a_run_that_fails_once_its_turn_was_accepted(
    kept: InProcessService, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.engine.script([PAY])
    kept.engine.script("Paid.")
    thread, shown = Thread(kept), StoredThreads._recent_messages
    requested = await thread.run("Pay Ann.")
    looks = iter((shown, shown))

    async def failing(self: StoredThreads, *place: Any) -> Any:
        if (look := next(looks, None)) is None:
            raise StoreDown("The store is away.")
        return await look(self, *place)

    monkeypatch.setattr(StoredThreads, "_recent_messages", failing)
    next(looks)  # the run names the server's tools: nobody looks whether its thread is kept
    (refused,) = await thread.run("Pay Ann.", resume=resume_payload(requested, approved=True))
    assert refused["type"] == "RUN_ERROR"
    await eventually(lambda: kept.service._sessions.statistics().conversations == 0)


async def test_a_thread_that_is_deleted_ends_its_run_in_an_error(tmp_path: Path) -> None:
    engine = ScriptedEngine(by_hand=True)
    headers = {"Authorization": f"Bearer {KEY}"}
    body = HELLO | {"forwardedProps": {"server_tools": ["*"]}}
    async with (
        serving(tmp_path, engine, tools=TOOLS) as running,
        client_of(running) as client,
        client.stream("POST", RUN, json=body, headers=headers) as answer,
    ):
        lines = answer.aiter_lines()
        await anext(lines)
        (conversation,) = running.service._sessions.parts.directory.with_turns()
        conversation.publish(Deleted(conversation_id="t"))
        rest = [line async for line in lines if line.startswith("data: ")]
    last = json.loads(rest[-1].removeprefix("data: "))
    assert (last["type"], last["code"]) == ("RUN_ERROR", "not_found")


async def test_the_servers_tools_are_for_who_comes_back(kept: InProcessService) -> None:
    async with client_of(kept) as client:
        answer = await client.post(RUN, json=HELLO | {"forwardedProps": {"server_tools": ["*"]}})
        assert (answer.status_code, "API key is required" in answer.text) == (400, True)
    (odd,) = await Thread(kept).run("Hi.", forwardedProps={"server_tools": ["rob"]})
    assert "`forwardedProps.server_tools[0]` names an unknown tool of this server." in odd["message"]
    assert kept.engine.requests == []


async def test_a_run_that_fails_says_why(client: httpx.AsyncClient, running: InProcessService) -> None:
    running.engine.fail()
    answer = await client.post(RUN, json=HELLO)
    assert (answer.status_code, answer.json()["type"]) == (503, "RUN_ERROR")
    assert answer.json()["code"] == "engine_unavailable"
    assert answer.headers["retry-after"]


async def test_what_is_passed_over_is_named(client: httpx.AsyncClient) -> None:
    answer = await client.post(RUN, json=HELLO | {"resume": [{"interruptId": "i", "status": "resolved"}]})
    assert (answer.status_code, answer.headers["x-midstream-ignored"]) == (200, "resume")


async def test_pages_that_may_not_ask_are_told_so_in_this_shape(client: httpx.AsyncClient) -> None:
    answer = await client.post(RUN, json=HELLO, headers={"Origin": "https://evil.example"})
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
