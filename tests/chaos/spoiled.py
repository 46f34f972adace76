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
from sessions.store.history.keys import Keys
from tests.bench.engine.findings import Target
from tests.chaos.company import Company, gateways, talk_through
from tests.chaos.report import Finding, Part
from tests.chaos.server_log import unhandled
from tests.chaos.stage import Stage
from tests.chaos.store_server import StoreServer, store_server
from tests.chaos.talker import Account, Talker
from tests.server_process import ServerProcess

REST_S = 1.0
"""Rest of every other talker, so that quiet conversations are hit too."""
SHARE = 2
"""One in so many talkers is hit each time."""
WELL = {"stop", "length"}
NONE = Target(0.0, at_most=True)
SOME = Target(1.0)


def eviction(stage: Stage) -> Sequence[Finding]:
    """Delete hashes, journals and both; then let a store with too little memory evict."""
    with store_server(stage.folder / "store") as store:
        return asyncio.run(_eviction(stage, store))


def poison(stage: Stage) -> Sequence[Finding]:
    """Replace journals with something else."""
    with store_server(stage.folder / "store") as store:
        return asyncio.run(_poison(stage, store))


async def _eviction(stage: Stage, store: StoreServer) -> Sequence[Finding]:
    draw, taken = stage.draw(), Counter[str]()

    async def losses(company: Company) -> None:
        async with Redis(port=store.port) as client:
            for _ in range(stage.scale.spoils):
                for talker in _some(company, draw):
                    await _take(client, talker, draw, taken)
                await company.go_on()
                taken["keys by the store"] += await _under_pressure(client, stage)
                await company.go_on()
                stage.say(f"  {taken.total()} keys taken, {company.ended} replies")

    environ = {"MIDSTREAM_REDIS_URL": store.url}
    async with gateways(stage, environ, environ) as servers:
        urls = [server.ws_url for server in servers]
        company, accounts = await talk_through(stage, urls, losses, rest_s=REST_S)
    return tuple(_of_eviction(stage, company, accounts, taken, servers))


def _some(company: Company, draw: Random) -> list[Talker]:
    return draw.sample(company.talkers, max(1, len(company.talkers) // SHARE))


async def _take(client: Redis, talker: Talker, draw: Random, taken: Counter[str]) -> None:
    keys = _keys(talker)
    what = draw.choice(("hash", "journal", "both"))
    taken[f"{what}, {'running' if _running(talker) else 'quiet'}"] += 1
    await client.delete(*{"hash": [keys.conversation], "journal": [keys.journal], "both": keys.pair()}[what])


async def _under_pressure(client: Redis, stage: Stage) -> int:
    """Leave the store half of the memory that its data needs, for a while; return how many keys it evicted."""
    memory, before = await client.info("memory"), (await client.info("stats"))["evicted_keys"]
    await client.config_set("maxmemory-policy", "allkeys-lru")
    await client.config_set("maxmemory", int(memory["used_memory"] - memory["used_memory_dataset"] / 2))
    try:
        await asyncio.sleep(stage.scale.weather_s)
    finally:
        await client.config_set("maxmemory", 0)
        await client.config_set("maxmemory-policy", "noeviction")
    return int((await client.info("stats"))["evicted_keys"] - before)


def _of_eviction(
    stage: Stage,
    company: Company,
    accounts: list[Account],
    taken: Counter[str],
    servers: list[ServerProcess],
) -> Iterator[Finding]:
    told = [talker.told_gone for talker in company.talkers]
    silent = [
        msgspec.structs.replace(account, lost=[one for one in account.lost if one not in gone])
        for account, gone in zip(accounts, told, strict=True)
    ]
    label = "conversations are evicted"
    yield Finding(
        part=Part.EVICTION,
        label=f"{label}: keys taken",
        value=float(taken.total()),
        readings={name: float(times) for name, times in sorted(taken.items())}
        | {
            "conversations told to be gone": float(
                sum(len(talker.device.ledger.gone) for talker in company.talkers)
            ),
            "messages gone with them": float(sum(len(gone) for gone in told)),
        },
        target=SOME,
    )
    yield from company.findings(Part.EVICTION, label, silent, stage.scale.spoils)
    yield _logged(Part.EVICTION, f"{label}: errors in the logs", servers)


async def _poison(stage: Stage, store: StoreServer) -> Sequence[Finding]:
    draw, hit = stage.draw(), set[str]()

    async def poisonings(company: Company) -> None:
        async with Redis(port=store.port) as client:
            for number in range(stage.scale.spoils):
                for talker in _some(company, draw):
                    hit.update(_running(talker))
                    await (
                        client.pipeline().delete(journal := _keys(talker).journal).set(journal, "?").execute()
                    )
                    hit.update(_running(talker))
                await company.go_on()
                stage.say(f"  {number + 1}: journals spoiled, {company.ended} replies")

    environ = {"MIDSTREAM_REDIS_URL": store.url}
    async with gateways(stage, environ, environ) as servers:
        urls = [server.ws_url for server in servers]
        company, accounts = await talk_through(stage, urls, poisonings, rest_s=REST_S)
    return tuple(_of_poison(stage, company, accounts, hit))


def _of_poison(stage: Stage, company: Company, accounts: list[Account], hit: set[str]) -> Iterator[Finding]:
    label = "journals are spoiled"
    ends = {
        turn_id: turn.done
        for talker in company.talkers
        for turn_id, turn in talker.device.ledger.turns.items()
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
    yield from company.findings(Part.POISON, label, accounts, stage.scale.spoils)


def _keys(talker: Talker) -> Keys:
    """Return the store's keys of a talker's conversation: without authentication its owner is this one client."""
    return Keys.of(Owner("anonymous", talker.device.client_id), talker.device.ledger.conversation_id)


def _running(talker: Talker) -> list[str]:
    """Return the ids of its turns that have no end so far, as it knows; empty if it is quiet."""
    return [turn_id for turn_id, turn in talker.device.ledger.turns.items() if not turn.is_over]


def _logged(part: Part, label: str, servers: list[ServerProcess]) -> Finding:
    logged = [error for server in servers for error in unhandled(server.log)]
    return Finding(
        part=part, label=label, value=float(len(logged)), target=NONE, note="; ".join(sorted(set(logged))[:3])
    )
