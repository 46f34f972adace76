"""Responses on two replicas of one store: a response of one replica is followed, continued and stopped on the other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from engine.scripted.engine import ScriptedEngine
from tests.app.in_process import Running, serving
from tests.app.test_responses_kept import ask, asked, client_of, read

REPLY = "One two three four five."


@pytest.fixture
async def home(tmp_path: Path, store_url: str) -> AsyncIterator[Running]:
    """A replica whose engine the test moves."""
    async with serving(tmp_path, ScriptedEngine(by_hand=True, reply=REPLY), redis_url=store_url) as running:
        yield running


@pytest.fixture
async def abroad(tmp_path: Path, store_url: str, home: Running) -> AsyncIterator[Running]:
    """Another replica on the same store, which answers at once."""
    async with serving(tmp_path, redis_url=store_url) as running:
        yield running


async def begun(sdk: AsyncOpenAI, home: Running, **more: Any) -> Any:
    response = await ask(sdk, "Count.", background=True, **more)
    await asked(home, 1)
    home.engine.step()
    return response


async def test_a_response_is_followed_and_stopped_from_another_replica(
    home: Running, abroad: Running
) -> None:
    async with client_of(home) as here, client_of(abroad) as there:
        response = await begun(here, home)
        seen = ""
        async for event in await there.responses.retrieve(response.id, stream=True):
            seen += event.delta if event.type == "response.output_text.delta" else ""
            if "two" in seen:
                break
            if seen:
                home.engine.step()
        stopped = await there.responses.cancel(response.id)
        assert stopped.status == "cancelled"
        assert stopped.output_text.startswith(seen)
        assert home.engine.statistics().cancels == 1
        assert (await here.responses.retrieve(response.id)).output_text == stopped.output_text
        await ask(there, "Go on.", previous_response_id=response.id)
        assert read(abroad) == [("user", "Count."), ("assistant", stopped.output_text), ("user", "Go on.")]


async def test_whoever_leaves_one_replica_stops_what_another_writes_for_him(
    home: Running, abroad: Running
) -> None:
    """A message behind a running turn runs on the same replica."""
    async with client_of(home) as here, client_of(abroad) as there:
        await begun(here, home, conversation="mine")
        stream = await ask(there, "And?", conversation="mine", stream=True)
        response_id = (await anext(aiter(stream))).response.id  # type: ignore[call-overload]
        await stream.close()  # type: ignore[attr-defined]
        while (response := await there.responses.retrieve(response_id)).status == "in_progress":
            pass
        assert response.status == "cancelled"
        assert len(home.engine.requests) == 1
