"""`/v1/realtime` over real sockets and a real store: replies and items."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from connections.api.realtime.session import MAX_WAITING
from engine.messages import Message
from sessions.limits.bounds import BAD_FRAMES
from tests.app.in_process_service import Frame, InProcessService, Socket
from tests.app.realtime_client import LONG, LONGEST, begin, create, output_text, paced, prompts, session, turn


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


async def test_items_are_chained_as_the_history_is(socket: Socket) -> None:
    first = await create(socket, "One?")
    assert first["previous_item_id"] is None
    second = await create(socket, "And one?")
    await socket.send(type="response.create")
    reply = await socket.next("conversation.item.added")
    assert second["previous_item_id"] == first["item"]["id"]
    assert reply["previous_item_id"] == second["item"]["id"]
    await socket.next("response.done")
    assert (await create(socket, "Two?"))["previous_item_id"] == reply["item"]["id"]


async def test_items_that_wait_are_one_message(socket: Socket, running: InProcessService) -> None:
    await create(socket, "One?")
    await turn(socket, "And two?")
    await turn(socket, "Three?")
    assert prompts(running.engine)[1] == (
        Message("user", "One?\n\nAnd two?"),
        Message("assistant", "This reply was written before it was asked for."),
        Message("user", "Three?"),
    )


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


async def test_instructions_for_one_reply_hold_for_that_alone(
    socket: Socket, running: InProcessService
) -> None:
    await turn(socket, "One?", instructions="Be loud.")
    await turn(socket, "Two?")
    assert [prompt[0].role for prompt in prompts(running.engine)] == ["system", "user"]


@pytest.mark.parametrize("named", [True, False])
async def test_a_cancel_ends_the_reply_and_keeps_what_was_seen(
    socket: Socket, running: InProcessService, *, named: bool
) -> None:
    started = await begin(socket, running)
    which = {"response_id": started[0]["response"]["id"]} if named else {}
    await socket.send(type="response.cancel", **which)
    events = started + await socket.until("response.done")
    done = events[-1]["response"]
    assert done["status_details"] == {"type": "cancelled", "reason": "client_cancelled"}
    item = done["output"][0]
    assert (item["status"], item["content"][0]["text"]) == ("incomplete", output_text(events))
    await socket.send(type="conversation.item.retrieve", item_id=item["id"])
    assert (await socket.next())["item"] == item
    await turn(socket, "Why?")
    assert prompts(running.engine)[1][1] == Message("assistant", output_text(events))


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


async def test_where_nothing_runs_a_cancel_is_an_error(socket: Socket) -> None:
    for which in ({}, {"response_id": "resp_unknown"}):
        error = (await socket.ask(type="response.cancel", event_id="mine", **which))["error"]
        assert (error["code"], error["event_id"]) == ("response_cancel_not_active", "mine")
        assert error["message"].startswith("Cancellation failed")  # by this clients know it


async def test_one_reply_at_a_time(socket: Socket, running: InProcessService) -> None:
    await begin(socket, running)
    for text in (None, "And?"):
        if text is not None:
            await create(socket, text)
        await socket.send(type="response.create", event_id="mine")
        error = (await socket.next("error"))["error"]
        assert (error["code"], error["event_id"]) == ("conversation_already_has_active_response", "mine")
    await socket.send(type="response.cancel")
    await socket.next("response.done")
    await socket.send(type="response.create")
    await socket.next("response.done")
    assert prompts(running.engine)[1][-1] == Message("user", "And?")  # it was refused, so it waited on


async def test_what_waits_can_be_deleted(socket: Socket, running: InProcessService) -> None:
    added = await create(socket, "Never mind.", item={"id": "mine"})
    assert added["item"]["id"] == "mine"
    deleted = await socket.ask(type="conversation.item.delete", item_id="mine")
    assert (deleted["type"], deleted["item_id"]) == ("conversation.item.deleted", "mine")
    await turn(socket, "Hello!")
    assert prompts(running.engine) == [(Message("user", "Hello!"),)]


async def test_the_newest_reply_can_be_deleted_and_its_question_waits_again(
    socket: Socket, running: InProcessService
) -> None:
    await turn(socket, "One?")
    reply = (await turn(socket, "Two?"))[-1]["response"]["output"][0]["id"]
    await socket.send(type="conversation.item.delete", item_id=reply)
    await socket.send(type="response.create")
    deleted = await socket.next()
    assert (deleted["type"], deleted["item_id"]) == ("conversation.item.deleted", reply)
    again = await socket.until("response.done")
    assert again[2]["item"]["id"] != reply
    assert prompts(running.engine)[2] == prompts(running.engine)[1]


async def test_what_others_stand_behind_can_not_be_deleted(socket: Socket) -> None:
    events = await turn(socket, "One?")
    reply = events[-1]["response"]["output"][0]["id"]
    await turn(socket, "Two?")
    for item_id in (reply, events[2]["previous_item_id"], "unknown"):
        error = (await socket.ask(type="conversation.item.delete", item_id=item_id, event_id="mine"))["error"]
        assert (error["type"], error["event_id"]) == ("invalid_request_error", "mine")
    await socket.send(type="conversation.item.retrieve", item_id=reply)
    assert (await socket.next())["item"]["id"] == reply


REFUSED: list[tuple[Frame, str | None, str]] = [
    ({"type": "conversation.item.truncate", "item_id": "i", "content_index": 0, "audio_end_ms": 5}, "item_id", "item_truncate_invalid_item_id"),
    ({"type": "input_audio_buffer.append", "audio": "AAAA"}, "type", "unsupported_content_type"),
    ({"type": "conversation.item.create", "item": {"type": "function_call_output"}}, "item.call_id", "invalid_tool_call_id"),
    ({"type": "conversation.item.create", "item": {"type": "function_call"}}, "item.type", "invalid_value"),
    ({"type": "conversation.item.create", "item": {"type": "message", "role": "system"}}, "item.role", "invalid_value"),
    ({"type": "conversation.item.create", "item": {"type": "message", "role": "user"}}, "item.content", "invalid_value"),
    ({"type": "conversation.item.retrieve", "item_id": "unknown"}, "item_id", "item_retrieve_invalid_item_id"),
    ({"type": "session.update", "session": {"prompt": {"id": "p"}}}, "session.prompt", "unsupported_parameter"),
    ({"type": "session.update", "session": {"temperature": 9}}, "session.temperature", "invalid_value"),
    ({"type": "session.update"}, "session", "invalid_event"),
    ({"type": "session.update", "session": {"instructions": 5}}, "session.instructions", "invalid_event"),
    ({"type": "response.create"}, None, "no_item_to_answer"),
    ({"type": "response.create", "response": {"conversation": "none"}}, "response.conversation", "unsupported_parameter"),
    ({"type": "response.create", "response": {"input": []}}, "response.input", "unsupported_parameter"),
    ({"type": "no.such.event"}, "type", "invalid_event"),
]  # fmt: skip


async def test_a_refusal_names_its_event_and_its_field(socket: Socket) -> None:
    for number, (event, param, code) in enumerate(REFUSED):
        reported = await socket.ask(event_id=f"mine_{number}", **event)
        error = {"type": "invalid_request_error", "code": code, "param": param, "event_id": f"mine_{number}"}
        assert reported["type"] == "error", event
        assert {**reported["error"], **error} == reported["error"], event
    assert (await socket.ask(type="session.update", session={}))["type"] == "session.updated"


async def test_what_waits_has_a_bound(socket: Socket, running: InProcessService) -> None:
    for _ in range(MAX_WAITING):
        await create(socket, "?")
    content = [{"type": "input_text", "text": "?"}]
    item = {"type": "message", "role": "user", "content": content}
    error = (await socket.ask(type="conversation.item.create", item=item))["error"]
    assert error["code"] == "too_many_items"


async def test_who_speaks_another_language_is_sent_away(socket: Socket) -> None:
    for _ in range(BAD_FRAMES):
        await socket.opened.send("hello?")
    assert await socket.closed() == (1008, f"{BAD_FRAMES} bad frames in a minute.")
