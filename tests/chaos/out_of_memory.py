"""A store without memory while clients talk: new messages are refused, replies go on, and nothing sent is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from redis.asyncio import Redis

from tests.chaos.company import Company, gateways, talk_through
from tests.chaos.report import Finding, Part
from tests.chaos.stage import Stage
from tests.chaos.store_server import StoreServer, store_server
from tests.refusing_store import without_memory


def measure(stage: Stage) -> Sequence[Finding]:
    """Take the memory away and give it back, several times."""
    with store_server(stage.folder / "store") as store:
        return asyncio.run(_measure(stage, store))


async def _measure(stage: Stage, store: StoreServer) -> Sequence[Finding]:
    environ = {"MIDSTREAM_REDIS_URL": store.url}

    async def shortages(company: Company) -> None:
        async with Redis(port=store.port) as client:
            for number in range(stage.scale.failovers):
                async with without_memory(client):
                    await asyncio.sleep(stage.scale.weather_s)
                await company.go_on()
                stage.say(f"  {number + 1}: the store had no memory, {company.ended} replies")

    async with gateways(stage, environ, environ) as servers:
        company, accounts = await talk_through(stage, [server.ws_url for server in servers], shortages)
    return tuple(
        company.findings(Part.OUT_OF_MEMORY, "the store has no memory", accounts, stage.scale.failovers)
    )
