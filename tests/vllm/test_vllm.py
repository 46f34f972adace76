"""The real vLLM with the demo model, started by a real gateway: `make test-vllm`."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import AsyncExitStack

import httpx
import pytest

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
from tests.vllm.conftest import START_S, LaunchedVllm

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(2 * START_S)]

LONG = "Count from 1 to 500."
GREEDY = {"temperature": 0}
IDLE_S = 1.0


async def idle_after(vllm: LaunchedVllm, within_s: float) -> float:
    """The seconds until it has nothing to do by its own word."""
    began = time.perf_counter()
    async with asyncio.timeout(within_s):
        while not vllm.is_idle():  # noqa: ASYNC110 - another process has no event for it
            await asyncio.sleep(0.01)
    return time.perf_counter() - began


async def gone(vllm: LaunchedVllm, within_s: float = 10.0) -> bool:
    """Whether none of its processes is left after a while."""
    deadline = time.monotonic() + within_s
    while vllm.left() and time.monotonic() < deadline:  # noqa: ASYNC110 - as above
        await asyncio.sleep(0.05)
    return not vllm.left()


async def counting(client: WebSocketClient) -> str:
    """A long reply that has begun; gives its turn."""
    accepted = await client.send_message(LONG, params=GREEDY)
    await client.until(has_text(accepted["turn_id"], 20))
    return str(accepted["turn_id"])


async def test_it_chats_and_remembers(gateway: ServerProcess, vllm: LaunchedVllm, client_id: str) -> None:
    async with connect_client(gateway.ws_url, client_id) as alice:
        await alice.chat("My name is Ada.", params=GREEDY)
        text, done = await alice.chat("What is my name?", params=GREEDY)
    assert "Ada" in text
    assert done["reason"] == "stop"
    assert done["usage"]["prompt_tokens"] > 20
    assert vllm.figure("request_success_total") >= 1
    assert_no_hole(alice.seen)


async def test_a_stop_leaves_it_idle_at_once(
    gateway: ServerProcess, vllm: LaunchedVllm, client_id: str
) -> None:
    """How many tokens it made after the stop it does not tell, and so nobody is told."""
    async with connect_client(gateway.ws_url, client_id) as alice:
        turn = await counting(alice)
        assert vllm.figure("num_requests_running") == 1
        await alice.put(type="cancel", turn_id=turn, ref="stop")
        done = await alice.until(is_end_of(turn))
        assert await idle_after(vllm, 5 * IDLE_S) < IDLE_S
        history = await alice.history()
        _, after = await alice.chat("Hello!", params=GREEDY)
    assert done["reason"] == "cancelled"
    assert done["cancel"]["steps_after"] is None
    assert done["usage"]["generated_tokens"] >= 5
    assert history[-1]["content"] == text_of(alice.seen, turn)
    assert after["reason"] == "stop"


async def test_what_it_turns_away_is_told_to_come_again(
    gateway: ServerProcess, vllm: LaunchedVllm, client_id: str
) -> None:
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(connect_client(gateway.ws_url, f"{client_id}-{number}"))
            for number in range(2)
        ]
        turns = [await counting(client) for client in clients]
        third = await stack.enter_async_context(connect_client(gateway.ws_url, f"{client_id}-third"))
        refused = await refused_turn(third)
        requested = {"model": "midstream-demo", "messages": [{"role": "user", "content": LONG}]}
        async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
            answer = await http.post(f"{gateway.url}/v1/chat/completions", json=requested)
        for client, turn in zip(clients, turns, strict=True):
            await client.put(type="cancel", turn_id=turn)
            await client.until(is_end_of(turn))
        await idle_after(vllm, 10)
        _, after = await third.chat("Hello!", params=GREEDY)
    assert refused["code"] == "overloaded"
    assert refused["retry_after_ms"] > 0
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "overloaded")
    assert int(answer.headers["Retry-After"]) > 0
    assert after["reason"] == "stop"


async def refused_turn(client: WebSocketClient) -> Frame:
    """Why a message got no reply: at once, or at its turn's end."""
    answer = await client.send_message(LONG, params=GREEDY)
    if answer["type"] == "error":
        return answer
    done = await client.until(is_end_of(answer["turn_id"]))
    return dict(done["error"])


async def test_killed_in_the_middle_of_a_reply_it_is_started_again(
    gateway: ServerProcess, vllm: LaunchedVllm, client_id: str
) -> None:
    async with connect_client(gateway.ws_url, client_id) as alice:
        turn = await counting(alice)
        os.kill(vllm.server, signal.SIGKILL)
        done = await alice.until(is_end_of(turn))
        assert await gone(vllm)
        _, after = await alice.chat("Hello!", params=GREEDY)
        history = await alice.history()
    assert done["reason"] == "interrupted"
    assert done["error"]["code"] == "engine_unavailable"
    assert "vllm" in done["error"]["message"].lower()
    assert after["reason"] == "stop"
    assert history[1]["content"] == text_of(alice.seen, turn)
    again = LaunchedVllm(gateway)
    assert not set(again.pids) & set(vllm.pids)
    assert again.url != vllm.url
    assert_no_hole(alice.seen)


async def test_its_engine_killed_alone_takes_it_down_and_it_is_started_again(
    gateway: ServerProcess, vllm: LaunchedVllm, client_id: str
) -> None:
    """The server lives on for a moment without the process that computes."""
    async with connect_client(gateway.ws_url, client_id) as alice:
        turn = await counting(alice)
        os.kill(vllm.core, signal.SIGKILL)
        done = await alice.until(is_end_of(turn))
        _, after = await alice.chat("Hello!", params=GREEDY)
    assert (done["reason"], done["error"]["code"]) == ("interrupted", "engine_unavailable")
    assert after["reason"] == "stop"


async def test_a_restart_leaves_nothing_and_keeps_the_conversation(
    gateway: ServerProcess, vllm: LaunchedVllm, client_id: str
) -> None:
    async with connect_client(gateway.ws_url, client_id) as alice:
        await alice.chat("My name is Ada.", params=GREEDY)
    gateway.stop()
    assert await gone(vllm, 0.0)
    gateway.start()
    async with connect_client(gateway.ws_url, client_id) as alice:
        text, _ = await alice.chat("What is my name?", params=GREEDY)
    assert "Ada" in text


async def test_a_gateway_that_is_killed_leaves_nothing_of_it(
    gateway: ServerProcess, vllm: LaunchedVllm
) -> None:
    gateway.kill()
    assert await gone(vllm)


async def test_it_serves_what_our_engine_does_not(adapted: ServerProcess, client_id: str) -> None:
    """One model over two devices, and a LoRA adapter, which is the model that replies are asked of."""
    async with connect_client(adapted.ws_url, client_id) as alice:
        await alice.chat("My name is Ada.", params=GREEDY)
        text, _ = await alice.chat("What is my name?", params=GREEDY)
    assert "Ada" in text
    assert sum("Worker_TP" in title for title in LaunchedVllm(adapted).titles) == 2
