"""AI SDK behavior that no transcript (`tests/transcripts/ai-sdk`) covers: racing aborts, shutdown, revoked keys."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from app.keys import add_key, revoke_key
from engine.scripted import Call, ScriptedEngine
from tests.app.ai_sdk_client import CHAT, AiSdkChat, Chunk, ai_sdk_socket, text_in, text_of, user
from tests.app.in_process_service import InProcessService, serving
from tests.app.openai_client import wait_for_requests
from tests.connections.aisdk.stream_checker import check
from tests.jwt_signing import SECRET, jwk, provider, rsa_key, token

WEATHER: Chunk = {
    "tools": {"weather": {"description": "Tells the weather.", "parameters": {"type": "object"}}}
}


@pytest.fixture
async def by_hand(tmp_path: Path) -> AsyncIterator[InProcessService]:
    """A service whose engine the test steps."""
    async with serving(tmp_path, ScriptedEngine(by_hand=True, reply="one two three four")) as service:
        yield service


@pytest.mark.parametrize("answered", [0, 1, 2])
async def test_an_abort_while_calls_are_answered_ends_the_turn_that_goes_on(
    by_hand: InProcessService, answered: int
) -> None:
    """Of that turn nothing was seen, and nothing is kept. `answered`: of two calls, when the abort comes."""
    by_hand.engine.script(["I look.", Call("weather"), Call("weather", '{"city":"Bonn"}')])
    by_hand.engine.script("Rain in both.")
    ann = {"client_id": "ann", "features": ["tools"]}
    async with ai_sdk_socket(by_hand, "?client_id=ann") as opened, by_hand.socket(ann) as device:
        await opened.send("r1", user("Weather?"), body=WEATHER)
        await wait_for_requests(by_hand)
        by_hand.engine.step(10)
        call_chunks = await opened.until_end("r1")
        await device.send(type="history", conversation_id="chat1")
        await device.next("history")
        done = {"type": "tool-weather", "state": "output-available", "output": "grey"}
        calls = [one["toolCallId"] for one in call_chunks if one["type"] == "tool-input-available"]
        parts = [done | {"toolCallId": call} for call in calls]
        reply = {"id": call_chunks[0]["messageId"], "role": "assistant", "parts": parts}
        await opened.send("r2", reply, body=WEATHER)
        for _ in range(answered):
            await opened.next("r2", "tool-output-available")
        await opened.put(type="abort", requestId="r2")
        end = await device.next("done")
    assert end["follows"] == call_chunks[0]["messageId"]
    assert (end["reason"], end["cancel"]["cause"], end["chars"]) == ("cancelled", "client", 0)
    kept = await AiSdkChat(by_hand, query="?client_id=ann").messages()
    assert text_in(kept[1]) == "I look."
    assert by_hand.engine.statistics().steps_after_cancel == 0


async def test_an_abort_counts_while_the_token_of_its_message_is_checked(tmp_path: Path) -> None:
    def named(token: str) -> Chunk:
        return {"authorization": f"Bearer {token}"}

    checked = [named(token(rsa_key(), "RS256", kid="k", jti=name)) for name in ("one", "two")]
    with provider(jwk(rsa_key(), kid="k")) as published:
        engine = ScriptedEngine(by_hand=True)
        async with (
            serving(tmp_path, engine, jwks_url=published.url, jwt_secret=SECRET) as running,
            ai_sdk_socket(running) as opened,
        ):
            resume: Chunk = {"type": "resume", "id": "chat1", "body": {}}
            await opened.put(**resume, requestId="r1", headers=named(token()))
            await opened.next("r1", "no-active")
            published.answers.clear()
            await opened.send("r2", user("Count!"), headers=checked[0])
            await opened.put(type="abort", requestId="r2")
            await opened.put(**resume, requestId="r3", headers=checked[1])
            await opened.put(type="send", requestId="r4")
            await opened.next("r4", "error")  # what came before was heard
            published.answers.set()
            assert (await opened.next("r3"))["type"] == "no-active"
            await opened.send("r5", user("Hello!", "m2"), headers=checked[1])
            await wait_for_requests(running)
    assert [request.messages[-1].content for request in engine.requests] == ["Hello!"]


async def test_a_resume_that_is_taken_back_at_once_stops_nothing(by_hand: InProcessService) -> None:
    """React's strict mode runs effects twice, and undoes the first run."""
    async with ai_sdk_socket(by_hand) as opened:
        await opened.send("r1", user("Count!"))
        await wait_for_requests(by_hand)
        await opened.put(type="resume", requestId="r2", id="chat1", headers={}, body={})
        await opened.put(type="abort", requestId="r2")
        by_hand.engine.step(10)
        assert text_of(await opened.until_end("r1")) == "one two three four"


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
