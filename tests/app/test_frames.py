"""The answer to each client frame, over a real socket and a real store."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from connections.native.handler import FrameHandler
from tests.app.in_process_service import Frame, InProcessService, Socket, serving

LONG = "word " * 20_000


async def send_and_wait(socket: Socket, content: str = "Hello.", **fields: Any) -> list[Frame]:
    """Send a message; return all frames up to its end."""
    await socket.send(
        type="send", client_msg_id=fields.pop("client_msg_id", content), content=content, **fields
    )
    return await socket.until("done")


async def begin(running: InProcessService, socket: Socket, **fields: Any) -> Frame:
    """Send a message whose reply is long; return `accepted` once text comes."""
    running.engine._pace_s = 0.002
    running.engine.script(LONG)
    await socket.send(**{"type": "send", "client_msg_id": "long", "content": "Go on."} | fields)
    accepted = await socket.next("accepted")
    await socket.next("delta")
    return accepted


async def test_a_send_is_answered_by_its_turn(running: InProcessService) -> None:
    running.engine.script(["Good ", "day", "."])
    async with running.socket() as socket:
        accepted, *deltas, done = await send_and_wait(socket, ref="r1", client_msg_id="m1")
    assert (accepted["ref"], accepted["client_msg_id"], accepted["seq"]) == ("r1", "m1", 1)
    assert (accepted["conversation_id"], accepted["parent_id"]) == ("default", None)
    assert "".join(delta["text"] for delta in deltas) == "Good day."
    assert [delta["first_seq"] for delta in deltas] == [2, *(delta["seq"] + 1 for delta in deltas[:-1])]
    assert (done["reason"], done["chars"], done["saved"]) == ("stop", 9, True)
    assert done["text_sha256"] == hashlib.sha256(b"Good day.").hexdigest()
    assert set(done["usage"]) >= {"prompt_tokens", "cached_tokens", "generated_tokens", "sent_tokens"}


async def test_parameters_reach_the_engine(running: InProcessService) -> None:
    async with running.socket() as socket:
        await send_and_wait(
            socket, params={"max_new_tokens": 3, "temperature": 0, "stop": ["x"], "system": "Be brief."}
        )
    (request,) = running.engine.requests
    assert (request.params.max_new_tokens, request.params.do_sample) == (3, False)
    assert request.params.stop == ("x",)
    assert request.messages[0].content == "Be brief."


async def test_a_cancel_ends_the_turn_and_the_next_message_is_answered(running: InProcessService) -> None:
    async with running.socket() as socket:
        accepted = await begin(running, socket)
        await socket.send(type="cancel", ref="c1", seen_off=3)
        cancelled = await socket.next("cancelled")
        assert cancelled == {
            "type": "cancelled",
            "ref": "c1",
            "turn_id": accepted["turn_id"],
            "already": False,
        }
        after = await socket.until("done")
        assert [frame["type"] for frame in after] == ["done"]
        assert (after[0]["reason"], after[0]["chars"]) == ("cancelled", 3)
        assert after[0]["cancel"]["cause"] == "client"
        assert after[0]["cancel"]["steps_after"] <= 1
        again = await socket.ask(type="cancel", turn_id=accepted["turn_id"])
        assert (again["type"], again["already"]) == ("cancelled", True)
        assert (await send_and_wait(socket, "And now?"))[-1]["reason"] == "stop"


async def test_a_cancel_where_nothing_runs_is_no_error(running: InProcessService) -> None:
    async with running.socket() as socket:
        assert await socket.ask(type="cancel") == {"type": "cancelled", "turn_id": None, "already": True}


async def test_a_send_behind_a_cancel_is_never_busy(running: InProcessService) -> None:
    async with running.socket() as socket:
        await begin(running, socket)
        await socket.send(type="send", client_msg_id="m2", content="Too early.")
        assert (await socket.next("error"))["code"] == "busy"
        await socket.send(type="cancel")
        await socket.send(type="send", client_msg_id="m3", content="In time.")
        kinds = [frame["type"] for frame in await socket.until("accepted") if frame["type"] != "delta"]
    assert kinds == ["cancelled", "done", "accepted"]


async def test_a_rollback_takes_the_exchange_back_while_it_runs_and_after(running: InProcessService) -> None:
    async with running.socket() as socket:
        await begin(running, socket)
        await socket.send(type="cancel", mode="rollback")
        assert (await socket.next("done"))["removed"] is True
        accepted, *_ = await send_and_wait(socket)
        await socket.send(type="cancel", mode="rollback", turn_id=accepted["turn_id"])
        assert (await socket.next("cancelled"))["already"] is True
        assert (await socket.next("removed"))["turn_id"] == accepted["turn_id"]
        assert (await socket.ask(type="history"))["messages"] == []


async def test_a_rollback_finds_the_conversation_of_its_turn(running: InProcessService) -> None:
    async with running.socket() as socket:
        await send_and_wait(socket, conversation_id="other")
        accepted, *_ = await send_and_wait(socket, conversation_id="third")
        await socket.send(type="cancel", mode="rollback", turn_id=accepted["turn_id"])
        removed = await socket.next("removed")
        assert (removed["turn_id"], removed["conversation_id"]) == (accepted["turn_id"], "third")
        assert (await socket.ask(type="history", conversation_id="third"))["messages"] == []
        assert len((await socket.ask(type="history", conversation_id="other"))["messages"]) == 2


async def test_an_interrupt_ends_the_running_turn_first(running: InProcessService) -> None:
    async with running.socket() as socket:
        await begin(running, socket)
        await socket.send(type="send", client_msg_id="m2", content="Wait!", on_busy="interrupt")
        done = await socket.next("done")
        assert (done["reason"], done["cancel"]["cause"]) == ("cancelled", "interrupt")
        assert (await socket.next("accepted"))["client_msg_id"] == "m2"


async def test_a_disconnect_cancels_the_turn(running: InProcessService) -> None:
    """A client that leaves no longer costs anything."""
    async with running.socket({"client_id": "ann"}) as socket:
        accepted = await begin(running, socket)
    async with running.socket({"client_id": "ann"}) as socket:
        await socket.send(type="history")
        while (page := await socket.next("history"))["messages"][-1]["status"] == "running":
            await socket.send(type="history")
        assert page["messages"][-1]["turn_id"] == accepted["turn_id"]
        assert page["messages"][-1]["status"] == "cancelled"


async def test_history_pages_go_back_to_the_beginning(running: InProcessService) -> None:
    async with running.socket() as socket:
        for number in range(3):
            await send_and_wait(socket, f"Message {number}.")
        newest = await socket.ask(type="history", limit=2, ref="h1")
        assert (newest["ref"], newest["has_more"], newest["conversation_id"]) == ("h1", True, "default")
        assert [message["role"] for message in newest["messages"]] == ["user", "assistant"]
        assert newest["messages"][0]["content"] == "Message 2."
        assert newest["messages"][0]["siblings"] == [newest["messages"][0]["message_id"]]
        older = await socket.ask(type="history", before=newest["messages"][0]["message_id"])
        assert [message["content"] for message in older["messages"]][::2] == ["Message 0.", "Message 1."]
        assert older["has_more"] is False


async def test_conversations_are_listed_and_deleted(running: InProcessService) -> None:
    async with running.socket() as socket, running.socket({"client_id": "other"}) as other:
        await send_and_wait(socket, "About trees.", conversation_id="trees")
        await send_and_wait(socket, "About birds.", conversation_id="birds")
        page = await socket.ask(type="conversations", limit=1, ref="l1")
        assert (page["ref"], page["has_more"]) == ("l1", True)
        assert [row["title"] for row in page["conversations"]] == ["About birds."]
        rest = await socket.ask(type="conversations", before="birds")
        assert [row["conversation_id"] for row in rest["conversations"]] == ["trees"]
        assert (await other.ask(type="conversations"))["conversations"] == []
        assert (await other.ask(type="delete", conversation_id="trees"))["code"] == "not_found"
        deleted = await socket.ask(type="delete", conversation_id="trees", ref="d1")
        assert deleted == {"type": "deleted", "conversation_id": "trees", "ref": "d1"}
        assert (await socket.ask(type="history", conversation_id="trees"))["code"] == "not_found"


async def test_an_edit_and_another_reply_stand_beside_the_old_ones(running: InProcessService) -> None:
    async with running.socket() as socket:
        accepted, *_, done = await send_and_wait(socket)
        same = {"message_id": done["message_id"], "client_msg_id": "r"}
        await socket.send(type="regenerate", **same)
        again, *_, new = await socket.until("done")
        assert (again["ref"], again["message_id"]) == ("r", accepted["message_id"])
        await socket.send(
            type="edit", message_id=accepted["message_id"], content="Bye.", client_msg_id="e", ref="r2"
        )
        edited, *_ = await socket.until("done")
        assert (edited["ref"], edited["parent_id"]) == ("r2", None)
        refused = await socket.ask(type="regenerate", **same | {"message_id": new["message_id"]})
        assert refused["code"] == "conflict"
        page = await socket.ask(type="history", leaf=done["message_id"], ref="h")
    question, answer = page["messages"]
    assert (page["ref"], answer["message_id"]) == ("h", done["message_id"])
    assert question["siblings"] == [accepted["message_id"], edited["message_id"]]
    assert answer["siblings"] == [done["message_id"], new["message_id"]]


async def test_another_branch_is_shown_to_the_other_devices(running: InProcessService) -> None:
    async with running.socket({"client_id": "ann"}) as one, running.socket({"client_id": "ann"}) as two:
        *_, done = await send_and_wait(one)
        await one.send(type="regenerate", message_id=done["message_id"], client_msg_id="r")
        await one.until("done")
        before = await two.ask(type="history", ref="h")
        mine = await one.ask(type="history", leaf=done["message_id"])
        theirs = await two.next()
    assert (theirs["type"], theirs.get("ref")) == ("history", None)
    assert theirs == mine
    assert before["messages"][-1]["siblings"] == theirs["messages"][-1]["siblings"]
    assert before["messages"][-1]["message_id"] != theirs["messages"][-1]["message_id"]


async def test_a_conversation_is_renamed(running: InProcessService) -> None:
    async with running.socket() as socket:
        await send_and_wait(socket, "About trees.")
        renamed = await socket.ask(type="rename", conversation_id="default", title=" Oaks \n", ref="n")
        assert (renamed["type"], renamed["ref"], renamed["has_more"]) == ("conversations", "n", False)
        assert [row["title"] for row in renamed["conversations"]] == ["Oaks"]


async def test_a_reply_at_a_readers_pace_is_stopped_where_it_was_told(running: InProcessService) -> None:
    """Even though the engine finished it long ago."""
    running.engine.script("word " * 100)
    async with running.socket() as socket:
        await socket.send(
            type="send",
            client_msg_id="m",
            content="Go on.",
            params={"chars_per_s": 20, "max_new_tokens": 200},
        )
        await socket.next("accepted")
        reported = ""
        while len(reported) < 6:
            reported += (await socket.next("delta"))["text"]
        await socket.send(type="cancel", seen_off=5)
        done = (await socket.until("done"))[-1]
        assert (done["reason"], done["chars"]) == ("cancelled", 5)
        assert len(reported) < 100
        page = await socket.ask(type="history")
    assert page["messages"][-1]["content"] == "word "


async def test_messages_are_found_by_their_words(running: InProcessService) -> None:
    async with running.socket() as socket:
        *_, done = await send_and_wait(socket, "About trees.", conversation_id="forest")
        found = await socket.ask(type="search", query=" TREES ", ref="s")
        (hit,) = found.pop("hits")
        assert found == {"type": "found", "ref": "s"}
        assert (hit["conversation_id"], hit["title"], hit["messages"]) == ("forest", "About trees.", 2)
        assert (hit["role"], hit["snippet"], hit["at"], hit["chars"]) == ("user", "About trees.", 6, 5)
        assert hit["message_id"] != done["message_id"]
        assert (await socket.ask(type="search", query="oaks"))["hits"] == []
    async with running.socket() as other:
        assert (await other.ask(type="search", query="trees"))["hits"] == []


async def test_a_ping_comes_back(running: InProcessService) -> None:
    async with running.socket() as socket:
        for t in (1763640000123, 2**53 + 1, "t", 0.5):
            assert await socket.ask(type="ping", t=t, ref="r") == {"type": "pong", "t": t, "ref": "r"}
        assert await socket.ask(type="ping") == {"type": "pong"}


SEND = {"type": "send", "client_msg_id": "m", "content": "x"}


@pytest.mark.parametrize(
    ("frame", "code", "named"),
    [
        ({"type": "hello"}, "bad_frame", "type"),
        ({"type": "sing"}, "bad_frame", "type"),
        ({**SEND, "content": ""}, "bad_frame", "content"),
        ({**SEND, "content": 7}, "bad_frame", "content"),
        ({**SEND, "content": "a\0"}, "bad_frame", "content"),
        ({**SEND, "content": "\ud800"}, "bad_frame", "content"),
        ({**SEND, "content": "word " * 5_000}, "context_overflow", "tokens"),
        ({**SEND, "params": {"temperature": -1}}, "bad_params", "params.temperature"),
        ({**SEND, "params": {"chars_per_s": 1}}, "bad_params", "params.chars_per_s"),
        ({**SEND, "params": {"max_new_tokens": 0}}, "bad_params", "params.max_new_tokens"),
        ({**SEND, "params": {"max_new_tokens": -2}}, "bad_params", "params.max_new_tokens"),
        ({**SEND, "parent_id": "msg_unknown"}, "not_found", "parent_id"),
        ({"type": "search", "query": " "}, "bad_params", "query"),
        ({"type": "search", "query": "x" * 201}, "bad_frame", "query"),
        ({"type": "search", "query": "x", "before": "there"}, "bad_params", "before"),
        ({"type": "history", "conversation_id": "nobodys"}, "not_found", "nobodys"),
        ({"type": "history", "leaf": "msg_unknown"}, "not_found", "default"),
        ({"type": "rename", "conversation_id": "nobodys", "title": "x"}, "not_found", "nobodys"),
        ({"type": "rename", "conversation_id": "c", "title": " "}, "bad_params", "title"),
        ({"type": "rename", "conversation_id": "c", "title": ""}, "bad_frame", "title"),
        ({"type": "rename", "conversation_id": "c", "title": "x" * 201}, "bad_frame", "title"),
        ({"type": "edit", "message_id": "m", "client_msg_id": "m", "content": ""}, "bad_frame", "content"),
        (
            {"type": "regenerate", "message_id": "m", "client_msg_id": "m", "conversation_id": "c"},
            "not_found",
            "message_id",
        ),
        ({"type": "continue", "message_id": "m", "client_msg_id": "m"}, "not_found", "message_id"),
        ({"type": "conversations", "before": "nobodys"}, "not_found", "before"),
    ],
)
async def test_bad_input_is_told_to_its_sender_alone(
    frame: Frame, code: str, named: str, running: InProcessService
) -> None:
    async with running.socket() as reader, running.socket() as sender:
        await begin(running, reader)
        refused = await sender.ask(**frame, ref="r1")
        assert (refused["type"], refused["code"], refused["ref"]) == ("error", code, "r1")
        assert named in refused["message"]
        assert (await sender.ask(type="ping"))["type"] == "pong"
        assert (await reader.next())["type"] == "delta"


@pytest.mark.parametrize("message", [b"\x00\x01", "no json", "[" * 5_000 + "]" * 5_000])
async def test_what_is_no_frame_is_answered_and_the_connection_stays(
    message: str | bytes, running: InProcessService
) -> None:
    async with running.socket() as socket:
        await socket.opened.send(message)
        assert (await socket.next())["code"] == "bad_frame"
        assert (await socket.ask(type="ping"))["type"] == "pong"


async def test_twenty_bad_frames_close(running: InProcessService) -> None:
    async with running.socket() as socket:
        for _ in range(20):
            await socket.opened.send("no json")
        assert await socket.closed() == (1008, "20 bad frames in a minute.")


async def test_a_frame_too_large_closes_with_a_reason(running: InProcessService) -> None:
    async with running.socket() as socket, running.socket() as other:
        await socket.opened.send("x" * 65_537)
        code, reason = await socket.closed()
        assert (code, "65536" in reason, "POST /v1/attachments" in reason) == (1009, True, True)
        assert (await other.ask(type="ping"))["type"] == "pong"


async def test_a_frame_of_the_largest_size_is_read(running: InProcessService) -> None:
    async with running.socket() as socket:
        frame = json.dumps({"type": "ping", "t": ""})
        await socket.opened.send(frame.replace('""', f'"{"x" * (65_536 - len(frame))}"'))
        assert (await socket.next())["type"] == "pong"


async def test_a_reader_that_stops_reading_is_let_go_and_nobody_else_notices(
    running: InProcessService,
) -> None:
    """Its memory is bounded, and its socket is not kept until it reads again."""
    running.engine.script(["x" * 50_000] * 400)
    sockets = running.service._server.server_state.connections
    tight = await running.small_buffer_socket()
    async with running.socket() as other, running.socket(sock=tight, max_queue=1) as stalled:
        await stalled.send(type="send", client_msg_id="m", content="Much, please.")
        while len(sockets) == 2:
            assert (await other.ask(type="ping"))["type"] == "pong"
        assert (await stalled.closed())[0] in (1006, 1013)  # there may be no room to say why


@pytest.mark.parametrize("unread", [0, 600])
async def test_a_peer_that_answers_no_ping_is_let_go(unread: int, running: InProcessService) -> None:
    """Even if unread bytes are in the way of the close. `unread`: those bytes, in KiB."""
    config = running.service._server.config
    config.ws_ping_interval, config.ws_ping_timeout = 0.1, 0.3
    running.engine.script(["x" * 1024] * unread)
    async with running.socket(
        sock=await running.small_buffer_socket(), max_queue=1, ping_interval=None
    ) as silent:
        await silent.send(type="send", client_msg_id="m", content="Much, please.")
        for _ in range(20):
            await silent.send(type="ping")  # their answers fill the client's buffers
        await running.service._lifecycle._manager.emptied()
        assert (await silent.closed())[0] == (1006 if unread else 1011)


async def test_a_defect_of_a_connection_closes_it_alone(
    running: InProcessService, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise LookupError("a secret of the service")

    async with running.socket() as other:
        with monkeypatch.context() as patched:
            patched.setattr(FrameHandler, "__init__", broken)
            async with connect(running.ws_url) as opened:
                await opened.send('{"type":"hello"}')
                assert await Socket(opened).closed() == (1011, "An internal error; reconnect.")
        assert (await other.ask(type="ping"))["type"] == "pong"


async def test_connections_of_a_client_see_the_same_events(running: InProcessService) -> None:
    async with running.socket({"client_id": "ann"}) as one, running.socket({"client_id": "ann"}) as two:
        await send_and_wait(one)
        await two.ask(type="history")
        mine, theirs = await asyncio.gather(send_and_wait(one, "For both."), two.until("done"))
    assert theirs[0]["content"] == "For both."
    assert "ref" not in theirs[0]
    assert "content" not in mine[0]
    assert mine[-1] == theirs[-1]


@pytest.mark.parametrize(
    "frame", [SEND, {"type": "edit", "message_id": "m", "client_msg_id": "m"}], ids=["send", "edit"]
)
async def test_an_operator_may_bound_a_message(frame: Frame, tmp_path: Path) -> None:
    async with serving(tmp_path, max_content_chars=100) as running, running.socket() as socket:
        assert (await socket.ask(**frame | {"content": "x" * 101}))["code"] == "content_too_long"
        assert (await socket.ask(**frame | {"content": "x" * 100})).get("code") != "content_too_long"


async def test_a_length_beyond_the_window_is_the_windows(running: InProcessService) -> None:
    async with running.socket() as socket:
        for number, length in enumerate((10**9, -1)):
            params = {"max_new_tokens": length}
            await socket.send(type="send", client_msg_id=f"m{number}", content="Hi!", params=params)
            assert (await socket.until("done"))[-1]["reason"] == "stop"
    requested = [request.params.max_new_tokens for request in running.engine.requests]
    assert requested == [4096, None]
