"""A reply that was cut goes on, at every endpoint that shows it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import midstream
from tests.app.in_process_service import Frame, InProcessService, Socket, serving
from tests.app.realtime_client import create, session

LIMIT = {"max_new_tokens": 2}


async def cut(running: InProcessService, socket: Socket, **fields: object) -> Frame:
    """Make a reply that ends by its length; return `done`."""
    running.engine.script("One two three four")
    await socket.send(type="send", client_msg_id="m", content="Count!", params=LIMIT, **fields)
    return (await socket.until("done"))[-1]


async def test_what_can_not_go_on_is_refused_to_its_sender_alone(running: InProcessService) -> None:
    async with running.socket() as socket:
        first = await cut(running, socket)
        same = {"type": "continue", "message_id": first["message_id"]}
        refused = await socket.ask(**same, client_msg_id="f", params={"format": {"type": "json_object"}})
        assert (refused["code"], refused["ref"]) == ("bad_params", "f")
        assert "format" in refused["message"]
        refused = await socket.ask(**same | {"message_id": "msg_none"}, client_msg_id="n")
        assert refused["code"] == "not_found"
        running.engine.script(" three four")
        await socket.send(**same, client_msg_id="c")
        await socket.until("done")
        refused = await socket.ask(**same, client_msg_id="d")
        assert (refused["code"], "is complete" in refused["message"]) == ("conflict", True)


async def test_an_engine_that_can_not_go_on_is_known_before_and_says_so(running: InProcessService) -> None:
    facts = running.engine.facts
    assert facts is not None
    running.engine._life.loaded(msgspec.structs.replace(facts, features=("tools",)))
    running.engine._facts = msgspec.structs.replace(facts, features=("tools",))
    async with running.socket() as socket:
        assert "continue" not in socket.ready["models"][0]["features"]
        first = await cut(running, socket)
        refused = await socket.ask(type="continue", message_id=first["message_id"], client_msg_id="c")
    assert (refused["code"], "`continue`" in refused["message"]) == ("bad_params", True)


async def test_the_python_client_gives_what_comes_behind_the_text(running: InProcessService) -> None:
    async with midstream.connect(running.ws_url) as client:
        running.engine.script("One two three four")
        first = await client.send("Count!", params=LIMIT)
        done = await first.wait()
        running.engine.script(" three four")
        more = await client.continue_reply(done["message_id"])
        assert [text async for text in more]
        assert (more.off, more.text) == (7, " three four")
        assert more.done is not None
        assert more.done["chars"] == 18
        history = await client.history()
    assert history[-1]["content"] == first.text + more.text


async def test_the_python_client_stops_it_where_it_was_seen(running: InProcessService) -> None:
    running.engine._pace_s = 0.002
    async with midstream.connect(running.ws_url) as client:
        running.engine.script("One two three four")
        done = await (await client.send("Count!", params=LIMIT)).wait()
        running.engine.script(" more" * 1000)
        more = await client.continue_reply(done["message_id"])
        async for _ in more:
            await more.cancel()
        history = await client.history()
    assert more.done is not None
    assert more.done["reason"] == "cancelled"
    assert history[-1]["content"] == "One two" + more.text


@pytest.mark.parametrize("rolls_back", [False, True])
async def test_a_realtime_session_is_told_another_item_that_begins_with_the_text(
    tmp_path: Path, *, rolls_back: bool
) -> None:
    async with (
        serving(tmp_path) as running,
        session(running, conversation_id="ours", client_id="ann") as here,
        running.socket({"client_id": "ann"}) as native,
    ):
        await create(here, "Count!")
        running.engine.script("One two three four")
        await here.send(type="response.create", response={"max_output_tokens": 2})
        first = (await here.next("response.done"))["response"]["output"][0]["id"]
        page = await native.ask(type="history", conversation_id="ours")
        running.engine.script(" three four")
        requested = {
            "conversation_id": "ours",
            "client_msg_id": "c",
            "message_id": page["messages"][1]["message_id"],
        }
        await native.send(type="continue", **requested)
        gone = await here.next("conversation.item.deleted")
        whole = (await here.next("response.done"))["response"]["output"][0]
        assert gone["item_id"] == first != whole["id"]
        assert whole["content"][0]["text"] == "One two three four"
        if rolls_back:
            turn = (await native.until("done"))[-1]["turn_id"]
            await native.send(type="cancel", turn_id=turn, mode="rollback", conversation_id="ours")
            assert (await here.next("conversation.item.deleted"))["item_id"] == whole["id"]
            back = await here.next("conversation.item.done")
            assert (back["item"]["id"], back["item"]["content"][0]["text"]) == (first, "One two")
