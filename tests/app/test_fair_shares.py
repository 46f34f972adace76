"""A client that asks for too much is refused; others notice nothing, and the store is not asked."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from redis.asyncio import Redis

from connections.api import requests
from engine.messages import PLAIN, Message, ReplySpec
from engine.scripted import ScriptedEngine
from sessions.limits import rates as frame_budget
from sessions.limits.bounds import Bound
from sessions.limits.slots import is_heavy_caller
from tests.app.in_process_service import Frame, InProcessService, Socket, serving

ELSEWHERE = {"local_addr": ("127.0.0.2", 0)}
"""Another address of this machine."""


def message(number: int, **more: object) -> Frame:
    return {"type": "send", "client_msg_id": f"m{number}", "content": "Hello?", **more}


async def send_many(socket: Socket, *, first: int, rooms: int, behind: int = 0) -> list[Frame]:
    """Send to so many conversations, and so many messages after each; return the answer to each message."""
    frames = [
        message(
            first + number * (1 + behind) + place, conversation_id=f"r{first + number}", on_busy="enqueue"
        )
        for number in range(rooms)
        for place in range(1 + behind)
    ]
    return [await socket.ask(**frame) for frame in frames]


async def test_one_client_that_queues_messages_leaves_turns_for_others(tmp_path: Path) -> None:
    """With twenty sockets and a message behind each reply, it gets its share; another client is accepted at once."""
    engine = ScriptedEngine(by_hand=True)
    async with (
        serving(tmp_path, engine, max_turns=64, message_rate=1000) as running,
        AsyncExitStack() as sockets,
    ):
        answers: list[Frame] = []
        for number in range(20):
            socket = await sockets.enter_async_context(running.socket({"client_id": "hog"}, **ELSEWHERE))
            answers += await send_many(socket, first=number * 100, rooms=4, behind=2)
        accepted = [one for one in answers if one["type"] == "accepted"]
        refused = [one for one in answers if one["type"] == "error"]
        assert 16 <= len(accepted) <= 34
        assert {one["code"] for one in refused} == {"overloaded"}
        assert all(one["retry_after_ms"] for one in refused)
        async with running.socket({"client_id": "bob"}) as bob:
            assert (await bob.ask(**message(1)))["type"] == "accepted"


async def test_many_names_of_one_address_leave_turns_for_another(tmp_path: Path) -> None:
    engine = ScriptedEngine(by_hand=True)
    async with serving(tmp_path, engine, max_turns=16) as running:
        answers = []
        for number in range(40):
            async with running.socket({"client_id": f"name{number}"}, **ELSEWHERE) as socket:
                answers.append(await socket.ask(**message(number, on_disconnect="continue")))
        assert sum(one["type"] == "accepted" for one in answers) == 5
        async with running.socket({"client_id": "bob"}) as bob:
            assert (await bob.ask(**message(1)))["type"] == "accepted"


async def commands_of(store: Redis) -> int:
    """Return the number of commands that the store got so far."""
    return int((await store.info("stats"))["total_commands_processed"])


async def test_who_asks_on_though_it_is_refused_is_read_more_slowly(tmp_path: Path) -> None:
    """Nobody else notices, and nothing is lost: all is answered in the end."""
    async with (
        serving(tmp_path, message_rate=0.2) as running,
        running.socket({"client_id": "hasty"}) as hasty,
        running.socket({"client_id": "bob"}) as bob,
    ):
        for number in range(7):
            await hasty.send(**message(number, conversation_id=f"c{number}"))
        assert (await bob.ask(**message(1)))["type"] == "accepted"
        refused = [await hasty.next("error") for _ in range(6)]
        assert {one["code"] for one in refused} == {"rate_limited"}
        assert running.service._server.server_state.bounds.met()[Bound.TEXT_FRAMES] >= 1


async def test_what_is_shed_does_not_ask_the_store(
    tmp_path: Path, store_url: str, store: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages and reads beyond the rate cost the store nothing."""
    monkeypatch.setattr(frame_budget, "REFUSED_REQUEST_FRAMES", 0)
    slow = serving(tmp_path, redis_url=store_url, message_rate=0.2, read_rate=0.2)
    async with slow as running, running.socket() as socket:
        assert (await socket.ask(**message(1)))["type"] == "accepted"
        await socket.until("done")
        assert (await socket.ask(type="history"))["type"] == "history"
        before = await commands_of(store)
        for number in range(2, 60):
            reported = await socket.ask(**message(number))
            assert (reported["code"], reported["retryable"]) == ("rate_limited", True)
            assert reported["retry_after_ms"] > 0
            assert (await socket.ask(type="conversations"))["code"] == "rate_limited"
        assert await commands_of(store) - before < 100  # the replica's own chores
        assert (await socket.ask(type="cancel"))["type"] == "cancelled"


