"""Failovers of a Redis Cluster and of a group with Sentinels, planned and unplanned, while clients talk.

With one replica waited for (`MIDSTREAM_STORE_DURABILITY=replicated`) no failover may lose an acknowledged message. A planned
failover may not with the default either. What a dead master takes along at the default is measured without a target.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from tests.bench.engine.report import Target
from tests.chaos.client_group import ClientGroup, gateways, none, run_clients
from tests.chaos.report import Finding, Part
from tests.chaos.scenario import Scenario
from tests.sessions import server_group
from tests.sessions.server_group import Node, switch_roles, take_over, watched_by_sentinel, with_replicas

DISK = {"appendonly": "yes", "appendfsync": "everysec"}
WATCH = ("down-after-milliseconds {} 2000", "failover-timeout {} 5000")
SENTINELS = 3
REFUSED_S = 5.0
"""How long messages may be refused, or wait, in a planned failover."""

Failover = Callable[[Node, Node], Awaitable[None]]


def cluster(scenario: Scenario) -> Sequence[Finding]:
    """Kill the masters of a cluster, one after the other, each while its replica lives."""
    return asyncio.run(_cluster(scenario, Part.CLUSTER, take_over, "replicated"))


def cluster_unconfirmed(scenario: Scenario) -> Sequence[Finding]:
    """The same, with no replica waited for."""
    return asyncio.run(_cluster(scenario, Part.CLUSTER_UNCONFIRMED, take_over, "memory"))


def cluster_planned(scenario: Scenario) -> Sequence[Finding]:
    """Have replicas of a cluster take their masters' places."""
    return asyncio.run(_cluster(scenario, Part.CLUSTER_PLANNED, switch_roles, "memory"))


def sentinel(scenario: Scenario) -> Sequence[Finding]:
    """Kill the master that Sentinels watch, several times."""
    return asyncio.run(_sentinel(scenario, Part.SENTINEL, "replicated"))


def sentinel_unconfirmed(scenario: Scenario) -> Sequence[Finding]:
    """The same, with no replica waited for."""
    return asyncio.run(_sentinel(scenario, Part.SENTINEL_UNCONFIRMED, "memory"))


def sentinel_planned(scenario: Scenario) -> Sequence[Finding]:
    """Have the Sentinels switch to the replica, several times."""
    return asyncio.run(_sentinel(scenario, Part.SENTINEL_PLANNED, "memory"))


async def _cluster(scenario: Scenario, part: Part, fail_over: Failover, durability: str) -> Sequence[Finding]:
    draw = scenario.draw()
    async with (
        server_group.cluster(scenario.folder / "masters", **DISK) as masters,
        with_replicas(masters, scenario.folder / "replicas", **DISK) as replicas,
    ):
        shards = list(zip(masters, replicas, strict=True))

        async def failovers(client_group: ClientGroup) -> None:
            for number in range(scenario.scale.failovers):
                place = draw.randrange(len(shards))
                await fail_over(*shards[place])
                shards[place] = shards[place][::-1]
                await client_group.go_on()
                scenario.log(f"  {number + 1}: a master was replaced, {client_group.ended} replies")

        url = f"redis+cluster://127.0.0.1:{masters[0].port},127.0.0.1:{replicas[1].port}"
        return await _through(scenario, part, url, durability, failovers)


async def _sentinel(scenario: Scenario, part: Part, durability: str) -> Sequence[Finding]:
    async with watched_by_sentinel(
        scenario.folder / "group", watch=WATCH, sentinels=SENTINELS, **DISK
    ) as group:

        async def failovers(client_group: ClientGroup) -> None:
            for number in range(scenario.scale.failovers):
                if part is Part.SENTINEL_PLANNED:
                    await group.switch()
                else:
                    await take_over(group.master, group.replica)
                    group.master, group.replica = group.replica, group.master
                await client_group.go_on()
                scenario.log(f"  {number + 1}: the master was replaced, {client_group.ended} replies")

        return await _through(scenario, part, group.url, durability, failovers)


async def _through(
    scenario: Scenario,
    part: Part,
    url: str,
    durability: str,
    failovers: Callable[[ClientGroup], Awaitable[None]],
) -> Sequence[Finding]:
    environ = {"MIDSTREAM_REDIS_URL": url, "MIDSTREAM_STORE_DURABILITY": durability}
    async with gateways(scenario, environ, environ) as servers:
        urls = [server.ws_url for server in servers]
        client_group, accounts = await run_clients(scenario, urls, failovers)
    is_planned = part in (Part.CLUSTER_PLANNED, Part.SENTINEL_PLANNED)
    label = f"a master {'changes places' if is_planned else 'dies'} ({part})"
    wait = Finding(
        part=part,
        label=f"{label}: longest wait for an acknowledgement",
        value=client_group.longest_wait_s,
        unit="s",
        target=Target(REFUSED_S, at_most=True) if is_planned else None,
    )
    interrupted = none(part, f"{label}: replies interrupted", client_group.interrupted)
    found = [*client_group.findings(part, label, accounts, scenario.scale.failovers), interrupted, wait]
    if is_planned or durability == "replicated":
        return found
    return [msgspec.structs.replace(one, target=None) for one in found]
