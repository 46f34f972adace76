"""The store has trouble while clients talk: it stalls, is parted from a replica, or fails over.

Conversations go on after each trouble, and nothing acknowledged is lost or doubled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial

import msgspec

from sessions.store.ownership import LEASE_S
from tests.bench.report import Measured, at_most, none, say
from tests.chaos.chat_client import ClientGroup, gateways, run_clients
from tests.chaos.proxy import FAIR, Proxy, Weather, proxy
from tests.chaos.scenario import Scenario
from tests.chaos.store_server import store_server
from tests.sessions import server_group
from tests.sessions.server_group import Node, switch_roles, take_over, watched_by_sentinel, with_replicas
from tests.store_faults import stalled

WEATHERS = {
    "lags": Weather(delay_s=0.05),
    "trickles": Weather(delay_s=0.002, piece_bytes=64),
    "loses packets": Weather(delay_s=0.3),  # each one comes when it is sent again
}
TROUBLES = (*WEATHERS, "is cut", "is out of reach", "stands still")
REPLICAS = 3
CLOCK_OFF_S = -30.0
"""Seconds by which the last replica's clock is wrong: clocks must not be compared."""
DISK = {"appendonly": "yes", "appendfsync": "everysec"}
WATCH = ("down-after-milliseconds {} 2000", "failover-timeout {} 5000")
SENTINELS = 3
REFUSED_S = at_most(5.0)
"""How long messages may be refused, or wait, in a planned failover."""


