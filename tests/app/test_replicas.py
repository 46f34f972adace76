"""Two replicas on one store, over real sockets: requests to one reach the other, which runs the turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.scripted import ScriptedEngine
from sessions.conversation.conversation import Conversation
from sessions.errors import StoreDown
from sessions.replicas.forwarder import Forwarder
from sessions.store.ownership import RunningTurn
from tests.app.in_process_service import Frame, InProcessService, Socket, serving

REPLY = "This reply was written before it was asked for."
ANN = {"client_id": "ann"}


@pytest.fixture
async def first_replica(tmp_path: Path, store_url: str) -> AsyncIterator[InProcessService]:
    """A replica whose engine the test steps."""
    engine = ScriptedEngine(by_hand=True, reply=REPLY)
    async with serving(tmp_path, engine, redis_url=store_url) as running:
        yield running


@pytest.fixture
async def second_replica(
    tmp_path: Path, store_url: str, first_replica: InProcessService
) -> AsyncIterator[InProcessService]:
    """Another replica on the same store."""
    async with serving(tmp_path, ScriptedEngine(by_hand=True, reply=REPLY), redis_url=store_url) as running:
        yield running


async def begin(socket: Socket, running: InProcessService, **fields: object) -> Frame:
    """Send a message; return once its reply has its first word."""
    await socket.send(**{"type": "send", "client_msg_id": "one", "content": "Hello?"} | fields)
    accepted = await socket.next("accepted")
    running.engine.step()
    await socket.next("delta")
    return accepted


def journalled(frames: list[Frame]) -> list[Frame]:
    return [frame for frame in frames if "seq" in frame]


@pytest.mark.parametrize("by", ["turn_id", "conversation_id"])
async def test_a_cancel_is_answered_before_the_end_that_it_decides(
    by: str, first_replica: InProcessService, second_replica: InProcessService
) -> None:
    async with first_replica.socket(ANN) as here, second_replica.socket(ANN) as there:
        accepted = await begin(here, first_replica)
        await there.ask(type="history")
        await there.send(type="cancel", ref="c", **{by: accepted[by]})
        kinds = [frame["type"] for frame in await there.until("done") if frame["type"] != "delta"]
        assert kinds == ["cancelled", "done"]
        done = await here.next("done")
        assert (done["turn_id"], done["cancel"]["cause"]) == (accepted["turn_id"], "client")
        again = await there.ask(type="cancel", turn_id=accepted["turn_id"], ref="c2")
        assert again == {
            "type": "cancelled",
            "ref": "c2",
            "turn_id": accepted["turn_id"],
            "already": True,
        }


async def test_a_cancel_behind_a_message_ends_what_runs_elsewhere_too(
    first_replica: InProcessService, second_replica: InProcessService
) -> None:
    """Even if that replica does not know the message yet, which ends the turn."""
    async with first_replica.socket(ANN) as here, second_replica.socket(ANN) as there:
        first = await begin(here, first_replica)
        await there.send(type="send", client_msg_id="two", content="And now?", on_busy="enqueue")
        await there.send(type="cancel", conversation_id="default")
        assert (await there.next("cancelled"))["already"] is False
        ends = [await here.next("done") for _ in range(2)]
        assert {done["reason"] for done in ends} == {"cancelled"}
        assert first["turn_id"] in {done["turn_id"] for done in ends}


async def store_down(forwarder: Forwarder, conversation: Conversation) -> str | None:
    raise StoreDown("The store does not answer.")


async def test_a_cancel_that_met_a_message_here_has_one_answer_though_nobody_knows_what_runs_elsewhere(
    first_replica: InProcessService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Forwarder, "runner_of", store_down)
    async with first_replica.socket(ANN) as here:
        await here.send(type="send", client_msg_id="one", content="Hello?")
        await here.send(type="cancel", conversation_id="default", ref="c")
        *kinds, end = [frame["type"] for frame in await here.until("done")]
        assert (sorted(kinds), end) == (["accepted", "cancelled"], "done")


async def test_a_cancel_of_messages_here_and_elsewhere_has_one_answer(
    first_replica: InProcessService, second_replica: InProcessService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error, if the other replica can't be reached."""
    requested, answered = asyncio.Event(), asyncio.Event()

    async def ask(forwarder: Forwarder, *_: object) -> None:
        requested.set()
        await answered.wait()
        raise StoreDown("The other replica does not answer.")

    async with first_replica.socket(ANN) as here, second_replica.socket(ANN) as there:
        await begin(here, first_replica)
        with monkeypatch.context() as patched:
            patched.setattr(Forwarder, "request", ask)
            await there.send(type="send", client_msg_id="two", content="And now?", on_busy="enqueue")
            await requested.wait()
        monkeypatch.setattr(Forwarder, "runner_of", store_down)
        await there.send(type="send", client_msg_id="three", content="And then?", on_busy="enqueue")
        error = await there.ask(type="cancel", conversation_id="default", ref="c")
        assert (error["type"], error["ref"]) == ("error", "c")
        answered.set()
        assert (await there.next("error"))["ref"] == "two"


