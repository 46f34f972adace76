"""`/v1/realtime` over real sockets and a real store: the same gate, limits, conversations and ends as on the native socket."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Subprotocol

from connections.authentication.api_keys import digest_of
from tests.app.in_process_service import Socket, serving
from tests.app.realtime_client import begin, paced, session, turn, url_of
from tests.jwt_signing import KEY


@pytest.fixture
def keys(keys: Path) -> Path:
    """A file with one key."""
    keys.write_text(f"ann:{digest_of(KEY)}\n")
    return keys


async def test_a_key_comes_in_by_a_header_or_by_a_subprotocol(tmp_path: Path, keys: Path) -> None:
    async with serving(tmp_path, api_keys=str(keys)) as running:
        for options in (
            {"additional_headers": {"Authorization": f"Bearer {KEY}"}},
            {"subprotocols": [Subprotocol("realtime"), Subprotocol(f"openai-insecure-api-key.{KEY}")]},
        ):
            async with connect(url_of(running), **options) as opened:  # type: ignore[arg-type]
                assert (await Socket(opened).next())["type"] == "session.created"
                assert opened.subprotocol == ("realtime" if "subprotocols" in options else None)
        with pytest.raises(InvalidStatus) as refused:
            await connect(url_of(running))
        assert refused.value.response.status_code == 401
        assert json.loads(refused.value.response.body or b"")["error"]["code"] == "invalid_api_key"


async def test_a_server_that_stops_ends_the_reply_and_asks_to_come_back(tmp_path: Path) -> None:
    async with paced(tmp_path) as running, session(running) as socket:
        await begin(socket, running)
        running.service.stop()
        done = (await socket.next("response.done"))["response"]
        assert (done["status"], done["status_details"]["error"]["type"]) == ("failed", "server_error")
        assert await socket.closed() == (1012, "The server is shutting down; reconnect.")


async def test_a_key_has_many_sessions_and_comes_back_to_each(tmp_path: Path, keys: Path) -> None:
    async with (
        serving(tmp_path, api_keys=str(keys), max_client_connections=1) as running,
        session(running, token=KEY) as first,
        session(running, token=KEY),
    ):
        place = first.ready["conversation_id"]
        reply = (await turn(first, "One?"))[-1]["response"]["output"][0]
        await first.opened.close()
        while running.service._lifecycle._manager.statistics().connections > 1:
            await running.get("/healthz")
        async with session(running, token=KEY, conversation_id=place) as back:
            await back.until("conversation.item.done")
            assert (await back.next("conversation.item.done"))["item"] == reply


async def test_a_key_that_is_revoked_ends_its_sessions(tmp_path: Path, keys: Path) -> None:
    async with (
        serving(tmp_path, api_keys=str(keys)) as running,
        session(running, token=KEY) as socket,
    ):
        await asyncio.to_thread(keys.write_text, "")
        running.service._config_reload.access.reload()
        error = (await socket.next())["error"]
        assert (error["type"], error["code"]) == ("authentication_error", "unauthenticated")
        assert (await socket.closed())[0] == 4401
