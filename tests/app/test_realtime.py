"""`/v1/realtime` over real sockets and a real store: the same gate, limits, conversations and ends as on the native socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI
from openai.types.websocket_reconnection import ReconnectingEvent, ReconnectingOverrides
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosedError, InvalidStatus
from websockets.typing import Subprotocol

from connections.authentication.api_keys import digest_of
from connections.connection import BAD_FRAMES
from connections.realtime.asking import MAX_WAITING
from engine.messages import Message
from engine.scripted import ScriptedEngine
from tests.app.in_process import Frame, Running, Socket, serving

MODEL = "midstream-demo"
LONG = "word " * 20_000
LONGEST = {"max_output_tokens": 4000}
PACE_S = 0.01
"""The longest reply takes 40 seconds: whatever a test does meanwhile, it is still being written."""


@asynccontextmanager
async def session(running: Running, **query: str) -> AsyncIterator[Socket]:
    """A session whose first event was read."""
    async with connect(url_of(running, **query)) as opened:
        socket = Socket(opened)
        socket.ready = (await socket.next("session.created"))["session"]
        yield socket


def url_of(running: Running, **query: str) -> str:
    shown = "&".join(f"{name}={value}" for name, value in query.items())
    return f"{running.url.replace('http', 'ws')}/v1/realtime?{shown}"


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    async with serving(tmp_path, ScriptedEngine(pace_s=PACE_S)) as service:
        yield service


@pytest.fixture
async def socket(running: Running) -> AsyncIterator[Socket]:
    async with session(running) as socket:
        yield socket


async def create(socket: Socket, text: str, **more: Any) -> Frame:
    """Creates a user's item; gives what it is added by."""
    content = [{"type": "input_text", "text": text}]
    item = {"type": "message", "role": "user", "content": content} | more.pop("item", {})
    await socket.send(type="conversation.item.create", item=item, **more)
    added = await socket.next("conversation.item.added")
    done = await socket.next()
    assert done == {**added, "type": "conversation.item.done", "event_id": done["event_id"]}
    return added


async def turn(socket: Socket, text: str, **response: Any) -> list[Frame]:
    """Asks; gives all events of the reply."""
    await create(socket, text)
    await socket.send(type="response.create", response=response)
    return await socket.until("response.done")


async def begin(socket: Socket, running: Running) -> list[Frame]:
    """Starts a long reply; gives its events up to its first text."""
    running.engine.script(LONG)
    await create(socket, "Go on.")
    await socket.send(type="response.create", response=LONGEST)
    return await socket.until("response.output_text.delta")


def said(events: list[Frame]) -> str:
    return "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")


def prompts(engine: ScriptedEngine) -> list[tuple[Message, ...]]:
    return [request.messages for request in engine.requests]


async def test_a_reply_is_told_from_its_beginning_to_its_end(socket: Socket, running: Running) -> None:
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
    assert said(events) == events[6]["text"] == "Good day."
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


async def test_items_that_wait_are_one_message(socket: Socket, running: Running) -> None:
    await create(socket, "One?")
    await turn(socket, "And two?")
    await turn(socket, "Three?")
    assert prompts(running.engine)[1] == (
        Message("user", "One?\n\nAnd two?"),
        Message("assistant", "This reply was written before it was asked for."),
        Message("user", "Three?"),
    )


async def test_instructions_are_the_system_prompt(socket: Socket, running: Running) -> None:
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


async def test_instructions_for_one_reply_hold_for_that_alone(socket: Socket, running: Running) -> None:
    await turn(socket, "One?", instructions="Be loud.")
    await turn(socket, "Two?")
    assert [prompt[0].role for prompt in prompts(running.engine)] == ["system", "user"]


@pytest.mark.parametrize("named", [True, False])
async def test_a_cancel_ends_the_reply_and_keeps_what_was_seen(
    socket: Socket, running: Running, *, named: bool
) -> None:
    begun = await begin(socket, running)
    which = {"response_id": begun[0]["response"]["id"]} if named else {}
    await socket.send(type="response.cancel", **which)
    events = begun + await socket.until("response.done")
    done = events[-1]["response"]
    assert done["status_details"] == {"type": "cancelled", "reason": "client_cancelled"}
    item = done["output"][0]
    assert (item["status"], item["content"][0]["text"]) == ("incomplete", said(events))
    await socket.send(type="conversation.item.retrieve", item_id=item["id"])
    assert (await socket.next())["item"] == item
    await turn(socket, "Why?")
    assert prompts(running.engine)[1][1] == Message("assistant", said(events))


