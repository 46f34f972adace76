"""The store has trouble while clients talk: it stalls, is parted from a replica, fails over, fills, or loses what it had.

Conversations go on after each trouble, clients learn of a loss, and nothing acknowledged is lost or doubled.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from random import Random

import msgspec
from redis.asyncio import Redis

from sessions.records import Owner
from sessions.store.codec import Keys
from sessions.store.ownership import LEASE_S
from tests.bench.report import Measured, Target, at_most, none
from tests.chaos.chat_client import Account, ChatClient, ClientGroup, errors, gateways, run_clients
from tests.chaos.proxy import FAIR, Proxy, Weather, proxy
from tests.chaos.scenario import Scenario
from tests.chaos.store_server import StoreServer, store_server
from tests.sessions import server_group
from tests.sessions.server_group import Node, switch_roles, take_over, watched_by_sentinel, with_replicas
from tests.store_faults import without_memory

TRICKLE = Weather(delay_s=0.002, piece_bytes=64)
LAG = Weather(delay_s=0.05)
LOSS = Weather(delay_s=0.3)
"""A network that loses packets: each one comes when it is sent again."""
WEATHERS = {"lags": LAG, "trickles": TRICKLE, "loses packets": LOSS}
PARTINGS = (*WEATHERS, "is cut", "is out of reach", "stands still")
REPLICAS = 3
REST_S = 1.0
"""Rest of every other client, so that quiet conversations are hit too."""
SHARE = 2
"""One in so many clients is hit each time."""
SOME = Target(1.0)
DISK = {"appendonly": "yes", "appendfsync": "everysec"}
WATCH = ("down-after-milliseconds {} 2000", "failover-timeout {} 5000")
SENTINELS = 3
REFUSED_S = at_most(5.0)
"""How long messages may be refused, or wait, in a planned failover."""

Trouble = Callable[[ClientGroup], Awaitable[None]]


def network(scenario: Scenario) -> Sequence[Measured]:
    """Stall the store, then cut, delay, trickle and stall the network between clients and server, and behind the server.

    The hanging store is measured separately, because it may drop no socket; the network troubles come one after the other.
    """
    with store_server(scenario.folder / "store") as store:
        return asyncio.run(_network(scenario, store))


async def _network(scenario: Scenario, store: StoreServer) -> list[Measured]:
    scale, dropped = scenario.scale, list[int]()
    async with AsyncExitStack() as stack:
        stores = await stack.enter_async_context(proxy(store.port))
        environ = {"MIDSTREAM_REDIS_URL": f"redis://127.0.0.1:{stores.port}"}
        (server,) = await stack.enter_async_context(gateways(scenario, environ))
        clients = await stack.enter_async_context(proxy(server.port))
        stack.callback(_clear, stores)

        async def troubles(group: ClientGroup) -> None:
            before = sum(one.device.losses for one in group.chat_clients)
            for _ in range(scale.stalls):
                store.stall()
                await asyncio.sleep(scale.stall_s)
                store.wake()
                await asyncio.sleep(scale.weather_s)
            dropped.append(sum(one.device.losses for one in group.chat_clients) - before)
            kinds = [(way, kind) for way in (clients, stores) for kind in PARTINGS if kind != "loses packets"]
            scenario.draw().shuffle(kinds)
            for way, kind in kinds:
                scenario.log(f"  the way to {'clients' if way is clients else 'the store'} {kind}")
                await _part(way, kind, scale.weather_s)
                await asyncio.sleep(scale.weather_s / 2)

        group, accounts = await run_clients(scenario, [f"ws://127.0.0.1:{clients.port}/v1/ws"], troubles)
    stalled = f"a store that stands still for {scale.stall_s:g} s: sockets dropped"
    return [
        Measured(
            label=stalled,
            value=float(dropped[0]),
            readings={"stalls": float(scale.stalls)},
            target=at_most(0),
        ),
        *group.findings("that, and cuts, delays and trickles on both sides", accounts, scale.stalls),
    ]


async def _part(way: Proxy, kind: str, lasts_s: float) -> None:
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
        _clear(way)


def _clear(way: Proxy) -> None:
    way.there = way.back = FAIR
    way.refuse(refuse=False)
    way.flow()


def partitions(scenario: Scenario) -> Sequence[Measured]:
    """Part one replica after the other from the store, while the others work on.

    A hang for longer than a lease is the hardest: other replicas close its turns, and it learns so later.
    """
    with store_server(scenario.folder / "store") as store:
        return asyncio.run(_partitions(scenario, store))


async def _partitions(scenario: Scenario, store: StoreServer) -> list[Measured]:
    draw, scale = scenario.draw(), scenario.scale
    async with AsyncExitStack() as stack:
        ways = [await stack.enter_async_context(proxy(store.port)) for _ in range(REPLICAS)]
        environs = ({"MIDSTREAM_REDIS_URL": f"redis://127.0.0.1:{way.port}"} for way in ways)
        servers = await stack.enter_async_context(gateways(scenario, *environs))

        async def troubles(group: ClientGroup) -> None:
            for number in range(scale.partitions):
                kind, way = PARTINGS[number % len(PARTINGS)], draw.choice(ways)
                scenario.log(f"  {number + 1}: one replica's way to the store {kind}, {group.ended} replies")
                await _part(
                    way, kind, 1.5 * LEASE_S / scale.hurry if kind == "stands still" else scale.weather_s
                )
                await group.go_on()

        group, accounts = await run_clients(scenario, [server.ws_url for server in servers], troubles)
    label = f"one of {REPLICAS} replicas is parted from the store"
    return list(group.findings(label, accounts, scale.partitions))


async def _with_two_gateways(
    scenario: Scenario, environ: dict[str, str], trouble: Trouble, *, rest_s: float = 0.0
) -> tuple[ClientGroup, list[Account], Measured]:
    """Have clients talk to two gateways through a trouble; the last that is returned are the errors in their logs."""
    async with gateways(scenario, environ, environ) as servers:
        urls = [server.ws_url for server in servers]
        group, accounts = await run_clients(scenario, urls, trouble, rest_s=rest_s)
        return group, accounts, errors("the store's trouble", servers)


def out_of_memory(scenario: Scenario) -> Sequence[Measured]:
    """Take the store's memory away and give it back, several times: messages are refused, replies go on, and nothing is lost."""
    times = scenario.scale.failovers
    with store_server(scenario.folder / "store") as store:

        async def shortages(group: ClientGroup) -> None:
            async with Redis(port=store.port) as client:
                for number in range(times):
                    async with without_memory(client):
                        await asyncio.sleep(scenario.scale.weather_s)
                    await group.go_on()
                    scenario.log(f"  {number + 1}: the store had no memory, {group.ended} replies")

        running = _with_two_gateways(scenario, {"MIDSTREAM_REDIS_URL": store.url}, shortages)
        group, accounts, _ = asyncio.run(running)
    return list(group.findings("the store has no memory", accounts, times))