async def network(scenario: Scenario) -> Sequence[Measured]:
    """Stall the store; then spoil one link after the other, of a replica with the store or with its clients, while others work on.

    A hang for longer than a lease is the hardest: other replicas close its turns, and it learns so later.
    """
    scale, dropped, draw = scenario.scale, 0, scenario.draw()
    async with AsyncExitStack() as stack:
        store = stack.enter_context(store_server(scenario.folder / "store"))
        stores = [await stack.enter_async_context(proxy(store.port)) for _ in range(REPLICAS)]
        environs = ({"MIDSTREAM_REDIS_URL": f"redis://127.0.0.1:{way.port}"} for way in stores)
        clocks = (*(0.0,) * (REPLICAS - 1), CLOCK_OFF_S)
        servers = await stack.enter_async_context(gateways(scenario, *environs, clocks=clocks))
        clients = [await stack.enter_async_context(proxy(server.port)) for server in servers]

        async def troubles(group: ClientGroup) -> None:
            nonlocal dropped
            before = sum(one.device.losses for one in group.chat_clients)
            for _ in range(scale.stalls):
                with stalled(store.process.pid):
                    await asyncio.sleep(scale.stall_s)
                await group.go_on()
            dropped = sum(one.device.losses for one in group.chat_clients) - before
            for number in range(scale.partitions):
                kind, ways = TROUBLES[number // 2 % len(TROUBLES)], (stores, clients)[number % 2]
                say(f"  {number + 1}: a link {kind}, {group.ended} replies")
                lasts_s = 1.5 * LEASE_S / scale.hurry if kind == "stands still" else scale.weather_s
                await _spoil(draw.choice(ways), kind, lasts_s)
                await group.go_on()

        urls = [f"ws://127.0.0.1:{way.port}/v1/ws" for way in clients]
        group, accounts = await run_clients(scenario, urls, troubles)
    label = f"a store that stands still for {scale.stall_s:g} s: sockets dropped"
    stalls = {"stalls": float(scale.stalls)}
    return [
        Measured(label=label, value=float(dropped), readings=stalls, target=at_most(0)),
        *group.findings(f"links of {REPLICAS} replicas are spoiled", accounts, scale.partitions),
    ]


async def _spoil(way: Proxy, kind: str, lasts_s: float) -> None:
    """Have a network be so for a while."""
    if kind in WEATHERS:
        way.there = way.back = WEATHERS[kind]
    elif kind == "stands still":
        way.stall()
    else:
        way.refuse(refuse=kind == "is out of reach")
        way.cut()
    try:
        await asyncio.sleep(lasts_s)
    finally:
        way.there = way.back = FAIR
        way.refuse(refuse=False)
        way.flow()


async def _cluster(
    scenario: Scenario, name: str, fail_over: Callable[[Node, Node], Awaitable[None]]
) -> Sequence[Measured]:
    """Have replicas of a cluster take their masters' places, one after the other, each while its replica lives."""
    draw = scenario.draw()
    async with (
        server_group.cluster(scenario.folder / "masters", **DISK) as masters,
        with_replicas(masters, scenario.folder / "replicas", **DISK) as replicas,
    ):
        shards = list(zip(masters, replicas, strict=True))

        async def replace() -> None:
            place = draw.randrange(len(shards))
            await fail_over(*shards[place])
            shards[place] = shards[place][::-1]

        url = f"redis+cluster://127.0.0.1:{masters[0].port},127.0.0.1:{replicas[1].port}"
        return await _failovers(scenario, name, url, replace)


async def _sentinel(scenario: Scenario, name: str) -> Sequence[Measured]:
    """Kill the master that Sentinels watch, or have them switch to its replica, several times."""
    folder = scenario.folder / "group"
    async with watched_by_sentinel(folder, watch=WATCH, sentinels=SENTINELS, **DISK) as group:

        async def replace() -> None:
            if name == "sentinel-planned":
                await group.switch()
            else:
                await take_over(group.master, group.replica)
                group.master, group.replica = group.replica, group.master

        return await _failovers(scenario, name, group.url, replace)


async def _failovers(
    scenario: Scenario, name: str, url: str, replace: Callable[[], Awaitable[None]]
) -> list[Measured]:
    """Replace masters while clients talk.

    With one replica waited for (`MIDSTREAM_STORE_DURABILITY=replicated`) no failover may lose an acknowledged message. A planned
    failover may not with the default either. What a dead master takes along at the default is measured without a target.
    """
    times, is_planned = scenario.scale.failovers, name.endswith("planned")
    durability = "memory" if "-" in name else "replicated"
    environ = {"MIDSTREAM_REDIS_URL": url, "MIDSTREAM_STORE_DURABILITY": durability}

    async def troubles(group: ClientGroup) -> None:
        for number in range(times):
            await replace()
            await group.go_on()
            say(f"  {number + 1}: a master was replaced, {group.ended} replies")

    async with gateways(scenario, environ, environ) as servers:
        group, accounts = await run_clients(scenario, [server.ws_url for server in servers], troubles)
    label = f"a master {'changes places' if is_planned else 'dies'} ({name})"
    ends = ((one, done["reason"]) for one, done in group.ends.items())
    cut = [f"{one}: {reason}" for one, reason in ends if reason in ("interrupted", "error")]
    longest = max(one.longest_wait_s for one in group.chat_clients)
    waited = f"{label}: longest wait for an acknowledgement"
    found = [
        *group.findings(label, accounts, times),
        none(f"{label}: replies interrupted", cut),
        Measured(label=waited, value=longest, unit="s", target=REFUSED_S if is_planned else None),
    ]
    if is_planned or durability == "replicated":
        return found
    return [msgspec.structs.replace(one, target=None) for one in found]


FAILOVERS: dict[str, Callable[[Scenario], Awaitable[Sequence[Measured]]]] = {
    "cluster": partial(_cluster, name="cluster", fail_over=take_over),
    "cluster-planned": partial(_cluster, name="cluster-planned", fail_over=switch_roles),
    "cluster-unconfirmed": partial(_cluster, name="cluster-unconfirmed", fail_over=take_over),
    "sentinel": partial(_sentinel, name="sentinel"),
    "sentinel-planned": partial(_sentinel, name="sentinel-planned"),
    "sentinel-unconfirmed": partial(_sentinel, name="sentinel-unconfirmed"),
}