async def test_a_cancel_right_behind_its_reply_finds_it(socket: Socket, running: Running) -> None:
    running.engine.script(LONG)
    await create(socket, "Go on.")
    await socket.send(type="response.create")
    await socket.send(type="response.cancel")
    done = (await socket.until("response.done"))[-1]
    assert done["response"]["status"] == "cancelled"


async def test_where_nothing_runs_a_cancel_is_an_error(socket: Socket) -> None:
    for which in ({}, {"response_id": "resp_unknown"}):
        error = (await socket.ask(type="response.cancel", event_id="mine", **which))["error"]
        assert (error["code"], error["event_id"]) == ("response_cancel_not_active", "mine")
        assert error["message"].startswith("Cancellation failed")  # by this clients know it


async def test_one_reply_at_a_time(socket: Socket, running: Running) -> None:
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


async def test_what_waits_can_be_deleted(socket: Socket, running: Running) -> None:
    added = await create(socket, "Never mind.", item={"id": "mine"})
    assert added["item"]["id"] == "mine"
    deleted = await socket.ask(type="conversation.item.delete", item_id="mine")
    assert (deleted["type"], deleted["item_id"]) == ("conversation.item.deleted", "mine")
    await turn(socket, "Hello!")
    assert prompts(running.engine) == [(Message("user", "Hello!"),)]


async def test_the_newest_reply_can_be_deleted_and_its_question_waits_again(
    socket: Socket, running: Running
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
    ({"type": "conversation.item.truncate", "item_id": "i", "content_index": 0, "audio_end_ms": 5}, "item_id", "unsupported_content_type"),
    ({"type": "input_audio_buffer.append", "audio": "AAAA"}, "type", "unsupported_content_type"),
    ({"type": "conversation.item.create", "item": {"type": "function_call_output"}}, "item.type", "invalid_value"),
    ({"type": "conversation.item.create", "item": {"type": "message", "role": "system"}}, "item.role", "invalid_value"),
    ({"type": "conversation.item.create", "item": {"type": "message", "role": "user"}}, "item.content", "invalid_value"),
    ({"type": "conversation.item.retrieve", "item_id": "unknown"}, "item_id", "item_retrieve_invalid_item_id"),
    ({"type": "session.update", "session": {"tools": [{"type": "function"}]}}, "session.tools", "unsupported_parameter"),
    ({"type": "session.update", "session": {"temperature": 9}}, "session.temperature", "invalid_value"),
    ({"type": "session.update"}, None, "invalid_event"),
    ({"type": "session.update", "session": {"instructions": 5}}, "session.instructions", "invalid_event"),
    ({"type": "response.create"}, None, "no_item_to_answer"),
    ({"type": "response.create", "response": {"conversation": "none"}}, "response.conversation", "unsupported_parameter"),
    ({"type": "response.create", "response": {"input": []}}, "response.input", "unsupported_parameter"),
    ({"type": "no.such.event"}, "type", "invalid_event"),
]  # fmt: skip


async def test_a_refusal_names_its_event_and_its_field(socket: Socket) -> None:
    for number, (event, param, code) in enumerate(REFUSED):
        told = await socket.ask(event_id=f"mine_{number}", **event)
        error = {"type": "invalid_request_error", "code": code, "param": param, "event_id": f"mine_{number}"}
        assert told["type"] == "error", event
        assert {**told["error"], **error} == told["error"], event
    assert (await socket.ask(type="session.update", session={}))["type"] == "session.updated"


async def test_what_waits_has_a_bound(socket: Socket, running: Running) -> None:
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


async def test_a_client_that_leaves_stops_its_reply(running: Running) -> None:
    async with session(running) as socket:
        await begin(socket, running)
    while running.engine.statistics().running:  # noqa: ASYNC110 - an engine has no event for it
        await asyncio.sleep(0)
    assert running.engine.statistics().steps_after_cancel <= 1


async def test_conversations_are_their_owners(running: Running) -> None:
    async with session(running, conversation_id="ours", client_id="ann") as socket:
        await turn(socket, "One?")
    async with session(running, conversation_id="ours", client_id="bob") as stranger:
        assert (await create(stranger, "Hello!"))["previous_item_id"] is None


