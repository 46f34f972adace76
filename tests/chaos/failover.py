"""A Redis Cluster and a Sentinel whose masters die while clients talk, and slots that move to another node.

The service waits until a replica has what it sends (`MIDSTREAM_STORE_DURABILITY=replicated`), so nothing may be lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from tests.chaos.company import Company, gateways, talk_through
from tests.chaos.report import Finding, Part
from tests.chaos.stage import Stage
from tests.sessions import server_group
from tests.sessions.server_group import take_over, watched_by_sentinel, with_replicas

DISK = {"appendonly": "yes", "appendfsync": "everysec"}
WATCH = ("down-after-milliseconds {} 2000", "failover-timeout {} 5000")


def cluster(stage: Stage) -> Sequence[Finding]:
    """Kill the masters of a cluster, one after the other, each while its replica lives."""
    return asyncio.run(_cluster(stage))


def sentinel(stage: Stage) -> Sequence[Finding]:
    """Kill the master that a Sentinel watches, several times."""
    return asyncio.run(_sentinel(stage))


async def _cluster(stage: Stage) -> Sequence[Finding]:
    draw = stage.draw()
    async with (
        server_group.cluster(stage.folder / "masters", **DISK) as masters,
        with_replicas(masters, stage.folder / "replicas", **DISK) as replicas,
    ):
        shards = list(zip(masters, replicas, strict=True))

        async def deaths(company: Company) -> None:
            for number in range(stage.scale.failovers):
                place = draw.randrange(len(shards))
                await take_over(*shards[place])
                shards[place] = shards[place][::-1]
                await company.go_on()
                stage.say(f"  {number + 1}: a master died, {company.ended} replies")

        url = f"redis+cluster://127.0.0.1:{masters[0].port},127.0.0.1:{replicas[1].port}"
        return await _through(stage, Part.CLUSTER, url, deaths)


async def _sentinel(stage: Stage) -> Sequence[Finding]:
    async with watched_by_sentinel(stage.folder / "group", watch=WATCH, **DISK) as group:

        async def deaths(company: Company) -> None:
            master, replica = group.master, group.replica
            for number in range(stage.scale.failovers):
                await take_over(master, replica)
                master, replica = replica, master
                await company.go_on()
                stage.say(f"  {number + 1}: the master died, {company.ended} replies")

        url = f"redis+sentinel://127.0.0.1:{group.sentinel.port}/{server_group.MASTER}"
        return await _through(stage, Part.SENTINEL, url, deaths)


async def _through(
    stage: Stage, part: Part, url: str, deaths: Callable[[Company], Awaitable[None]]
) -> Sequence[Finding]:
    environ = {"MIDSTREAM_REDIS_URL": url, "MIDSTREAM_STORE_DURABILITY": "replicated"}
    async with gateways(stage, environ, environ) as servers:
        urls = [server.ws_url for server in servers]
        company, accounts = await talk_through(stage, urls, deaths)
    return tuple(company.findings(part, f"a master dies ({part})", accounts, stage.scale.failovers))