@pytest.mark.parametrize("by", ["turn_id", "conversation_id"])
async def test_a_send_behind_a_cancel_is_never_busy(
    by: str, first_replica: InProcessService, second_replica: InProcessService
) -> None:
    async with first_replica.socket(ANN) as here, second_replica.socket(ANN) as there:
        accepted = await begin(here, first_replica)
        await there.send(type="cancel", **{by: accepted[by]})
        await there.send(type="send", client_msg_id="two", content="And now?")
        while (frame := await there.next()).get("ref") != "two":
            pass
        assert (frame["type"], frame["client_msg_id"]) == ("accepted", "two")
        assert (await here.next("done"))["turn_id"] == accepted["turn_id"]


async def test_a_send_waits_for_a_cancel_that_looks_for_its_turn(
    first_replica: InProcessService, second_replica: InProcessService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancel with the turn's id alone first has to find out where the turn runs."""
    ownership, found = second_replica.service._sessions.storage.ownership, asyncio.Event()
    find = ownership.find

    async def slowly(turn_id: str) -> RunningTurn | None:
        await found.wait()
        return await find(turn_id)

    monkeypatch.setattr(ownership, "find", slowly)
    async with first_replica.socket(ANN) as here, second_replica.socket(ANN) as there:
        accepted = await begin(here, first_replica)
        await there.send(type="cancel", turn_id=accepted["turn_id"])
        await there.send(type="send", client_msg_id="two", content="And now?")
        for _ in range(100):
            assert (await there.ask(type="ping"))["type"] == "pong"
        found.set()
        kinds = [frame["type"] for frame in await there.until("accepted") if frame["type"] != "delta"]
    assert kinds in (["cancelled", "accepted"], ["cancelled", "done", "accepted"])


async def test_a_rollback_removes_the_exchange_everywhere(
    first_replica: InProcessService, second_replica: InProcessService
) -> None:
    async with first_replica.socket(ANN) as here, second_replica.socket(ANN) as there:
        await begin(here, first_replica)
        await there.ask(type="history")
        await there.send(type="cancel", mode="rollback")
        for socket in (here, there):
            assert (await socket.next("done"))["removed"] is True
        assert (await there.ask(type="history"))["messages"] == []


async def test_where_the_reader_is_counts_from_abroad(
    first_replica: InProcessService, second_replica: InProcessService
) -> None:
    async with first_replica.socket(ANN) as here, second_replica.socket(ANN) as there:
        await begin(here, first_replica)
        await there.ask(type="history")
        await there.send(type="cancel", seen_off=2)
        assert (await here.next("done"))["chars"] == 2
        await there.next("done")
        assert (await there.ask(type="history"))["messages"][-1]["content"] == "Th"


async def test_a_message_waits_behind_a_reply_that_runs_elsewhere(
    first_replica: InProcessService, second_replica: InProcessService
) -> None:
    async with first_replica.socket(ANN) as here, second_replica.socket(ANN) as there:
        await begin(here, first_replica)
        await there.send(type="send", client_msg_id="two", content="And now?", on_busy="enqueue", ref="r")
        mine, theirs = await there.next("accepted"), await here.next("accepted")
        assert (mine["ref"], mine["queue_position"], "content" in mine) == ("r", 1, False)
        assert (theirs["content"], theirs["queue_position"], "ref" in theirs) == ("And now?", 1, False)
        ends: list[Frame] = []
        while len(ends) < 2:
            first_replica.engine.step()
            await here.send(type="ping")
            while (frame := await here.next())["type"] != "pong":
                ends += [frame] if frame["type"] == "done" else []
        assert [await there.next("done") for _ in range(2)] == ends
        assert not second_replica.engine.requests


@pytest.mark.parametrize("policy", ["interrupt", "rollback"])
async def test_a_message_from_abroad_ends_the_reply_first(
    policy: str, first_replica: InProcessService, second_replica: InProcessService
) -> None:
    async with first_replica.socket(ANN) as here, second_replica.socket(ANN) as there:
        await begin(here, first_replica)
        await there.ask(type="history")
        await there.send(type="send", client_msg_id="two", content="Wait!", on_busy=policy, ref="r")
        *_, done, accepted = journalled(await there.until("accepted"))
        assert (done["type"], done["cancel"]["cause"]) == ("done", policy)
        assert accepted["ref"] == "r"


async def test_a_deletion_is_told_on_both_sides(
    first_replica: InProcessService, second_replica: InProcessService
) -> None:
    """The running turn ends with it."""
    async with first_replica.socket(ANN) as here, second_replica.socket(ANN) as there:
        await begin(here, first_replica)
        await there.ask(type="history")
        await there.send(type="delete", conversation_id="default", ref="d")
        assert await there.next("deleted") == {"type": "deleted", "conversation_id": "default", "ref": "d"}
        assert await here.next("deleted") == {"type": "deleted", "conversation_id": "default"}
        assert (await here.ask(type="history"))["code"] == "not_found"
        assert (await there.ask(type="conversations"))["conversations"] == []