async def test_who_comes_back_is_told_what_is_there(running: Running) -> None:
    async with session(running, conversation_id="ours", client_id="ann") as socket:
        first = await turn(socket, "One?")
        second = await turn(socket, "Two?")
    replies = [events[-1]["response"]["output"][0]["id"] for events in (first, second)]
    async with session(running, conversation_id="ours", client_id="ann") as socket:
        added = [(await socket.until("conversation.item.done"))[0] for _ in range(4)]
        assert [event["item"]["content"][0]["text"] for event in added][::2] == ["One?", "Two?"]
        assert [event["item"]["id"] for event in added][1::2] == replies
        chain = [None, *(event["item"]["id"] for event in added[:-1])]
        assert [event["previous_item_id"] for event in added] == chain
    async with session(running, conversation_id="ours", client_id="ann", after=replies[0]) as socket:
        added = [(await socket.until("conversation.item.done"))[0] for _ in range(2)]
        assert added[1]["item"]["id"] == replies[1]
        await turn(socket, "Three?")
    assert [message.content for message in prompts(running.engine)[2]][::2] == ["One?", "Two?", "Three?"]


async def test_all_doors_see_one_conversation(running: Running) -> None:
    async with AsyncExitStack() as stack:
        native = await stack.enter_async_context(running.socket({"client_id": "ann"}))
        await native.send(type="send", client_msg_id="m1", conversation_id="ours", content="One?")
        await native.next("done")
        here = await stack.enter_async_context(session(running, conversation_id="ours", client_id="ann"))
        await here.until("conversation.item.done")
        await here.until("conversation.item.done")
        running.engine.script(LONG)
        await native.send(
            type="send",
            client_msg_id="m2",
            conversation_id="ours",
            content="Two?",
            params={"max_new_tokens": 4000},
        )
        message = await here.next("conversation.item.added")
        assert message["item"]["content"] == [{"type": "input_text", "text": "Two?"}]
        response = (await here.next("response.created"))["response"]
        await here.next("response.output_text.delta")
        there = await stack.enter_async_context(session(running, conversation_id="ours", client_id="ann"))
        late = await there.until("response.output_text.delta")  # it comes in the middle of the reply
        await here.send(type="response.cancel", response_id=response["id"])
        done = await native.next("done")
        ends = [(await one.next("response.done"))["response"] for one in (here, there)]
        texts = [end["output"][0]["content"][0]["text"] for end in ends]
        assert texts[0] == texts[1]
        assert texts[0].startswith(said(late))
        assert len(texts[0]) == done["chars"]


async def test_a_key_comes_in_by_a_header_or_by_a_subprotocol(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"ann:{digest_of('sk-ann')}\n")
    async with serving(tmp_path, api_keys=str(keys)) as running:
        for options in (
            {"additional_headers": {"Authorization": "Bearer sk-ann"}},
            {"subprotocols": [Subprotocol("realtime"), Subprotocol("openai-insecure-api-key.sk-ann")]},
        ):
            async with connect(url_of(running), **options) as opened:  # type: ignore[arg-type]
                assert (await Socket(opened).next())["type"] == "session.created"
                assert opened.subprotocol == ("realtime" if "subprotocols" in options else None)
        with pytest.raises(InvalidStatus) as refused:
            await connect(url_of(running))
        assert refused.value.response.status_code == 401
        assert json.loads(refused.value.response.body or b"")["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize(
    ("query", "status", "param"),
    [
        ({"model": "gpt-realtime"}, 404, "model"),
        ({"conversation_id": "a%20b"}, 400, "conversation_id"),
        ({"client_id": ""}, 400, "client_id"),
    ],
)
async def test_what_is_not_there_is_refused_at_the_door(
    running: Running, query: dict[str, str], status: int, param: str
) -> None:
    with pytest.raises(InvalidStatus) as refused:
        await connect(url_of(running, **query))
    assert refused.value.response.status_code == status
    assert json.loads(refused.value.response.body or b"")["error"]["param"] == param


async def test_a_page_of_another_origin_stays_outside(running: Running) -> None:
    with pytest.raises(InvalidStatus) as refused:
        await connect(url_of(running), additional_headers={"Origin": "https://elsewhere.example"})
    assert refused.value.response.status_code == 403


