"""The model writes the title of a new conversation after its first reply, and all attached clients get it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from engine.api import spec_not_served
from engine.scripted import Thought
from sessions.titles import INSTRUCTION
from tests.app.in_process_service import InProcessService, Socket, serving
from tests.app.test_frames import send_and_wait

TITLED = {"features": ["titles"]}


@pytest_asyncio.fixture
async def titling(tmp_path: Path) -> AsyncIterator[InProcessService]:
    """A service whose model writes titles."""
    async with serving(tmp_path, titles="model") as running:
        yield running


async def title_of(socket: Socket, place: str = "default") -> str:
    listed = await socket.ask(type="conversations")
    return next(row["title"] for row in listed["conversations"] if row["conversation_id"] == place)


async def test_the_first_exchange_gives_a_title(titling: InProcessService) -> None:
    titling.engine.script(["They grow slowly."])
    titling.engine.script(['"Slow ', 'oaks."'])
    async with titling.socket(TITLED) as socket:
        await send_and_wait(socket, "How do oaks grow?")
        reported = await socket.next("title")
        assert reported == {"type": "title", "conversation_id": "default", "title": "Slow oaks"}
        assert await title_of(socket) == "Slow oaks"
    requested = titling.engine.requests[-1]
    assert [message.content for message in requested.messages] == [
        "How do oaks grow?",
        "They grow slowly.",
        INSTRUCTION,
    ]
    assert (requested.priority, requested.params.max_new_tokens) == (-1, 24)


async def test_a_model_without_a_switch_for_its_reasoning_may_reason_first(titling: InProcessService) -> None:
    """It is asked to reason least, which no model refuses, and has tokens for it where its reply had reasoning."""
    titling.engine.script([Thought("Trees."), "They grow slowly."])
    titling.engine.script([*(Thought("Hm. ") for _ in range(100)), "Slow oaks"])
    async with titling.socket(TITLED) as socket:
        await send_and_wait(socket, "How do oaks grow?")
        assert (await socket.next("title"))["title"] == "Slow oaks"
    requested = titling.engine.requests[-1]
    assert (requested.spec.reasoning, requested.params.max_new_tokens) == ("least", 24 + 1024)
    facts = msgspec.structs.replace(titling.engine.facts, features=())
    assert spec_not_served(requested.spec, facts) is None


async def test_a_title_that_fails_is_logged(titling: InProcessService) -> None:
    titling.engine.script(["They grow slowly."])
    titling.engine.script("word " * 1_000)
    titling.engine._pace_s = 0.05
    with capture_logs() as log:
        async with titling.socket(TITLED) as socket:
            await send_and_wait(socket, "How do oaks grow?")
            while len(titling.engine.requests) < 2:
                await socket.ask(type="ping")
            titling.engine.fail("It broke.")
            while not (lines := [line for line in log if line["event"] == "no title"]):
                await socket.ask(type="ping")
    assert "It broke." in lines[0]["error"]


async def test_later_exchanges_change_no_title(titling: InProcessService) -> None:
    async with titling.socket(TITLED) as socket:
        titling.engine.script(["Slowly."])
        titling.engine.script(["Oaks"])
        await send_and_wait(socket, "How do oaks grow?")
        await socket.next("title")
        await send_and_wait(socket, "And ashes?")
        assert await title_of(socket) == "Oaks"
    assert len(titling.engine.requests) == 3


async def test_a_reply_that_was_stopped_gives_none(titling: InProcessService) -> None:
    titling.engine._pace_s = 0.002
    titling.engine.script("word " * 20_000)
    async with titling.socket(TITLED) as socket:
        await socket.send(type="send", client_msg_id="m", content="Go on.")
        await socket.next("delta")
        await socket.ask(type="cancel")
        await socket.until("done")
        assert await title_of(socket) == "Go on."
    assert len(titling.engine.requests) == 1


async def test_who_does_not_know_titles_is_told_none(titling: InProcessService) -> None:
    titling.engine._pace_s = 0.002
    titling.engine.script("word " * 100)
    titling.engine.script(["Oaks"])
    person = {"client_id": "ann"}
    async with titling.socket(TITLED | person) as knows, titling.socket(person) as plain:
        assert "titles" in knows.ready["features"]
        await plain.send(type="send", client_msg_id="m", content="How do oaks grow?")
        await plain.next("delta")
        await knows.ask(type="history")
        await knows.next("title")
        await plain.send(type="ping")
        assert "title" not in {frame["type"] for frame in await plain.until("pong")}


@pytest.mark.parametrize("written", ["", "***"])
async def test_where_the_model_writes_none_the_first_words_stay(
    titling: InProcessService, written: str
) -> None:
    async with titling.socket(TITLED) as socket:
        titling.engine.script(["Slowly."])
        titling.engine.script([written] if written else [])
        await send_and_wait(socket, "How do oaks grow?")
        await send_and_wait(socket, "And ashes?")
        assert await title_of(socket) == "How do oaks grow?"
