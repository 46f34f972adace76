"""AI SDK behavior that no transcript (`tests/transcripts/ai-sdk`) covers: stops at what was seen, shutdown, revoked keys."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from app.keys import add_key, revoke_key
from engine.scripted import ScriptedEngine
from tests.app.ai_sdk_client import CHAT, AiSdkChat, text_in, user
from tests.app.in_process_service import InProcessService, serving
from tests.app.openai_client import wait_for_requests
from tests.connections.aisdk.stream_checker import check


@pytest.fixture
async def by_hand(tmp_path: Path) -> AsyncIterator[InProcessService]:
    """A service whose engine the test steps."""
    async with serving(tmp_path, ScriptedEngine(by_hand=True, reply="one two three four")) as service:
        yield service


async def test_a_stop_keeps_what_its_reader_saw(by_hand: InProcessService) -> None:
    async with (
        AiSdkChat(by_hand).sent(user("Count!"), on_disconnect="continue") as answer,
        httpx.AsyncClient(base_url=by_hand.url) as client,
    ):
        await wait_for_requests(by_hand)
        by_hand.engine.step(2)
        assert (await answer.next("text-delta"))["delta"] == "one two"
        refused = await client.post(f"{CHAT}/chat1/stop?seen_off=-1")
        assert (refused.status_code, refused.text) == (400, "`seen_off` must be at least 0.")
        stopped = await client.post(f"{CHAT}/chat1/stop?seen_off=5")
        assert stopped.json()["already"] is False
        chunks = await answer.rest()
    assert chunks[-1] == {"type": "abort", "reason": "client"}
    assert text_in((await AiSdkChat(by_hand).messages())[1]) == "one t"
    assert by_hand.engine.statistics().steps_after_cancel == 0


async def test_a_server_that_stops_says_so_in_the_stream(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, ScriptedEngine(by_hand=True)) as running,
        AiSdkChat(running).sent(user("Count!")) as answer,
    ):
        await wait_for_requests(running)
        running.service.stop()
        chunks = await answer.rest()
    check(chunks)
    assert answer.http.headers["x-vercel-ai-ui-message-stream"] == "v1"
    assert chunks[-1]["type"] == "error"


async def test_a_key_that_is_revoked_ends_its_stream_with_a_sentence(keys: Path, tmp_path: Path) -> None:
    async with serving(tmp_path, ScriptedEngine(by_hand=True), api_keys=str(keys)) as running:
        chat = AiSdkChat(running, authorization=f"Bearer {add_key(keys, 'ann')}")
        async with chat.sent(user("Count!")) as answer:
            await wait_for_requests(running)
            running.engine.step(1)
            chunks = [await answer.next() for _ in range(4)]
            revoke_key(keys, "ann")
            assert (await running.get(f"{CHAT}/c/messages"))[0] == 401
            chunks += await answer.rest()
    check(chunks)
    assert chunks[-1] == {"type": "error", "errorText": "The key was revoked."}
