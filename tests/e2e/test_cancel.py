"""A stop works wherever the turn is: promises 3, 4, 5 and 13. For a turn in the queue see test_status.py."""

from __future__ import annotations

import asyncio
import urllib.request

from tests.e2e.websocket_client import (
    Frame,
    WebSocketClient,
    assert_no_hole,
    connect_client,
    has_text,
    is_end_of,
    text_of,
)
from tests.server_process import ServerProcess

LONG = "Count from 1 to 300."
GREEDY = {"temperature": 0}


async def stop(client: WebSocketClient, turn_id: str, **fields: object) -> tuple[Frame, Frame]:
    """Cancel; return `cancelled` and `done`."""
    await client.put(type="cancel", turn_id=turn_id, ref="stop", **fields)
    cancelled = await client.until("cancelled")
    return cancelled, await client.until(is_end_of(turn_id))


def assert_stopped(done: Frame, cause: str = "client") -> None:
    """A cancelled turn says by whom, and that the engine stopped at once."""
    assert done["reason"] == "cancelled"
    assert done["cancel"]["cause"] == cause
    assert done["cancel"]["steps_after"] <= 1


async def test_between_tokens(server: ServerProcess, client_id: str) -> None:
    """The history keeps exactly the text that was received, and the next turn goes on from there."""
    async with connect_client(server.ws_url, client_id) as alice:
        accepted = await alice.send_message(LONG, params=GREEDY)
        await alice.until(has_text(accepted["turn_id"], 40))
        cancelled, done = await stop(alice, accepted["turn_id"])
        history = await alice.history()
        _, after = await alice.chat("What is 2 plus 3?")

    assert cancelled == {"type": "cancelled", "ref": "stop", "turn_id": accepted["turn_id"], "already": False}
    assert_stopped(done)
    assert history[-1]["content"] == text_of(alice.seen, accepted["turn_id"])
    assert history[-1]["status"] == "cancelled"
    assert after["reason"] == "stop"
    assert_no_hole(alice.seen)


async def test_history_ends_where_the_reader_stopped(server: ServerProcess, client_id: str) -> None:
    """`seen_off` counts code points; text that was sent but not seen is not kept."""
    async with connect_client(server.ws_url, client_id) as alice:
        accepted = await alice.send_message(LONG, params=GREEDY)
        await alice.until(has_text(accepted["turn_id"], 40))
        _, done = await stop(alice, accepted["turn_id"], seen_off=12)
        history = await alice.history()

    assert done["chars"] == 12
    assert history[-1]["content"] == "1, 2, 3, 4, "
    assert done["usage"]["wasted_tokens"] > 0


async def test_in_the_first_moment(server: ServerProcess, client_id: str) -> None:
    """A cancel directly after its message finds it, even before it is accepted."""
    async with connect_client(server.ws_url, client_id) as alice:
        await alice.put(type="send", client_msg_id="m", content=LONG)
        await alice.put(type="cancel")
        done = await alice.until("done")

    assert_stopped(done)
    assert done["chars"] == 0
    assert done["usage"]["generated_tokens"] <= 1


async def test_in_prefill(server: ServerProcess, client_id: str) -> None:
    """A long prompt is computed in chunks, and cancels are read between them."""
    async with connect_client(server.ws_url, client_id) as alice:
        accepted = await alice.send_message("repeat " * 3000)
        _, done = await stop(alice, accepted["turn_id"])

    assert_stopped(done)
    assert done["usage"]["generated_tokens"] == 0


async def test_a_message_behind_a_cancel_is_never_busy(server: ServerProcess, client_id: str) -> None:
    """The client need not wait for the end of the turn it cancelled."""
    async with connect_client(server.ws_url, client_id) as alice:
        first = await alice.send_message(LONG)
        await alice.until(has_text(first["turn_id"]))
        await alice.put(type="cancel")
        second = await alice.send_message("What is 2 plus 3?")
        done = await alice.until(is_end_of(second["turn_id"]))

    assert done["reason"] == "stop"
    kinds = [
        (frame["type"], frame["turn_id"]) for frame in alice.seen if frame["type"] in ("accepted", "done")
    ]
    assert kinds[1:3] == [("done", first["turn_id"]), ("accepted", second["turn_id"])]
    assert_no_hole(alice.seen)


async def test_a_client_that_leaves_stops_costing_gpu_time(server: ServerProcess, client_id: str) -> None:
    """The reply ends where the connection did, and the history says so."""
    async with connect_client(server.ws_url, client_id) as alice:
        accepted = await alice.send_message(LONG, params=GREEDY)
        await alice.until(has_text(accepted["turn_id"], 20))
    async with connect_client(server.ws_url, client_id) as again:
        history = await again.history()
        if history[-1]["status"] == "running":
            await again.until(is_end_of(accepted["turn_id"]))
            history = await again.history()

    assert history[-1]["status"] == "cancelled"
    assert history[-1]["content"].startswith("1, 2, 3, ")
    assert len(history[-1]["content"]) < 600
    assert 'midstream_cancels_total{cause="disconnect"}' in await metrics(server)


async def metrics(server: ServerProcess) -> str:
    """Return the text of `/metrics`."""
    with await asyncio.to_thread(urllib.request.urlopen, f"{server.url}/metrics") as answer:
        return str(answer.read().decode())