def eviction(scenario: Scenario) -> Sequence[Measured]:
    """Delete hashes, journals and both; then let a store with too little memory evict: clients learn of the loss."""
    draw, taken, times = scenario.draw(), Counter[str](), scenario.scale.spoils
    with store_server(scenario.folder / "store") as store:

        async def losses(group: ClientGroup) -> None:
            async with Redis(port=store.port) as client:
                for _ in range(times):
                    for one in _some(group, draw):
                        what, keys = draw.choice(("hash", "journal", "both")), _keys(one)
                        taken[f"{what}, {'running' if _running(one) else 'quiet'}"] += 1
                        named = {"hash": [keys.conversation], "journal": [keys.journal], "both": keys.pair()}
                        await client.delete(*named[what])
                    await group.go_on()
                    taken["keys by the store"] += await _under_pressure(client, scenario)
                    await group.go_on()
                    scenario.log(f"  {taken.total()} keys taken, {group.ended} replies")

        running = _with_two_gateways(scenario, {"MIDSTREAM_REDIS_URL": store.url}, losses, rest_s=REST_S)
        group, accounts, logged = asyncio.run(running)
    told = [one.reported_gone for one in group.chat_clients]
    silent = [
        msgspec.structs.replace(account, lost=[one for one in account.lost if one not in gone])
        for account, gone in zip(accounts, told, strict=True)
    ]
    readings = {name: float(count) for name, count in sorted(taken.items())}
    gone = sum(len(one.device.event_checker.gone) for one in group.chat_clients)
    readings |= {"conversations reported gone": gone, "messages gone with them": float(sum(map(len, told)))}
    label = "conversations are evicted"
    keys = Measured(label=f"{label}: keys taken", value=float(taken.total()), readings=readings, target=SOME)
    return [keys, *group.findings(label, silent, times), msgspec.structs.replace(logged, target=at_most(0))]


