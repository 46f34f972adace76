"""Failovers of a Redis Cluster and of a group with Sentinels, planned and unplanned, while clients talk.

With one replica waited for (`MIDSTREAM_STORE_DURABILITY=replicated`) no failover may lose an acknowledged message. A planned
failover may not with the default either. What a dead master takes along at the default is measured without a target.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from tests.bench.engine.findings import Target
from tests.chaos.company import Company, gateways, none, talk_through
from tests.chaos.report import Finding, Part
from tests.chaos.stage import Stage
from tests.sessions import server_group
from tests.sessions.server_group import Node, change_places, take_over, watched_by_sentinel, with_replicas

DISK = {"appendonly": "yes", "appendfsync": "everysec"}
WATCH = ("down-after-milliseconds {} 2000", "failover-timeout {} 5000")
SENTINELS = 3
REFUSED_S = 5.0
"""How long messages may be refused, or wait, in a planned failover."""

Failover = Callable[[Node, Node], Awaitable[None]]


def cluster(stage: Stage) -> Sequence[Finding]:
    """Kill the masters of a cluster, one after the other, each while its replica lives."""
    return asyncio.run(_cluster(stage, Part.CLUSTER, take_over, "replicated"))


def cluster_unconfirmed(stage: Stage) -> Sequence[Finding]:
    """The same, with no replica waited for."""
    return asyncio.run(_cluster(stage, Part.CLUSTER_UNCONFIRMED, take_over, "memory"))


def cluster_planned(stage: Stage) -> Sequence[Finding]:
    """Have replicas of a cluster take their masters' places."""
    return asyncio.run(_cluster(stage, Part.CLUSTER_PLANNED, change_places, "memory"))


def sentinel(stage: Stage) -> Sequence[Finding]:
    """Kill the master that Sentinels watch, several times."""
    return asyncio.run(_sentinel(stage, Part.SENTINEL, "replicated"))


def sentinel_unconfirmed(stage: Stage) -> Sequence[Finding]:
    """The same, with no replica waited for."""
    return asyncio.run(_sentinel(stage, Part.SENTINEL_UNCONFIRMED, "memory"))


def sentinel_planned(stage: Stage) -> Sequence[Finding]:
    """Have the Sentinels switch to the replica, several times."""
    return asyncio.run(_sentinel(stage, Part.SENTINEL_PLANNED, "memory"))


async def _cluster(stage: Stage, part: Part, fail_over: Failover, durability: str) -> Sequence[Finding]:
    draw = stage.draw()
    async with (
        server_group.cluster(stage.folder / "masters", **DISK) as masters,
        with_replicas(masters, stage.folder / "replicas", **DISK) as replicas,
    ):
        shards = list(zip(masters, replicas, strict=True))

        async def failovers(company: Company) -> None:
            for number in range(stage.scale.failovers):
                place = draw.randrange(len(shards))
                await fail_over(*shards[place])
                shards[place] = shards[place][::-1]
                await company.go_on()
                stage.say(f"  {number + 1}: a master was replaced, {company.ended} replies")

        url = f"redis+cluster://127.0.0.1:{masters[0].port},127.0.0.1:{replicas[1].port}"
        return await _through(stage, part, url, durability, failovers)


async def _sentinel(stage: Stage, part: Part, durability: str) -> Sequence[Finding]:
    async with watched_by_sentinel(stage.folder / "group", watch=WATCH, sentinels=SENTINELS, **DISK) as group:

        async def failovers(company: Company) -> None:
            for number in range(stage.scale.failovers):
                if part is Part.SENTINEL_PLANNED:
                    await group.switch()
                else:
                    await take_over(group.master, group.replica)
                    group.master, group.replica = group.replica, group.master
                await company.go_on()
                stage.say(f"  {number + 1}: the master was replaced, {company.ended} replies")

        return await _through(stage, part, group.url, durability, failovers)


async def _through(
    stage: Stage, part: Part, url: str, durability: str, failovers: Callable[[Company], Awaitable[None]]
) -> Sequence[Finding]:
    environ = {"MIDSTREAM_REDIS_URL": url, "MIDSTREAM_STORE_DURABILITY": durability}
    async with gateways(stage, environ, environ) as servers:
        urls = [server.ws_url for server in servers]
        company, accounts = await talk_through(stage, urls, failovers)
    is_planned = part in (Part.CLUSTER_PLANNED, Part.SENTINEL_PLANNED)
    label = f"a master {'changes places' if is_planned else 'dies'} ({part})"
    wait = Finding(
        part=part,
        label=f"{label}: longest wait for an acknowledgement",
        value=company.longest_wait_s,
        unit="s",
        target=Target(REFUSED_S, at_most=True) if is_planned else None,
    )
    interrupted = none(part, f"{label}: replies interrupted", company.interrupted)
    found = [*company.findings(part, label, accounts, stage.scale.failovers), interrupted, wait]
    if is_planned or durability == "replicated":
        return found
    return [msgspec.structs.replace(one, target=None) for one in found]
