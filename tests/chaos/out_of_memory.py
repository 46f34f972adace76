"""A store without memory while clients talk: new messages are refused, replies go on, and nothing sent is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from redis.asyncio import Redis

from tests.chaos.client_group import ClientGroup, gateways, run_clients
from tests.chaos.report import Finding, Part
from tests.chaos.scenario import Scenario
from tests.chaos.store_server import StoreServer, store_server
from tests.store_faults import without_memory


def measure(scenario: Scenario) -> Sequence[Finding]:
    """Take the memory away and give it back, several times."""
    with store_server(scenario.folder / "store") as store:
        return asyncio.run(_measure(scenario, store))


async def _measure(scenario: Scenario, store: StoreServer) -> Sequence[Finding]:
    environ = {"MIDSTREAM_REDIS_URL": store.url}

    async def shortages(client_group: ClientGroup) -> None:
        async with Redis(port=store.port) as client:
            for number in range(scenario.scale.failovers):
                async with without_memory(client):
                    await asyncio.sleep(scenario.scale.weather_s)
                await client_group.go_on()
                scenario.log(f"  {number + 1}: the store had no memory, {client_group.ended} replies")

    async with gateways(scenario, environ, environ) as servers:
        client_group, accounts = await run_clients(scenario, [server.ws_url for server in servers], shortages)
    return tuple(
        client_group.findings(
            Part.OUT_OF_MEMORY, "the store has no memory", accounts, scenario.scale.failovers
        )
    )