def _some(group: ClientGroup, draw: Random) -> list[ChatClient]:
    return draw.sample(list(group.chat_clients), max(1, len(group.chat_clients) // SHARE))


def _keys(one: ChatClient) -> Keys:
    """Return the store's keys of a client's conversation: without authentication its owner is this one client."""
    return Keys.of(Owner("anonymous", one.device.client_id), one.device.conversation_id)


def _running(one: ChatClient) -> list[str]:
    """Return the ids of its turns that have no end so far, as it knows; empty if it is quiet."""
    return [turn_id for turn_id, turn in one.device.event_checker.turns.items() if not turn.is_over]


async def _under_pressure(client: Redis, scenario: Scenario) -> int:
    """Leave the store half of the memory that its data needs, for a while; return how many keys it evicted."""
    memory, before = await client.info("memory"), (await client.info("stats"))["evicted_keys"]
    await client.config_set("maxmemory-policy", "allkeys-lru")
    await client.config_set("maxmemory", int(memory["used_memory"] - memory["used_memory_dataset"] / 2))
    try:
        await asyncio.sleep(scenario.scale.weather_s)
    finally:
        await client.config_set("maxmemory", 0)
        await client.config_set("maxmemory-policy", "noeviction")
    return int((await client.info("stats"))["evicted_keys"] - before)


def poison(scenario: Scenario) -> Sequence[Measured]:
    """Replace journals with something else: their replies end as internal errors, and those of others end well."""
    draw, hit, times = scenario.draw(), set[str](), scenario.scale.spoils
    with store_server(scenario.folder / "store") as store:

        async def poisonings(group: ClientGroup) -> None:
            async with Redis(port=store.port) as client:
                for number in range(times):
                    for one in _some(group, draw):
                        hit.update(_running(one))
                        journal = _keys(one).journal
                        await client.pipeline().delete(journal).set(journal, "?").execute()
                        hit.update(_running(one))
                    await group.go_on()
                    scenario.log(f"  {number + 1}: journals spoiled, {group.ended} replies")

        running = _with_two_gateways(scenario, {"MIDSTREAM_REDIS_URL": store.url}, poisonings, rest_s=REST_S)
        group, accounts, _ = asyncio.run(running)
    label = "journals are spoiled"
    ill = {turn_id: done for turn_id, done in group.ends.items() if done["reason"] not in ("stop", "length")}
    internal = [one for one, done in ill.items() if done.get("error", {}).get("code") == "internal"]
    others = sorted(set(ill) - hit) + sorted(set(ill) - set(internal))
    running_then = {"running when they were": float(len(hit))}
    ended = f"{label}: replies that ended as internal"
    return [
        Measured(label=ended, value=float(len(internal)), readings=running_then, target=SOME),
        none(f"{label}: replies of others that did not end well, and other ends than internal", others),
        *group.findings(label, accounts, times),
    ]


def _cluster(
    scenario: Scenario, name: str, fail_over: Callable[[Node, Node], Awaitable[None]]
) -> Sequence[Measured]:
    """Have replicas of a cluster take their masters' places, one after the other, each while its replica lives."""
    draw = scenario.draw()

    async def run() -> list[Measured]:
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
            return await _through(scenario, name, url, replace)

    return asyncio.run(run())


def _sentinel(scenario: Scenario, name: str) -> Sequence[Measured]:
    """Kill the master that Sentinels watch, or have them switch to its replica, several times."""

    async def run() -> list[Measured]:
        folder = scenario.folder / "group"
        async with watched_by_sentinel(folder, watch=WATCH, sentinels=SENTINELS, **DISK) as group:

            async def replace() -> None:
                if name == "sentinel-planned":
                    await group.switch()
                else:
                    await take_over(group.master, group.replica)
                    group.master, group.replica = group.replica, group.master

            return await _through(scenario, name, group.url, replace)

    return asyncio.run(run())


async def _through(
    scenario: Scenario, name: str, url: str, replace: Callable[[], Awaitable[None]]
) -> list[Measured]:
    """Replace masters while clients talk.

    With one replica waited for (`MIDSTREAM_STORE_DURABILITY=replicated`) no failover may lose an acknowledged message. A planned
    failover may not with the default either. What a dead master takes along at the default is measured without a target.
    """
    times, is_planned = scenario.scale.failovers, name.endswith("planned")
    durability = "memory" if "-" in name else "replicated"

    async def failovers(group: ClientGroup) -> None:
        for number in range(times):
            await replace()
            await group.go_on()
            scenario.log(f"  {number + 1}: a master was replaced, {group.ended} replies")

    environ = {"MIDSTREAM_REDIS_URL": url, "MIDSTREAM_STORE_DURABILITY": durability}
    group, accounts, _ = await _with_two_gateways(scenario, environ, failovers)
    label = f"a master {'changes places' if is_planned else 'dies'} ({name})"
    cut = [
        f"{one}: {done['reason']}"
        for one, done in group.ends.items()
        if done["reason"] in ("interrupted", "error")
    ]
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


FAILOVERS: dict[str, Callable[[Scenario], Sequence[Measured]]] = {
    "cluster": partial(_cluster, name="cluster", fail_over=take_over),
    "cluster-planned": partial(_cluster, name="cluster-planned", fail_over=switch_roles),
    "cluster-unconfirmed": partial(_cluster, name="cluster-unconfirmed", fail_over=take_over),
    "sentinel": partial(_sentinel, name="sentinel"),
    "sentinel-planned": partial(_sentinel, name="sentinel-planned"),
    "sentinel-unconfirmed": partial(_sentinel, name="sentinel-unconfirmed"),
}
