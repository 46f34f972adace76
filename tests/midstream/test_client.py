"""The Python client: text as it comes, cancels that keep what was seen, and errors that say what happened."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from websockets.asyncio.server import ServerConnection, serve

import midstream
from app.keys import add_key
from engine.scripted import ScriptedEngine
from midstream.server_connection import origin_of, socket_url
from tests.app.in_process_service import InProcessService, serving
from tests.chaos.proxy import proxy
from tests.midstream.conftest import connections_of, cut
from tests.sessions.chat_driver import eventually

LONG = "word " * 20_000


async def test_a_reply_is_read_as_it_is_written(running: InProcessService) -> None:
    running.engine.script(["Good ", "day", "."])
    async with midstream.connect(running.ws_url, client_id="ann") as client:
        assert client.ready["client_id"] == "ann"
        reply = await client.send("Hello.")
        assert "".join([text async for text in reply]) == reply.text == "Good day."
        assert reply.done is not None
        assert reply.done["reason"] == "stop"
        assert (await reply.wait()) is reply.done


async def test_the_wait_for_a_reply_is_told(tmp_path: Path) -> None:
    engine = ScriptedEngine(reply="Here.", by_hand=True, max_batch=1)
    engine.prefill_tokens = 4
    async with serving(tmp_path, engine) as running, midstream.connect(running.ws_url) as client:
        before = await client.send("one two three four", conversation_id="before")
        waiting = await client.send("one two three four")
        events = waiting.events()
        assert await anext(events) == midstream.Status("queued", queue_position=1)
        engine.step(3)
        assert (await before.wait())["reason"] == "stop"
        engine.step()
        assert await anext(events) == waiting.status == midstream.Status("prefill", progress=0.5)
        engine.step(2)
        assert [event async for event in events] == ["Here."]


async def test_a_reply_may_be_whole_before_its_sender_looks(running: InProcessService) -> None:
    """Many replies at once, each of them faster than the task that asked for it."""
    async with midstream.connect(running.ws_url) as client:
        replies = await asyncio.gather(
            *(client.send(f"Message {n}.", conversation_id=f"c{n}") for n in range(20))
        )
        ends = await asyncio.gather(*(reply.wait() for reply in replies))
    assert {end["turn_id"] for end in ends} == {reply.turn_id for reply in replies}


async def test_a_cancel_keeps_what_was_seen(running: InProcessService) -> None:
    running.engine._pace_s = 0.002
    running.engine.script(LONG)
    async with midstream.connect(running.ws_url) as client:
        reply = await client.send("Go on.")
        seen = await anext(aiter(reply))
        assert (await reply.cancel())["already"] is False
        done = await reply.wait()
        assert (done["reason"], done["chars"], reply.text) == ("cancelled", len(seen), seen)
        _, kept = await client.history()
    assert (kept["content"], kept["status"]) == (seen, "cancelled")


async def test_a_rollback_takes_the_exchange_back(running: InProcessService) -> None:
    running.engine._pace_s = 0.002
    running.engine.script(LONG)
    async with midstream.connect(running.ws_url) as client:
        reply = await client.send("Go on.")
        await reply.cancel(rollback=True)
        assert (await reply.wait())["removed"] is True
        assert await client.history() == []


async def test_a_message_sent_twice_is_answered_once(running: InProcessService) -> None:
    async with midstream.connect(running.ws_url, client_id="ann") as client:
        first = await client.send("Hello.", client_msg_id="m1")
        await first.wait()
    async with midstream.connect(running.ws_url, client_id="ann") as client:
        again = await client.send("Hello.", client_msg_id="m1")
        assert again.accepted["duplicate"] is True
        await again.wait()
    assert (again.turn_id, again.text) == (first.turn_id, first.text)
    assert len(running.engine.requests) == 1


async def test_a_refusal_says_why(running: InProcessService) -> None:
    async with midstream.connect(running.ws_url) as client:
        with pytest.raises(
            midstream.Refused, match=r"bad_params: `params.temperature` must be from 0 to 2"
        ) as refused:
            await client.send("Hello.", params={"temperature": -1})
        assert (refused.value.code, refused.value.retryable) == ("bad_params", False)
        with pytest.raises(midstream.Refused, match="not_found"):
            await client.history("nobodys")
    with pytest.raises(midstream.Refused, match=r"unauthenticated.*client_id"):
        async with midstream.connect(running.ws_url, client_id="a b"):
            pass


async def test_a_reply_outlives_its_connection(running: InProcessService) -> None:
    """What was missed comes once, and the rest behind it."""
    running.engine._pace_s = 0.002
    running.engine.script("word " * 300)
    reported: list[midstream.Disconnected | None] = []
    reconnecting = midstream.Reconnecting(watch=reported.append)
    async with midstream.connect(running.ws_url, reconnecting=reconnecting) as client:
        reply = await client.send("Go on.")
        async for _ in reply:
            if len(reply.text) > 100:
                break
        cut(running)
        assert (await reply.wait())["reason"] == "stop"
        _, kept = await client.history()
    assert reply.text == kept["content"] == "word " * 300
    assert [lost and lost.code for lost in reported] == [1012, None]


async def test_a_client_that_is_told_to_wait_comes_back_all_the_same(tmp_path: Path) -> None:
    """As some of a crowd are that comes back with one key."""
    async with serving(tmp_path, read_rate=1) as running:
        running.engine._pace_s = 0.01
        running.engine.script("word " * 300)
        async with midstream.connect(running.ws_url) as client:
            reply = await client.send("Go on.")
            await anext(aiter(reply))
            with pytest.raises(midstream.Refused, match="rate_limited"):
                await asyncio.gather(*(client.history() for _ in range(8)))
            cut(running)
            assert (await reply.wait())["reason"] == "stop"
    assert reply.text == "word " * 300
    assert len(running.engine.requests) == 1


async def test_what_is_asked_without_a_connection_is_asked_on_the_next_one(running: InProcessService) -> None:
    running.engine.script("Here.")
    async with midstream.connect(running.ws_url) as client:
        cut(running)
        reply = await client.send("Anybody there?")
        assert (await reply.wait())["reason"] == "stop"
    assert len(running.engine.requests) == 1


async def test_a_connection_that_falls_silent_is_noticed_in_seconds(running: InProcessService) -> None:
    """Nobody closed it: the network merely carries nothing any more."""
    running.engine._pace_s = 0.002
    running.engine.script("word " * 300)
    noticed = asyncio.Event()
    watching = midstream.Reconnecting(watch=lambda _: noticed.set())
    async with (
        proxy(running.port) as between,
        midstream.connect(f"127.0.0.1:{between.port}", reconnecting=watching) as client,
    ):
        reply = await client.send("Go on.")
        await anext(aiter(reply))
        between.stall()
        async with asyncio.timeout(15):  # websockets' own keepalive takes up to 50 seconds
            await noticed.wait()
        between.flow()
        assert (await reply.wait())["reason"] == "stop"
    assert reply.text == "word " * 300


async def test_a_slow_reply_is_no_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("QUIET_S", "ANSWER_S"):
        monkeypatch.setattr(f"midstream.server_connection.{name}", 0.2)
    engine = ScriptedEngine(by_hand=True)
    reported: list[midstream.Disconnected | None] = []
    watching = midstream.Reconnecting(watch=reported.append)
    async with (
        serving(tmp_path, engine) as running,
        midstream.connect(running.ws_url, reconnecting=watching) as client,
    ):
        await client.send("Go on.")
        line = client._line
        assert line is not None
        began = line._received_at
        await eventually(lambda: line._received_at > began + 1.0)  # only answers to pings come
        assert reported == []


async def test_where_the_journal_is_gone_the_reply_is_told_from_its_beginning(
    running: InProcessService,
) -> None:
    running.engine._pace_s = 0.002
    running.engine.script("word " * 300)
    async with midstream.connect(running.ws_url) as client:
        reply = await client.send("Go on.")
        await anext(aiter(reply))
        client._live.positions["default"].holed = True
        cut(running)
        await reply.wait()
    assert reply.text == "word " * 300
    assert len(running.engine.requests) == 1


async def test_a_conversation_that_is_gone_ends_its_replies(running: InProcessService) -> None:
    running.engine._pace_s = 0.002
    running.engine.script(LONG)
    away = asyncio.Event()
    watching = midstream.Reconnecting(watch=lambda _: away.set())
    async with midstream.connect(running.ws_url, client_id="ann") as other:
        others = connections_of(running)
        async with midstream.connect(running.ws_url, client_id="ann", reconnecting=watching) as client:
            reply = await client.send("Go on.")
            await anext(aiter(reply))
            cut(running, but=others)
            await away.wait()
            await other.delete("default")
            with pytest.raises(midstream.Refused, match="not_found"):
                await reply.wait()


async def test_a_connection_that_does_not_come_back_is_told_to_whoever_waits(
    running: InProcessService,
) -> None:
    running.engine._pace_s = 0.002
    running.engine.script(LONG)
    hasty = midstream.Reconnecting(timeout_s=0)
    async with midstream.connect(running.ws_url, reconnecting=hasty) as client:
        reply = await client.send("Go on.")
        cut(running)
        with pytest.raises(midstream.Disconnected, match=r"1012.*reconnect") as lost:
            await reply.wait()
        assert lost.value.code == 1012
        with pytest.raises(midstream.Disconnected, match="1012"):
            await client.send("Anybody there?")


async def test_patience_has_an_end(tmp_path: Path) -> None:
    short = midstream.Reconnecting(timeout_s=0.4)
    async with serving(tmp_path) as running:
        connected = midstream.connect(running.ws_url, reconnecting=short)
        client = await connected.__aenter__()
    with pytest.raises(midstream.Disconnected, match="1012"):
        await client.history()
    await connected.__aexit__(None, None, None)


async def test_an_edit_and_another_reply_stand_beside_what_was_said(running: InProcessService) -> None:
    for text in ("One.", "Two.", "Three."):
        running.engine.script(text)
    async with midstream.connect(running.ws_url) as client:
        first = await client.send("Hello.")
        await first.wait()
        edited = await client.edit(first.accepted["message_id"], "Good day.")
        done = await edited.wait()
        again = await client.regenerate(done["message_id"])
        await again.wait()
        assert (first.text, edited.text, again.text) == ("One.", "Two.", "Three.")
        requested, answered = await client.history()
        assert (requested["content"], len(requested["siblings"])) == ("Good day.", 2)
        assert (answered["content"], len(answered["siblings"])) == ("Three.", 2)
        shown = await client.history(leaf=first.accepted["message_id"])
        assert [message["content"] for message in shown] == ["Hello.", "One."]


async def test_there_is_no_such_server(running: InProcessService) -> None:
    with pytest.raises(midstream.NotConnected, match="404"):
        async with midstream.connect(f"{running.ws_url}/nowhere"):
            pass
    with pytest.raises(midstream.NotConnected, match="not-a-url"):
        async with midstream.connect("not-a-url"):
            pass
    with pytest.raises(OSError, match=r"127\.0\.0\.1"):
        async with midstream.connect("ws://127.0.0.1:1/v1/ws"):
            pass


@asynccontextmanager
async def saying(*frames: str) -> AsyncIterator[str]:
    """A server that answers `hello` by `ready`, and the next frame by these; gives its URL."""

    async def answer(socket: ServerConnection) -> None:
        for answers in (['{"type":"ready","ref":"REF"}'], frames):
            ref = str(await socket.recv()).rpartition('"ref":"')[2][:32]
            for frame in answers:
                await socket.send(frame.replace("REF", ref))
        await socket.wait_closed()

    async with serve(answer, "127.0.0.1", 0) as server:
        yield f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize("frame", ["no json", "[]", '{"type":"delta"}', '{"kind":"ready"}'])
async def test_a_server_that_speaks_something_else_leaves_nobody_waiting(frame: str) -> None:
    async with saying(frame) as url, midstream.connect(url) as client:
        with pytest.raises(midstream.Disconnected, match="does not speak the protocol"):
            await client.history()


async def test_text_that_came_before_is_skipped_and_a_hole_is_an_error() -> None:
    accepted = '{"type":"accepted","ref":"REF","turn_id":"t","conversation_id":"default","epoch":"e","seq":1}'
    deltas = [
        f'{{"type":"delta","conversation_id":"default","turn_id":"t","off":{off},"text":"{text}"}}'
        for off, text in ((0, "ab"), (1, "bc"), (0, "abc"), (9, "x"))
    ]
    async with saying(accepted, *deltas) as url, midstream.connect(url) as client:
        reply = await client.send("Hello.")
        with pytest.raises(midstream.ClientError, match="missing"):
            await reply.wait()
        assert reply.text == "abc"


async def test_waiting_for_an_answer_may_be_given_up() -> None:
    async with saying('{"type":"conversations","ref":"other"}') as url, midstream.connect(url) as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await client.conversations()


async def test_a_key_opens_what_is_closed_and_is_renewed(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    key, other = (add_key(keys, name) for name in ("ann", "bo"))
    async with serving(tmp_path, api_keys=str(keys)) as running:
        with pytest.raises(midstream.Refused, match="unauthenticated"):
            async with midstream.connect(running.ws_url):
                pass
        async with midstream.connect(running.ws_url, token=key) as client:
            await client.authenticate(key)
            assert (await (await client.send("Hello.")).wait())["reason"] == "stop"
            with pytest.raises(midstream.Refused, match="another principal"):
                await client.authenticate(other)


async def test_a_server_that_does_not_answer_hello_now_is_asked_again() -> None:
    """Overloaded and restarting servers say so; only a refusal for good is one."""
    ready = '{"type":"ready","ref":"REF"}'
    refusals = iter(
        ('"overloaded","message":"No room.","retryable":true', '"forbidden","message":"Not you."')
    )

    async def answer(socket: ServerConnection) -> None:
        ref = str(await socket.recv()).rpartition('"ref":"')[2][:32]
        seen.append(socket)
        if len(seen) == 1:
            await socket.send(ready.replace("REF", ref))
            await socket.close(1012)
        else:
            await socket.send(f'{{"type":"error","ref":"{ref}","code":{next(refusals)}}}')
            await socket.wait_closed()

    seen: list[ServerConnection] = []
    async with serve(answer, "127.0.0.1", 0) as server:
        url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with midstream.connect(url) as client:
            with pytest.raises(midstream.Refused, match="Not you"):
                await client.history()
    assert len(seen) == 3


@pytest.mark.parametrize("timeout_s", [60.0, 0.0])
async def test_what_a_server_that_stops_refuses_is_asked_of_the_next_one(timeout_s: float) -> None:
    async def answer(socket: ServerConnection) -> None:
        seen.append(socket)
        for answers in ('"type":"ready"', reported[len(seen) - 1]):
            ref = str(await socket.recv()).rpartition('"ref":"')[2][:32]
            await socket.send(f'{{"ref":"{ref}",{answers}}}')
        await socket.close(1012)

    reported = [
        '"type":"error","code":"draining","message":"The server is about to stop.","retryable":true',
        '"type":"conversations","conversations":[],"has_more":false',
    ]
    seen: list[ServerConnection] = []
    reconnecting = midstream.Reconnecting(timeout_s=timeout_s)
    async with serve(answer, "127.0.0.1", 0) as server:
        url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with midstream.connect(url, reconnecting=reconnecting) as client:
            if not timeout_s:
                with pytest.raises(midstream.Refused, match="draining"):
                    await client.conversations()
                return
            assert list(await client.conversations()) == []
    assert len(seen) == 2


@pytest.mark.parametrize(
    ("written", "url"),
    [
        ("ws://127.0.0.1:8000/v1/ws", "ws://127.0.0.1:8000/v1/ws"),
        ("http://127.0.0.1:8000", "ws://127.0.0.1:8000/v1/ws"),
        ("http://127.0.0.1:8000/", "ws://127.0.0.1:8000/v1/ws"),
        ("https://chat.example/#c=trees", "wss://chat.example/v1/ws"),
        ("https://example.org/chat/v1/ws", "wss://example.org/chat/v1/ws"),
        ("https://example.org/chat/", "wss://example.org/chat/v1/ws"),
        ("http://example.org/chat#c=trees", "ws://example.org/chat/v1/ws"),
        ("wss://example.org/socket", "wss://example.org/socket"),
        ("localhost:8000", "ws://localhost:8000/v1/ws"),
        ("[::1]:8000", "ws://[::1]:8000/v1/ws"),
        ("127.1.2.3:8000", "ws://127.1.2.3:8000/v1/ws"),
        ("chat.example:443/v1/ws", "wss://chat.example:443/v1/ws"),
        ("192.168.0.7:8000", "wss://192.168.0.7:8000/v1/ws"),
        ("localhost.example:8000", "wss://localhost.example:8000/v1/ws"),
        ("http://192.168.0.7:8000", "ws://192.168.0.7:8000/v1/ws"),
        ("not-a-url", "not-a-url"),
        ("ftp://chat.example", "ftp://chat.example"),
    ],
)
def test_what_people_write_becomes_the_url_of_the_socket(written: str, url: str) -> None:
    assert socket_url(written) == url


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("ws://127.0.0.1:8000/v1/ws", "ws://localhost:8000"),
        ("ws://[::1]:8000/v1/ws", "ws://localhost:8000"),
        ("wss://Chat.Example/a/v1/ws", "wss://chat.example:443"),
        ("ws://chat.example/v1/ws", "ws://chat.example:80"),
    ],
)
def test_an_origin_is_scheme_host_and_port(url: str, origin: str) -> None:
    assert origin_of(url) == origin
