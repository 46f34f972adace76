"""Responses on two replicas of one store: a client that leaves one replica stops what the other one writes for it."""

from __future__ import annotations

from pathlib import Path

from engine.scripted import ScriptedEngine
from tests.app.in_process_service import serving
from tests.app.openai_client import client_of, create_response, wait_for_requests


async def test_a_client_that_leaves_one_replica_stops_what_another_writes_for_it(
    tmp_path: Path, store_url: str
) -> None:
    """A message behind a running turn runs on the same replica."""
    async with (
        serving(tmp_path / "one", ScriptedEngine(by_hand=True), redis_url=store_url) as first_replica,
        serving(tmp_path / "two", redis_url=store_url) as second_replica,
        client_of(first_replica) as here,
        client_of(second_replica) as there,
    ):
        running = await create_response(here, "Count.", conversation="mine", stream=True)
        await wait_for_requests(first_replica, 1)
        first_replica.engine.step()
        stream = await create_response(there, "And?", conversation="mine", stream=True)
        response_id = (await anext(aiter(stream))).response.id  # type: ignore[call-overload]
        await stream.close()  # type: ignore[attr-defined]
        while (response := await there.responses.retrieve(response_id)).status == "in_progress":
            pass
        assert response.status == "cancelled"
        assert len(first_replica.engine.requests) == 1
        await running.close()  # type: ignore[attr-defined]
