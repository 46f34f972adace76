"""Two services on one store, real models in both: turns of one are seen, stopped and kept by the other."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.chaos.store_server import store_server
from tests.e2e.websocket_client import (
    Frame,
    WebSocketClient,
    assert_no_hole,
    connect_client,
    has_text,
    is_end_of,
    text_of,
)
from tests.server_process import ServerProcess, serving

LONG = "Count from 1 to 500."
GREEDY = {"temperature": 0}


@pytest.fixture(scope="module")
def store_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with store_server(tmp_path_factory.mktemp("store")) as store:
        yield store.url


@pytest.fixture(scope="module")
def stable_replica(store_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The replica that stays."""
    with serving(tmp_path_factory.mktemp("there"), {"MIDSTREAM_REDIS_URL": store_url}) as replica:
        yield replica


@pytest.fixture(scope="module")
def replica(store_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The server behind `restartable_replica`."""
    with serving(tmp_path_factory.mktemp("here"), {"MIDSTREAM_REDIS_URL": store_url}) as replica:
        yield replica


@pytest.fixture
def restartable_replica(replica: ServerProcess) -> ServerProcess:
    """A replica that the test may stop and kill."""
    replica.bring_back()
    return replica


async def resumed(client: WebSocketClient, seen: list[Frame]) -> Frame:
    """Resume on another replica, after the last event that was seen."""
    reported = [frame for frame in seen if frame["type"] in ("accepted", "delta", "done")]
    epoch = next(frame["epoch"] for frame in reported if frame["type"] == "accepted")
    await client.put(type="resume", conversation_id="default", epoch=epoch, after_seq=reported[-1]["seq"])
    return await client.until("resumed")


async def follow_on_other_replica(
    stable_replica: ServerProcess, client_id: str, seen: list[Frame], turn_id: str
) -> Frame:
    """Read the end of a turn on the other replica; check that nothing is missing and the history agrees."""
    async with connect_client(stable_replica.ws_url, client_id) as again:
        await resumed(again, seen)
        done = await again.until(is_end_of(turn_id))
        events = [*seen, *again.seen]
        assert_no_hole(events)
        history = await again.history()
        assert history[1]["content"] == text_of(events, turn_id)
        _, after = await again.chat("Hello!")
        assert after["reason"] == "stop"
    return done


async def test_another_replicas_client_sees_a_reply_and_stops_it(
    restartable_replica: ServerProcess, stable_replica: ServerProcess, client_id: str
) -> None:
    async with (
        connect_client(restartable_replica.ws_url, client_id) as alice,
        connect_client(stable_replica.ws_url, client_id) as phone,
    ):
        accepted = await alice.send_message(LONG, params={**GREEDY, "chars_per_s": 200})  # it lasts
        await alice.until(has_text(accepted["turn_id"], 20))
        page = await phone.history()
        assert [message["status"] for message in page] == ["complete", "running"]
        await phone.until(has_text(accepted["turn_id"], 40))
        await phone.put(type="cancel", ref="stop")
        cancelled = await phone.until(lambda frame: frame.get("ref") == "stop")
        done = await alice.until(is_end_of(accepted["turn_id"]))
        seen_there = await phone.until(is_end_of(accepted["turn_id"]))
        history = await phone.history()
    assert (cancelled["type"], cancelled["turn_id"]) == ("cancelled", accepted["turn_id"])
    assert done["cancel"]["cause"] == "client"
    assert done["cancel"]["steps_after"] <= 1
    assert seen_there["text_sha256"] == done["text_sha256"]
    assert history[1]["content"] == text_of(alice.seen, accepted["turn_id"])


async def test_a_reply_that_was_cut_by_a_deploy_is_whole_on_the_other_replica(
    restartable_replica: ServerProcess, stable_replica: ServerProcess, client_id: str
) -> None:
    """SIGTERM: a warning, a second for running replies, an end that says so, and a close that asks to reconnect."""
    async with connect_client(restartable_replica.ws_url, client_id) as alice:
        lasting = {**GREEDY, "chars_per_s": 200}
        accepted = await alice.send_message(LONG, params=lasting, on_disconnect="continue")
        await alice.until(has_text(accepted["turn_id"], 20))
        assert restartable_replica.process is not None
        restartable_replica.process.send_signal(signal.SIGTERM)
        await alice.until("goaway")
        seen = alice.seen
        done = await alice.until(is_end_of(accepted["turn_id"]))
        await alice.socket.wait_closed()
    assert alice.socket.close_code == 1012
    assert restartable_replica.process.wait(30) == 0
    assert done["reason"] == "interrupted"
    before = [frame for frame in seen if frame is not done]
    assert (await follow_on_other_replica(stable_replica, client_id, before, accepted["turn_id"]))[
        "chars"
    ] == done["chars"]


async def test_a_dead_replicas_reply_is_ended_by_the_other_in_ten_seconds(
    restartable_replica: ServerProcess, stable_replica: ServerProcess, client_id: str
) -> None:
    async with connect_client(restartable_replica.ws_url, client_id) as alice:
        accepted = await alice.send_message(LONG, params=GREEDY)
        await alice.until(has_text(accepted["turn_id"], 20))
        restartable_replica.kill()
    done = await follow_on_other_replica(stable_replica, client_id, alice.seen, accepted["turn_id"])
    assert (done["reason"], done["error"]["code"]) == ("interrupted", "internal")
