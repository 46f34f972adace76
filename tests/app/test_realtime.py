"""`/v1/realtime` over real sockets and a real store: replies and items."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.messages import Message
from sessions.limits.bounds import BAD_FRAMES
from tests.app.in_process_service import InProcessService, Socket
from tests.app.realtime_client import LONG, LONGEST, create, output_text, paced, prompts, session, turn


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[InProcessService]:
    async with paced(tmp_path) as service:
        yield service


@pytest.fixture
async def socket(running: InProcessService) -> AsyncIterator[Socket]:
    async with session(running) as socket:
        yield socket


async def test_a_reply_is_told_from_its_beginning_to_its_end(
    socket: Socket, running: InProcessService
) -> None:
    running.engine.script("Good day.")
    running.engine.cached_tokens = 2
    events = await turn(socket, "Hello!", metadata={"topic": "test"}, max_output_tokens=20)
    assert [event["type"] for event in events] == [
        "response.created",
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "conversation.item.done",
        "response.output_item.done",
        "response.done",
    ]
    assert len({event["event_id"] for event in events}) == len(events)
    assert output_text(events) == events[6]["text"] == "Good day."
    created, done = events[0]["response"], events[-1]["response"]
    assert (created["status"], created["output"], created["usage"]) == ("in_progress", [], None)
    assert (created["metadata"], created["max_output_tokens"]) == ({"topic": "test"}, 20)
    assert created["conversation_id"] == socket.ready["conversation_id"]
    assert (done["status"], done["status_details"]) == ("completed", {"type": "completed"})
    assert [item["content"] for item in done["output"]] == [[{"type": "output_text", "text": "Good day."}]]
    assert (done["usage"]["input_tokens"], done["usage"]["output_tokens"]) == (5, 3)
    assert done["usage"]["input_token_details"]["cached_tokens"] == 2
    assert {event.get("response_id", created["id"]) for event in events} == {created["id"]}


async def test_instructions_are_the_system_prompt(socket: Socket, running: InProcessService) -> None:
    session = {"type": "realtime", "instructions": "Be brief.", "tracing": "auto", "audio": {"input": {}}}
    await socket.send(type="session.update", session={**session, "output_modalities": ["audio"]})
    updated = (await socket.next("session.updated"))["session"]
    assert (updated["instructions"], updated["output_modalities"]) == ("Be brief.", ["text"])
    await turn(socket, "One?")
    await turn(socket, "Two?", instructions="Be loud.", temperature=0)
    await turn(socket, "Three?")
    assert [prompt[0] for prompt in prompts(running.engine)] == [
        Message("system", "Be brief."),
        Message("system", "Be loud."),
        Message("system", "Be brief."),
    ]
    assert [request.params.do_sample for request in running.engine.requests] == [None, False, None]


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
