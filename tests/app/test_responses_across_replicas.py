"""Responses on two replicas of one store: a response of one replica is followed, continued and stopped on the other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from engine.scripted import ScriptedEngine
from tests.app.in_process_service import InProcessService, serving
from tests.app.openai_client import client_of, create_response, wait_for_requests
from tests.app.test_stored_responses import read

REPLY = "One two three four five."


@pytest.fixture
async def first_replica(tmp_path: Path, store_url: str) -> AsyncIterator[InProcessService]:
    """A replica whose engine the test moves."""
    async with serving(tmp_path, ScriptedEngine(by_hand=True, reply=REPLY), redis_url=store_url) as running:
        yield running


@pytest.fixture
async def second_replica(
    tmp_path: Path, store_url: str, first_replica: InProcessService
) -> AsyncIterator[InProcessService]:
    """Another replica on the same store, which answers at once."""
    async with serving(tmp_path, redis_url=store_url) as running:
        yield running


async def start_background(sdk: AsyncOpenAI, first_replica: InProcessService, **more: Any) -> Any:
    response = await create_response(sdk, "Count.", background=True, **more)
    await wait_for_requests(first_replica, 1)
    first_replica.engine.step()
    return response


async def test_a_response_is_followed_and_stopped_from_another_replica(
    first_replica: InProcessService, second_replica: InProcessService
) -> None:
    async with client_of(first_replica) as here, client_of(second_replica) as there:
        response = await start_background(here, first_replica)
        seen = ""
        async for event in await there.responses.retrieve(response.id, stream=True):
            seen += event.delta if event.type == "response.output_text.delta" else ""
            if "two" in seen:
                break
            if seen:
                first_replica.engine.step()
        stopped = await there.responses.cancel(response.id)
        assert stopped.status == "cancelled"
        assert stopped.output_text.startswith(seen)
        assert first_replica.engine.statistics().cancels == 1
        assert (await here.responses.retrieve(response.id)).output_text == stopped.output_text
        await create_response(there, "Go on.", previous_response_id=response.id)
        assert read(second_replica) == [
            ("user", "Count."),
            ("assistant", stopped.output_text),
            ("user", "Go on."),
        ]


async def test_whoever_leaves_one_replica_stops_what_another_writes_for_him(
    first_replica: InProcessService, second_replica: InProcessService
) -> None:
    """A message behind a running turn runs on the same replica."""
    async with client_of(first_replica) as here, client_of(second_replica) as there:
        await start_background(here, first_replica, conversation="mine")
        stream = await create_response(there, "And?", conversation="mine", stream=True)
        response_id = (await anext(aiter(stream))).response.id  # type: ignore[call-overload]
        await stream.close()  # type: ignore[attr-defined]
        while (response := await there.responses.retrieve(response_id)).status == "in_progress":
            pass
        assert response.status == "cancelled"
        assert len(first_replica.engine.requests) == 1
