"""Limits over real sockets, two replicas and a real store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from redis.asyncio import Redis
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from sessions.limits import quotas
from tests.app.in_process_service import Frame, InProcessService, Socket, serving
from tests.sessions.chat_driver import eventually
from tests.store_faults import pid_of, stalled

Replica = Callable[..., AbstractAsyncContextManager[InProcessService]]


@pytest.fixture
def replica(tmp_path: Path, store_url: str) -> Replica:
    """Build a service on the one store."""
    return lambda **settings: serving(tmp_path, redis_url=store_url, **settings)


async def send_and_wait(socket: Socket, msg_id: str) -> list[Frame]:
    """Send a message; return all frames up to its end, or its refusal."""
    await socket.send(type="send", client_msg_id=msg_id, conversation_id=msg_id, content="Hello!")
    frames = [await socket.next()]
    while frames[-1]["type"] not in ("done", "error"):
        frames.append(await socket.next())
    return frames


def reported_limits(frames: list[Frame]) -> list[tuple[str, int]]:
    return [(frame["name"], frame["remaining"]) for frame in frames if frame["type"] == "limits"]


async def test_messages_have_a_limit_over_all_replicas(replica: Replica) -> None:
    async with replica(messages_per_minute=3) as one, replica(messages_per_minute=3) as two:
        async with one.socket({"client_id": "ann"}) as here, two.socket({"client_id": "ann"}) as there:
            assert here.ready["limits"]["messages_per_minute"] == 3
            for socket, msg_id in ((here, "m1"), (there, "m2"), (here, "m3")):
                assert (await send_and_wait(socket, msg_id))[-1]["type"] == "done"
            refused = (await send_and_wait(there, "m4"))[-1]
            assert (refused["code"], refused["retryable"], refused["ref"]) == ("rate_limited", True, "m4")
            assert 0 < refused["retry_after_ms"] <= 60_000
            seen = await here.ask(type="conversations")
            assert {row["conversation_id"] for row in seen["conversations"]} == {"m1", "m2", "m3"}
        async with one.socket({"client_id": "bob"}) as other:
            assert (await send_and_wait(other, "m1"))[-1]["type"] == "done"


async def test_a_limit_that_comes_near_is_told_before_the_message_is_accepted(
    replica: Replica, store: Redis
) -> None:
    """A refused message may come again under its id."""
    async with replica(messages_per_minute=5) as running, running.socket() as socket:
        frames = [await send_and_wait(socket, f"m{number}") for number in range(6)]
        assert [reported_limits(each) for each in frames[:3]] == [[], [], []]
        assert reported_limits(frames[3]) == [("messages_per_minute", 1)]
        assert reported_limits(frames[4]) == [("messages_per_minute", 0)]
        assert [frame["type"] for frame in frames[4][:2]] == ["limits", "accepted"]
        assert 0 < frames[4][0]["reset_s"] <= 60
        assert (frames[5][-1]["code"], reported_limits(frames[5])) == ("rate_limited", [])
        _, _, metrics = await running.get("/metrics")
        assert 'midstream_refusals_total{reason="rate"} 1.0' in metrics
        await store.delete(*await store.keys("ms:limit:*"))
        again = await send_and_wait(socket, "m5")
        assert again[-1]["type"] == "done"
        assert not any(frame.get("duplicate") for frame in again)


async def test_what_comes_behind_a_message_stays_behind_it(replica: Replica) -> None:
    """A cancel in the same packet finds the message that waits for its count."""
    async with replica(messages_per_minute=9) as running, running.socket() as socket:
        running.engine.script("word " * 20_000)
        await socket.send(type="send", client_msg_id="m1", content="Go on.")
        await socket.send(type="cancel", ref="c")
        frames = await socket.until("done")
    cancelled = next(frame for frame in frames if frame["type"] == "cancelled")
    assert not cancelled["already"]
    assert frames[-1]["reason"] == "cancelled"


async def test_tokens_of_ended_turns_count_for_the_day(replica: Replica, store: Redis) -> None:
    async with replica(tokens_per_day=10) as running, running.socket({"client_id": "ann"}) as socket:
        usage = (await send_and_wait(socket, "m1"))[-1]["usage"]
        spent = usage["prompt_tokens"] + usage["generated_tokens"]
        while not (keys := await store.keys("ms:limit:tokens:*")):
            pass
        assert await store.incrby(keys[0], 0) == spent
        await store.incrby(keys[0], 10)
        refused = (await send_and_wait(socket, "m2"))[-1]
        assert refused["code"] == "rate_limited"
        assert refused["message"].startswith("The limit of 10 is reached (tokens_per_day);")


async def test_limits_that_nobody_can_look_at_keep_nobody_waiting(
    replica: Replica, store: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor accept them: the code that needs the store decides what its loss means for a message."""
    monkeypatch.setattr(quotas, "BACKOFF_S", 3600.0)
    async with replica(messages_per_minute=1) as running, running.socket() as socket:
        shared = running.service._lifecycle._limiters.quota_limiter
        assert shared is not None
        await send_and_wait(socket, "m1")
        with monkeypatch.context() as hasty, stalled(await pid_of(store)):
            hasty.setattr(quotas, "TIMEOUT_S", 0.05)
            saying = asyncio.create_task(send_and_wait(socket, "m2"))
            await eventually(lambda: bool(shared._backed_off))
        assert (await saying)[-1]["type"] == "done"
        assert (await send_and_wait(socket, "m3"))[-1][
            "type"
        ] == "done"  # for a moment the store is not asked again
        shared._backed_off.clear()
        assert (await send_and_wait(socket, "m4"))[-1]["code"] == "rate_limited"


async def test_connections_that_say_nothing_leave_others_a_word(replica: Replica) -> None:
    """Handshakes beyond the number that may wait for their hello are refused, with the time to come back."""
    async with (
        replica(max_pending_connections=2) as running,
        connect(running.ws_url) as silent,
        connect(running.ws_url),
    ):
        with pytest.raises(InvalidStatus) as refused:
            async with connect(running.ws_url):
                pass
        assert refused.value.response.status_code == 503
        assert refused.value.response.headers["Retry-After"] == "1"
        await silent.send('{"type":"hello"}')
        await silent.recv()  # ready: its place is free
        async with running.socket() as socket:
            assert socket.ready
