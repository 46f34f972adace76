"""A conversation's event stream over real sockets: for clients that only read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from app.keys import add_key, revoke_key
from connections.api import endpoint as transport
from connections.http import RefusalReason
from connections.protocol.errors import Close, CloseCode
from engine.scripted import ScriptedEngine
from sessions.limits.bounds import OUTBOX_BYTES
from tests.app.event_source import error_response, open_event_source, path_of
from tests.app.in_process_service import Frame, InProcessService, Socket, serving
from tests.jwt_signing import SECRET, token

REPLY = "This reply was written before it was asked for."
ANN = {"client_id": "ann"}


@pytest.fixture
async def by_hand(tmp_path: Path) -> AsyncIterator[InProcessService]:
    """A service whose engine the test steps."""
    async with serving(tmp_path, ScriptedEngine(by_hand=True, reply=REPLY)) as service:
        yield service


async def run_exchange(socket: Socket, msg_id: str = "m1", **more: object) -> list[Frame]:
    """Run one exchange; return its frames."""
    await socket.send(type="send", client_msg_id=msg_id, content="Hello?", **more)
    return await socket.until("done")


async def begin(socket: Socket, engine: ScriptedEngine, **more: object) -> list[Frame]:
    """Send; return `accepted` and the first word."""
    await socket.send(type="send", client_msg_id="m1", content="Hello?", **more)
    accepted = await socket.next("accepted")
    engine.step()
    return [accepted, await socket.next("delta")]


async def connections(running: InProcessService) -> int:
    """Return the number of open streams, a moment later."""
    await running.get("/healthz")
    return running.service._lifecycle._manager.statistics().connections


def text(frames: list[Frame]) -> str:
    return "".join(frame["text"] for frame in frames if frame["type"] == "delta")


async def test_who_comes_while_a_turn_waits_for_its_text_is_told_why(by_hand: InProcessService) -> None:
    by_hand.engine.prefill_tokens = 4
    async with by_hand.socket(ANN) as speaker:
        await speaker.send(type="send", client_msg_id="m1", content="one two three four")
        await speaker.next("accepted")
        by_hand.engine.step()
        status = await speaker.next("status")
        async with open_event_source(by_hand, "ann") as view:
            assert (await view.next())["messages"][-1]["status"] == "running"
            assert await view.next() == status


async def test_a_silent_line_shows_that_it_stands(
    running: InProcessService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "BEAT_S", 0.01)
    async with running.socket(ANN) as speaker:
        await run_exchange(speaker)
        async with open_event_source(running, "ann") as view:
            await view.next("history")
            assert view.answer.headers["content-type"] == "text/event-stream; charset=utf-8"
            assert 1000 <= view.retry_ms <= 3000
            await view.beat()
            await view.beat()
            await run_exchange(speaker, "m2")
            assert text(await view.until("done")) == REPLY


# ---- a reader is a connection


async def test_a_reply_goes_on_while_somebody_reads_and_ends_with_the_last(by_hand: InProcessService) -> None:
    async with AsyncExitStack() as stack:
        speaker = await stack.enter_async_context(by_hand.socket(ANN))
        await begin(speaker, by_hand.engine)
        view = await stack.enter_async_context(open_event_source(by_hand, "ann"))
        await view.next("history")
        await speaker.opened.close()
        while await connections(by_hand) > 1:
            pass
        by_hand.engine.step()
        assert (await view.next("delta"))["text"] == " reply"
    while await connections(by_hand):
        pass
    async with by_hand.socket(ANN) as back:
        page = await back.ask(type="history")
        while page["messages"][-1]["status"] == "running":
            page = await back.ask(type="history")
    assert (page["messages"][-1]["status"], by_hand.engine.statistics().cancels) == ("cancelled", 1)


async def test_a_reader_that_comes_too_often_is_told_to_wait(tmp_path: Path) -> None:
    async with serving(tmp_path, read_rate=0.2) as running:
        async with running.socket(ANN) as socket:
            await run_exchange(socket)
        async with open_event_source(running, "ann"):
            pass
        assert (await running.get(f"{path_of()}?client_id=ann"))[0] == 429


async def test_a_server_that_is_full_is_full_for_readers_too(tmp_path: Path) -> None:
    async with serving(tmp_path, max_connections=1) as running, running.socket(ANN) as speaker:
        await run_exchange(speaker)
        assert await error_response(running, params=ANN) == (503, "overloaded")
        refusals = running.service._lifecycle._limiters.refusals
        assert refusals.statistics()[RefusalReason.FULL] == 1


async def test_a_reader_that_reads_too_slowly_is_cut_off_and_nobody_else(by_hand: InProcessService) -> None:
    pieces = OUTBOX_BYTES // 8192
    by_hand.engine.script(["x" * 16_384] * pieces)
    ask = f"GET {path_of()}?client_id=ann HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    async with by_hand.socket(ANN) as speaker:
        with await by_hand.small_buffer_socket() as silent:
            await begin(speaker, by_hand.engine)
            await asyncio.get_running_loop().sock_sendall(silent, ask.encode())
            while await connections(by_hand) < 2:
                pass
            for _ in range(pieces - 1):
                by_hand.engine.step()
                await speaker.next("delta")
            while await connections(by_hand) > 1:
                pass
        by_hand.engine.step()
        done = await speaker.next("done")
    assert (done["reason"], done["chars"]) == ("stop", 2 * OUTBOX_BYTES)


async def test_a_server_that_stops_says_so_and_readers_come_back(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(serving(tmp_path))
        speaker = await stack.enter_async_context(running.socket(ANN))
        frames = await run_exchange(speaker)
        view = await stack.enter_async_context(open_event_source(running, "ann"))
        await view.next("history")
        running.service.stop()
        assert [frame["type"] for frame in await view.rest()] == ["goaway"]
    async with serving(tmp_path) as anew, open_event_source(anew, "ann", view.last_id) as again:
        resumed = await again.next()
    assert (resumed["type"], resumed["epoch"], resumed["replayed"]) == ("resumed", frames[0]["epoch"], 0)


async def test_who_comes_while_the_last_ones_leave_is_asked_to_come_again(running: InProcessService) -> None:
    """An EventSource would never reconnect after a refusal."""
    running.service._lifecycle._manager.shut_all(Close(CloseCode.DRAIN, "The server stops."))
    async with open_event_source(running, "ann") as view:
        assert await view.rest() == []
    assert (view.answer.status_code, view.retry_ms) == (200, 3000)


async def test_a_key_opens_in_the_header_until_it_is_revoked_and_a_ticket_once_in_the_url(
    tmp_path: Path,
) -> None:
    keys = tmp_path / "keys"
    key = add_key(keys, "ann")
    async with serving(tmp_path, api_keys=str(keys)) as running:
        async with running.socket(ANN | {"token": key}) as speaker:
            await run_exchange(speaker)
        async with open_event_source(running, "ann", token=key) as view:
            assert (await view.next())["type"] == "history"
        _, _, body = await running.get("/v1/tickets", method="POST", Authorization=f"Bearer {key}")
        ticket = json.loads(body)["ticket"]
        async with open_event_source(running, "ann", ticket=ticket) as view:
            assert (await view.next())["type"] == "history"
        for query in ({"ticket": ticket}, {"ticket": key}, {}):
            assert await error_response(running, params=ANN | query) == (401, "unauthenticated")
        async with open_event_source(running, "ann", token=key) as view:
            await view.next("history")
            revoke_key(keys, "ann")
            (error,) = await view.rest()
    assert (error["type"], error["code"]) == ("error", "unauthenticated")


async def test_a_stream_ends_with_its_token(tmp_path: Path) -> None:
    async with serving(tmp_path, jwt_secret=SECRET, refresh_s=0.01) as running:
        async with running.socket(ANN | {"token": token()}) as speaker:
            await run_exchange(speaker)
        while await connections(running):
            pass
        async with open_event_source(running, "ann", token=token()) as view:
            await view.next("history")
            (validity,) = running.service._config_reload.access._watched
            assert validity.identity.expires_at is not None
            validity._expire()
            assert [frame["type"] for frame in await view.rest()] == ["error"]