async def chat(running: InProcessService, body: bytes) -> tuple[int, Frame]:
    """Return status and JSON answer of a chat completion."""
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + body)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    top, _, reported = answer.partition(b"\r\n\r\n")
    return int(top.split()[1]), json.loads(reported)


class HookedEngine(ScriptedEngine):
    """An engine that looks at something whenever it counts a message's tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.look: Callable[[], int] = lambda: 0
        self.seen: list[int] = []

    async def count_tokens(
        self, messages: Sequence[Message], *, client: str = "", spec: ReplySpec = PLAIN
    ) -> int:
        self.seen.append(self.look())
        return await super().count_tokens(messages, client=client, spec=spec)


async def test_a_body_that_can_not_fit_the_window_is_refused_before_it_is_tokenized(tmp_path: Path) -> None:
    """Four megabytes of it kept the only tokenizer busy for ten seconds, and every message waited for that."""
    engine = HookedEngine()
    async with serving(tmp_path, engine) as running:
        for role in ("assistant", "user"):
            long = [{"role": role, "content": "word " * 6_000} for _ in range(120)]
            body = {"model": "midstream-demo", "messages": [*long, {"role": "user", "content": "Hello?"}]}
            status, reported = await chat(running, json.dumps(body).encode())
            assert (status, reported["error"]["code"]) == (400, "context_length_exceeded")
    assert engine.seen == []


async def test_others_are_answered_while_a_long_body_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four megabytes take longer than the time between two tokens."""
    started, goes_on = threading.Event(), threading.Event()

    def slowly(_: bytes) -> None:
        started.set()
        assert goes_on.wait(30)

    monkeypatch.setattr(requests, "check_json_limits", slowly)
    body = json.dumps({"model": "midstream-demo", "messages": [], "user": " " * 300_000}).encode()
    async with serving(tmp_path) as running, running.socket() as socket:
        reading = asyncio.create_task(chat(running, body))
        await asyncio.to_thread(started.wait, 30)
        assert (await socket.ask(type="ping", t=1))["type"] == "pong"
        goes_on.set()
        assert (await reading)[0] == 400


async def test_few_long_bodies_are_read_at_once(tmp_path: Path) -> None:
    """Each takes memory while it arrives; one address gets its share of the places, another is served."""
    async with serving(tmp_path) as running:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 4000000\r\n\r\n"
        uploads = []
        for _ in range(20):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", running.port, local_addr=("127.0.0.2", 0)
            )
            writer.write(head + b"x" * 300_000)
            await writer.drain()
            uploads.append((reader, writer))
        answered = [asyncio.create_task(reader.readline()) for reader, _ in uploads]
        while sum(one.done() for one in answered) < 20 - 9:
            await asyncio.wait(answered, return_when=asyncio.FIRST_COMPLETED)
        assert {one.result().split()[1] for one in answered if one.done()} == {b"503"}
        small = {
            "model": "midstream-demo",
            "messages": [{"role": "user", "content": "Hello?"}],
            "user": " " * 300_000,
        }
        status, _ = await chat(running, json.dumps(small).encode())
        assert status == 200
        for task in answered:
            task.cancel()
        for _, writer in uploads:
            writer.close()


async def test_others_begin_less_while_the_message_of_who_comes_seldom_is_on_its_way(tmp_path: Path) -> None:
    """The server's parser knows of the message. Of who asks again and again none is put first."""
    engine = HookedEngine()
    async with serving(tmp_path, engine) as running:
        engine.look = lambda: running.service._server.server_state.scheduler.light_clients.requests
        async with running.socket({"client_id": "bob"}) as bob:
            assert (await bob.ask(**message(1)))["type"] == "accepted"
        async with running.socket({"client_id": "hasty"}, **ELSEWHERE) as hasty:
            for number in range(20):
                assert (await hasty.ask(type="ping", t=number))["type"] == "pong"
            assert (await hasty.ask(**message(2)))["type"] == "accepted"
        assert engine.seen == [1, 0]
        assert engine.look() == 0


async def test_the_store_is_told_which_messages_are_of_a_crowd(tmp_path: Path) -> None:
    """Who asks again and again is one while somebody else asks, too, also on the connection that it came with."""
    engine = HookedEngine()
    async with serving(tmp_path, engine) as running:
        engine.look = is_heavy_caller
        async with (
            running.socket({"client_id": "hasty"}, **ELSEWHERE) as hasty,
            running.socket({"client_id": "bob"}, local_addr=("127.0.0.3", 0)) as bob,
        ):
            for number in range(40):
                assert (await hasty.ask(type="ping", t=number))["type"] == "pong"
            assert (await bob.ask(**message(1)))["type"] == "accepted"
            assert (await hasty.ask(**message(2)))["type"] == "accepted"
        assert engine.seen == [False, True]