async def test_a_server_that_stops_ends_the_reply_and_asks_to_come_back(tmp_path: Path) -> None:
    engine = ScriptedEngine(pace_s=PACE_S)
    async with serving(tmp_path, engine) as running, session(running) as socket:
        await begin(socket, running)
        running.service.stop()
        done = (await socket.next("response.done"))["response"]
        assert (done["status"], done["status_details"]["error"]["type"]) == ("failed", "server_error")
        assert await socket.closed() == (1012, "The server stops; reconnect.")


async def test_messages_are_counted_as_on_every_door(tmp_path: Path) -> None:
    async with serving(tmp_path, messages_per_minute=1) as running, session(running) as socket:
        await turn(socket, "One?")
        await create(socket, "Two?")
        await socket.send(type="response.create", event_id="mine")
        error = (await socket.next("error"))["error"]
        assert (error["type"], error["code"], error["event_id"]) == (
            "rate_limit_error",
            "rate_limit_exceeded",
            "mine",
        )


async def test_a_client_has_so_many_connections(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, max_client_connections=1) as running,
        session(running, client_id="ann"),
        connect(url_of(running, client_id="ann")) as second,
    ):
        assert (await Socket(second).closed())[0] == 4429


async def test_a_key_that_is_revoked_ends_its_sessions(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"ann:{digest_of('sk-ann')}\n")
    async with serving(tmp_path, api_keys=str(keys)) as running:
        shown = {"Authorization": "Bearer sk-ann"}
        async with connect(url_of(running), additional_headers=shown) as opened:
            await Socket(opened).next("session.created")
            keys.write_text("")
            running.service._doorkeeper.reread()
            error = (await Socket(opened).next())["error"]
            assert (error["type"], error["code"]) == ("authentication_error", "unauthenticated")
            assert (await Socket(opened).closed())[0] == 4401


async def test_openais_client_comes_back_after_a_stop_and_not_after_a_refusal(tmp_path: Path) -> None:
    codes: list[int] = []

    def reconnecting(event: ReconnectingEvent) -> ReconnectingOverrides:
        codes.append(event.close_code)
        return {"abort": True}

    async with (
        serving(tmp_path, max_client_connections=1) as running,
        AsyncOpenAI(api_key="k", base_url=f"{running.url}/v1") as client,
        client.realtime.connect(model=MODEL, on_reconnecting=reconnecting) as connection,
    ):
        assert (await connection.recv()).type == "session.created"
        async with client.realtime.connect(model=MODEL, on_reconnecting=reconnecting) as second:
            with pytest.raises(ConnectionClosedError) as refused:
                await anext(aiter(second))
        assert refused.value.rcvd is not None
        assert (refused.value.rcvd.code, codes) == (4429, [])
        running.service.stop()
        with pytest.raises(ConnectionClosedError):
            await anext(aiter(connection))
        assert codes == [1012]


async def test_openais_client_works_unchanged(running: Running) -> None:
    """Two turns, a cancel, an error, and what is kept."""
    running.engine.script("Good day.")
    user: Any = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello!"}]}
    async with (
        AsyncOpenAI(api_key="k", base_url=f"{running.url}/v1") as client,
        client.realtime.connect(model=MODEL) as connection,
    ):
        await connection.session.update(session={"type": "realtime", "instructions": "Be brief."})
        await connection.conversation.item.create(item=user)
        await connection.response.create()
        text = ""
        async for event in connection:
            if event.type == "response.output_text.delta":
                text += event.delta
            if event.type == "response.done":
                break
        assert (text, event.response.status) == ("Good day.", "completed")
        running.engine.script(LONG)
        await connection.conversation.item.create(item=user)
        await connection.response.create(response={"max_output_tokens": 4000})
        seen = ""
        async for event in connection:
            if event.type == "response.output_text.delta":
                seen += event.delta
                if seen == event.delta:
                    await connection.response.cancel()
            if event.type == "response.done":
                break
        assert event.response.output is not None
        item_id = event.response.output[0].id
        assert (event.response.status, item_id is not None) == ("cancelled", True)
        await connection.conversation.item.retrieve(item_id=str(item_id))
        kept = await connection.recv()
        assert kept.type == "conversation.item.retrieved"
        assert kept.item.type == "message"
        assert kept.item.content[0].text == seen
        await connection.response.cancel(event_id="mine")
        refused = await connection.recv()
        assert refused.type == "error"
        assert refused.error.event_id == "mine"
