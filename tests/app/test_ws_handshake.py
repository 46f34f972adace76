"""How a connection begins, and how it is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from connections.native import server_info
from tests.app.in_process_service import InProcessService, Socket, serving


async def test_a_client_without_an_id_is_given_one_that_nobody_guesses(running: InProcessService) -> None:
    async with running.socket() as one, running.socket() as other:
        assert len(bytes.fromhex(one.ready["client_id"])) == 16
        assert one.ready["client_id"] != other.ready["client_id"]
        assert one.ready["connection_id"] != other.ready["connection_id"]


@pytest.mark.parametrize("first", ["no json", b"binary", "[]"])
async def test_a_first_frame_that_is_none_is_refused(first: str | bytes, running: InProcessService) -> None:
    async with connect(running.ws_url) as opened:
        await opened.send(first)
        assert json.loads(await opened.recv())["code"] == "unauthenticated"
        assert (await Socket(opened).closed())[0] == 4401


async def test_a_client_that_leaves_before_its_hello_is_no_trouble(running: InProcessService) -> None:
    async with connect(running.ws_url):
        pass
    async with running.socket() as socket:
        assert (await socket.ask(type="ping"))["type"] == "pong"


async def test_pages_of_this_origin_and_of_listed_ones_may_connect(tmp_path: Path) -> None:
    async with serving(tmp_path, allowed_origins=("https://intranet.example.org",)) as running:
        for origin in (running.url, "https://intranet.example.org"):
            async with running.socket(additional_headers={"Origin": origin}) as socket:
                assert socket.ready


@pytest.mark.parametrize(
    ("offered", "selected"),
    [
        (["midstream.v1"], "midstream.v1"),
        (["other", "midstream.v1"], "midstream.v1"),
        (["other"], None),
        ([], None),
    ],
)
async def test_the_subprotocol_is_selected_where_it_is_offered(
    offered: list[str], selected: str | None, running: InProcessService
) -> None:
    options: dict[str, Any] = {"subprotocols": [Subprotocol(name) for name in offered]} if offered else {}
    async with running.socket(**options) as socket:
        assert socket.opened.subprotocol == selected


async def test_the_server_has_so_many_connections_and_no_more(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, max_connections=1) as running,
        running.socket(),
        connect(running.ws_url) as second,
    ):
        await second.send('{"type":"hello"}')
        assert (await Socket(second).closed())[0] == 1013
        assert 'midstream_refusals_total{reason="full"} 1.0' in (await running.get("/metrics"))[2]


async def test_a_client_is_told_to_come_back_when_the_model_takes_too_long(
    running: InProcessService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_info, "LOADING_S", 0.05)
    running.engine.die(revive=False)
    monkeypatch.setattr(running.engine, "_facts", None)  # as before the first load
    async with connect(running.ws_url) as opened:
        await opened.send('{"type":"hello"}')
        assert await Socket(opened).closed() == (1013, "The model is not loaded yet; reconnect.")
