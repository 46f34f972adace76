"""Partitions: one replica's link to the store is cut, slow, trickles or hangs, while the other replicas work on.

A hang for longer than a lease is the hardest: other replicas close its turns, and it learns so later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack

from sessions.store.ownership import LEASE_S
from tests.chaos.client_group import ClientGroup, gateways, run_clients
from tests.chaos.proxy import FAIR, Proxy, Weather, proxy
from tests.chaos.report import Finding, Part
from tests.chaos.scenario import Scenario
from tests.chaos.store_server import StoreServer, store_server

REPLICAS = 3
LAG = Weather(delay_s=0.05)
TRICKLE = Weather(delay_s=0.002, piece_bytes=64)
LOSS = Weather(delay_s=0.3)
"""A network that loses packets: each one comes when it is sent again."""
KINDS = ("lags", "trickles", "loses packets", "is cut", "is out of reach", "stands still")


def measure(scenario: Scenario) -> Sequence[Finding]:
    """Play each kind of trouble on one replica after the other."""
    with store_server(scenario.folder / "store") as store:
        return asyncio.run(_measure(scenario, store))


async def _measure(scenario: Scenario, store: StoreServer) -> Sequence[Finding]:
    draw = scenario.draw()
    async with AsyncExitStack() as stack:
        ways = [await stack.enter_async_context(proxy(store.port)) for _ in range(REPLICAS)]
        environs = ({"MIDSTREAM_REDIS_URL": f"redis://127.0.0.1:{way.port}"} for way in ways)
        servers = await stack.enter_async_context(gateways(scenario, *environs))

        async def troubles(client_group: ClientGroup) -> None:
            for number in range(scenario.scale.partitions):
                kind, way = KINDS[number % len(KINDS)], draw.choice(ways)
                scenario.log(
                    f"  {number + 1}: one replica's way to the store {kind}, {client_group.ended} replies"
                )
                await _trouble(way, kind, scenario)
                await client_group.go_on()

        urls = [server.ws_url for server in servers]
        client_group, accounts = await run_clients(scenario, urls, troubles)
    label = f"one of {REPLICAS} replicas is parted from the store"
    return tuple(client_group.findings(Part.PARTITIONS, label, accounts, scenario.scale.partitions))


async def _trouble(way: Proxy, kind: str, scenario: Scenario) -> None:
    lasts = scenario.scale.weather_s
    match kind:
        case "is cut":
            way.cut()
        case "is out of reach":
            way.refuse()
            way.cut()
        case "stands still":
            way.stall()
            lasts = 1.5 * LEASE_S / scenario.scale.hurry
        case _:
            way.there = way.back = {"lags": LAG, "trickles": TRICKLE, "loses packets": LOSS}[kind]
    try:
        await asyncio.sleep(lasts)
    finally:
        way.there = way.back = FAIR
        way.refuse(refuse=False)
        way.flow()
