"""Conversations that are evicted or deleted from the store, in whole or in part, and corrupt journals.

Clients talk meanwhile. Every conversation goes on, its clients learn of a loss, and a corrupt journal affects no other.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from random import Random

import msgspec
from redis.asyncio import Redis

from sessions.records import Owner
from sessions.store.codec import Keys
from tests.bench.engine.report import Target
from tests.chaos.chat_client import Account, ChatClient
from tests.chaos.client_group import ClientGroup, gateways, run_clients
from tests.chaos.report import Finding, Part
from tests.chaos.scenario import Scenario
from tests.chaos.server_log import unhandled
from tests.chaos.store_server import StoreServer, store_server
from tests.server_process import ServerProcess

REST_S = 1.0
"""Rest of every other talker, so that quiet conversations are hit too."""
SHARE = 2
"""One in so many talkers is hit each time."""
WELL = {"stop", "length"}
NONE = Target(0.0, at_most=True)
SOME = Target(1.0)


def eviction(scenario: Scenario) -> Sequence[Finding]:
    """Delete hashes, journals and both; then let a store with too little memory evict."""
    with store_server(scenario.folder / "store") as store:
        return asyncio.run(_eviction(scenario, store))


def poison(scenario: Scenario) -> Sequence[Finding]:
    """Replace journals with something else."""
    with store_server(scenario.folder / "store") as store:
        return asyncio.run(_poison(scenario, store))


async def _eviction(scenario: Scenario, store: StoreServer) -> Sequence[Finding]:
    draw, taken = scenario.draw(), Counter[str]()

    async def losses(client_group: ClientGroup) -> None:
        async with Redis(port=store.port) as client:
            for _ in range(scenario.scale.spoils):
                for chat_client in _some(client_group, draw):
                    await _take(client, chat_client, draw, taken)
                await client_group.go_on()
                taken["keys by the store"] += await _under_pressure(client, scenario)
                await client_group.go_on()
                scenario.log(f"  {taken.total()} keys taken, {client_group.ended} replies")

    environ = {"MIDSTREAM_REDIS_URL": store.url}
    async with gateways(scenario, environ, environ) as servers:
        urls = [server.ws_url for server in servers]
        client_group, accounts = await run_clients(scenario, urls, losses, rest_s=REST_S)
    return tuple(_of_eviction(scenario, client_group, accounts, taken, servers))


def _some(client_group: ClientGroup, draw: Random) -> list[ChatClient]:
    return draw.sample(client_group.chat_clients, max(1, len(client_group.chat_clients) // SHARE))


async def _take(client: Redis, chat_client: ChatClient, draw: Random, taken: Counter[str]) -> None:
    keys = _keys(chat_client)
    what = draw.choice(("hash", "journal", "both"))
    taken[f"{what}, {'running' if _running(chat_client) else 'quiet'}"] += 1
    await client.delete(*{"hash": [keys.conversation], "journal": [keys.journal], "both": keys.pair()}[what])


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


def _of_eviction(
    scenario: Scenario,
    client_group: ClientGroup,
    accounts: list[Account],
    taken: Counter[str],
    servers: list[ServerProcess],
) -> Iterator[Finding]:
    reported = [chat_client.reported_gone for chat_client in client_group.chat_clients]
    silent = [
        msgspec.structs.replace(account, lost=[one for one in account.lost if one not in gone])
        for account, gone in zip(accounts, reported, strict=True)
    ]
    label = "conversations are evicted"
    yield Finding(
        part=Part.EVICTION,
        label=f"{label}: keys taken",
        value=float(taken.total()),
        readings={name: float(times) for name, times in sorted(taken.items())}
        | {
            "conversations told to be gone": float(
                sum(len(chat_client.device.event_checker.gone) for chat_client in client_group.chat_clients)
            ),
            "messages gone with them": float(sum(len(gone) for gone in reported)),
        },
        target=SOME,
    )
    yield from client_group.findings(Part.EVICTION, label, silent, scenario.scale.spoils)
    yield _logged(Part.EVICTION, f"{label}: errors in the logs", servers)


async def _poison(scenario: Scenario, store: StoreServer) -> Sequence[Finding]:
    draw, hit = scenario.draw(), set[str]()

    async def poisonings(client_group: ClientGroup) -> None:
        async with Redis(port=store.port) as client:
            for number in range(scenario.scale.spoils):
                for chat_client in _some(client_group, draw):
                    hit.update(_running(chat_client))
                    await (
                        client.pipeline()
                        .delete(journal := _keys(chat_client).journal)
                        .set(journal, "?")
                        .execute()
                    )
                    hit.update(_running(chat_client))
                await client_group.go_on()
                scenario.log(f"  {number + 1}: journals spoiled, {client_group.ended} replies")

    environ = {"MIDSTREAM_REDIS_URL": store.url}
    async with gateways(scenario, environ, environ) as servers:
        urls = [server.ws_url for server in servers]
        client_group, accounts = await run_clients(scenario, urls, poisonings, rest_s=REST_S)
    return tuple(_of_poison(scenario, client_group, accounts, hit))


def _of_poison(
    scenario: Scenario, client_group: ClientGroup, accounts: list[Account], hit: set[str]
) -> Iterator[Finding]:
    label = "journals are spoiled"
    ends = {
        turn_id: turn.done
        for chat_client in client_group.chat_clients
        for turn_id, turn in chat_client.device.event_checker.turns.items()
        if turn.done is not None
    }
    ill = {turn_id: done for turn_id, done in ends.items() if done["reason"] not in WELL}
    internal = [one for one, done in ill.items() if done.get("error", {}).get("code") == "internal"]
    yield Finding(
        part=Part.POISON,
        label=f"{label}: replies that ended as internal",
        value=float(len(internal)),
        readings={"running when they were": float(len(hit))},
        target=SOME,
    )
    others = sorted(set(ill) - hit) + sorted(set(ill) - set(internal))
    yield Finding(
        part=Part.POISON,
        label=f"{label}: replies of others that did not end well, and other ends than internal",
        value=float(len(others)),
        target=NONE,
        note="; ".join(others[:3]),
    )
    yield from client_group.findings(Part.POISON, label, accounts, scenario.scale.spoils)


def _keys(chat_client: ChatClient) -> Keys:
    """Return the store's keys of a talker's conversation: without authentication its owner is this one client."""
    return Keys.of(
        Owner("anonymous", chat_client.device.client_id), chat_client.device.event_checker.conversation_id
    )


def _running(chat_client: ChatClient) -> list[str]:
    """Return the ids of its turns that have no end so far, as it knows; empty if it is quiet."""
    return [turn_id for turn_id, turn in chat_client.device.event_checker.turns.items() if not turn.is_over]


def _logged(part: Part, label: str, servers: list[ServerProcess]) -> Finding:
    logged = [error for server in servers for error in unhandled(server.log)]
    return Finding(
        part=part, label=label, value=float(len(logged)), target=NONE, note="; ".join(sorted(set(logged))[:3])
    )
