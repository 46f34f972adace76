"""What the service is for, in one test: two sockets chat, both stop their generations, another process reads the history."""

from __future__ import annotations

import asyncio
from pathlib import Path

from connections.manager import ConnectionManager
from tests.chaos import gateway
from tests.chaos.store_server import store_server
from tests.e2e.websocket_client import connect_client, has_text, is_end_of
from tests.server_process import serving

LONG = "Count from 1 to 500."


async def test_two_sockets_chat_and_stop_and_a_second_process_reads_the_history(tmp_path: Path) -> None:
    assert ConnectionManager.__doc__
    (second := tmp_path / "second").mkdir()
    with (
        store_server(tmp_path / "store") as store,
        serving(tmp_path, {"MIDSTREAM_REDIS_URL": store.url}) as one,
    ):
        async with connect_client(one.ws_url, "ann") as ann, connect_client(one.ws_url, "ben") as ben:
            turns = [(await client.send_message(LONG))["turn_id"] for client in (ann, ben)]
            await asyncio.gather(*(c.until(has_text(t, 20)) for c, t in zip((ann, ben), turns, strict=True)))
            await ann.put(type="cancel", turn_id=turns[0])
            done = await ann.until(is_end_of(turns[0]))
        assert (done["cancel"]["cause"], done["cancel"]["steps_after"] <= 1) == ("client", True)
        reading = gateway.command(gateway.Script())
        with serving(second, {"MIDSTREAM_REDIS_URL": store.url}, command=reading) as two:
            for client_id in ("ann", "ben"):  # ben's socket closed while his reply was being generated
                async with connect_client(two.ws_url, client_id) as client:
                    question, reply = await client.history()
                    if reply["status"] == "running":
                        await client.until("done")
                        question, reply = await client.history()
                assert (question["content"], reply["status"]) == (LONG, "cancelled")
                assert reply["content"].startswith("1, 2, 3, ")
                assert len(reply["content"]) < len(", ".join(map(str, range(1, 501))))
