"""The AI SDK's door: chats of `useChat` over HTTP and over a WebSocket, as conversations of their owner."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.scripted.engine import ScriptedEngine
from engine.scripted.steps import Call, Thought
from tests.app.ai_sdk import CHAT, Chat, text_in, text_of, user, wire
from tests.app.in_process import Running, serving
from tests.connections.aisdk.rules import check

WEATHER = [{"name": "weather", "parameters": {"type": "object"}}]


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine(by_hand=True)


@pytest.fixture
async def running(tmp_path: Path, engine: ScriptedEngine) -> AsyncIterator[Running]:
    """A service whose engine steps when it is told to."""
    async with serving(tmp_path, engine) as service:
        yield service


async def test_a_message_is_answered_in_chunks_and_kept(tmp_path: Path) -> None:
    engine = ScriptedEngine(reply="Two words.")
    async with serving(tmp_path, engine) as running:
        chat = Chat(running)
        engine.script([Thought("Hm."), "Good", " day."])
        chunks = await chat.say("Hello!")
        again = await chat.say("Hello!")
        check(chunks), check(again)
        kept = await chat.messages()
    assert [chunk["type"] for chunk in chunks][:5] == [
        "start", "start-step", "reasoning-start", "reasoning-delta", "reasoning-end",
    ]
    assert (text_of(chunks), text_of(chunks, "reasoning"), chunks[-1]["finishReason"]) == ("Good day.", "Hm.", "stop")
    assert (text_of(again), len(engine.requests)) == ("Good day.", 1)
    assert [(message["role"], text_in(message)) for message in kept] == [("user", "Hello!"), ("assistant", "Good day.")]
    assert kept[1]["id"] == chunks[0]["messageId"]
