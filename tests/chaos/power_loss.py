"""The embedded store is killed, alone or with its service, and what its disk had not synced is gone, as after a power failure.

The service has its defaults. The same clients then talk to one with `MIDSTREAM_STORE_DURABILITY=memory`, which has to lose
something: otherwise this part would show nothing.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from tests.bench.engine.report import Target
from tests.chaos import gateway
from tests.chaos.chat_client import Account, ChatClient
from tests.chaos.client_group import PACE_S, QUIET_S, ClientGroup, check_guarantees
from tests.chaos.kills import CALM_S, until_serving_again
from tests.chaos.report import Finding, Part
from tests.chaos.scenario import Scenario
from tests.chaos.server_log import unhandled
from tests.faulty_disk import disk
from tests.server_process import ServerProcess, child_of, serving

KILLS_IN_MEMORY = 3
DEATH = "embedded store ended"
IMPATIENCE_S = 5.0
"""How long open turns may take to end where some are lost, and never will."""


class Observations(msgspec.Struct, frozen=True):
    """What one service's clients saw."""

    killed: Counter[str]
    chat_clients: list[ChatClient]
    accounts: list[Account]
    logged: list[str]


def measure(scenario: Scenario) -> Sequence[Finding]:
    """Kill so often, and count the losses."""
    durable = _observe(scenario, "default", scenario.scale.power_failures)
    in_memory = _observe(scenario, "memory", KILLS_IN_MEMORY, durability="memory", quiet_s=IMPATIENCE_S)
    return tuple(_findings(scenario, durable, in_memory))


def _observe(
    scenario: Scenario, name: str, kills: int, *, durability: str | None = None, quiet_s: float = QUIET_S
) -> Observations:
    folder = scenario.folder / name
    folder.mkdir()
    lossy = disk(folder, store=folder / "data" / "store")
    scripted = gateway.command(gateway.Script(words=20, pace_s=PACE_S, hurry=scenario.scale.hurry))
    environ = {"MIDSTREAM_LOG_LEVEL": "warning", **lossy}
    if durability is not None:
        environ["MIDSTREAM_STORE_DURABILITY"] = durability
    with serving(folder, environ, command=scripted) as service:
        killed, chat_clients, accounts = asyncio.run(_rounds(scenario, service, kills, quiet_s))
        logged = [error for error in unhandled(service.log) if not error.startswith(DEATH)]
        return Observations(killed, chat_clients, accounts, logged)


async def _rounds(
    scenario: Scenario, service: ServerProcess, kills: int, quiet_s: float
) -> tuple[Counter[str], list[ChatClient], list[Account]]:
    """Kill while the talkers talk; then let the open turns end."""
    draw, killed = scenario.draw(), Counter[str]()
    chat_clients = [
        ChatClient(f"talker-{number}", lambda: service.ws_url)
        for number in range(scenario.scale.chat_clients)
    ]
    client_group = ClientGroup(chat_clients)
    talking = [asyncio.create_task(chat_client.talk()) for chat_client in chat_clients]
    try:
        await client_group.go_on()
        for number in range(kills):
            await asyncio.sleep(draw.uniform(*CALM_S))
            victim = "store and service" if number % 2 else "store"
            await asyncio.to_thread(_kill, service, with_service=bool(number % 2))
            killed[victim] += 1
            scenario.log(f"  {killed.total()}: {victim} killed, {client_group.ended} replies")
            await until_serving_again(chat_clients)
        for chat_client in chat_clients:
            chat_client.stop()
        await asyncio.wait(talking, timeout=quiet_s)
    finally:
        for task in talking:
            task.cancel()
        await asyncio.gather(*talking, return_exceptions=True)
        for chat_client in chat_clients:
            await chat_client.leave()
    await asyncio.to_thread(service.wait_ready)
    return killed, chat_clients, await client_group.accounts()


def _kill(service: ServerProcess, *, with_service: bool) -> None:
    """Kill the store, which its service restarts, or both: the store first, which would write all if its service ended."""
    assert service.process is not None
    store = child_of(service.process.pid, r"(valkey|redis)-server")
    assert store is not None, "no store runs"
    os.kill(store, signal.SIGKILL)
    if with_service:
        service.kill()
        service.start()
    else:
        service.wait_ready()


def _findings(scenario: Scenario, durable: Observations, in_memory: Observations) -> Iterator[Finding]:
    yield Finding(
        part=Part.POWER,
        label="store killed, unsynced writes gone",
        value=float(durable.killed.total()),
        readings={name: float(times) for name, times in sorted(durable.killed.items())},
        target=Target(float(scenario.scale.power_failures)),
    )
    yield Finding(
        part=Part.POWER,
        label=f"{len(durable.chat_clients)} talking clients: replies to the end",
        value=float(sum(chat_client.ended for chat_client in durable.chat_clients)),
        readings={
            "acknowledged": float(sum(len(chat_client.sent) for chat_client in durable.chat_clients)),
            "connections lost": float(sum(chat_client.device.losses for chat_client in durable.chat_clients)),
            "gaps": float(sum(chat_client.device.event_checker.gaps for chat_client in durable.chat_clients)),
            "ends sent as not saved": float(len(ClientGroup(durable.chat_clients).unsaved)),
        },
    )
    yield from check_guarantees(Part.POWER, durable.accounts, durable.logged)
    lost = sum(len(account.lost) for account in in_memory.accounts)
    yield Finding(
        part=Part.POWER,
        label=f"acknowledged messages lost in {KILLS_IN_MEMORY} kills with store_durability=memory",
        value=float(lost),
        readings={
            "acknowledged": float(sum(len(chat_client.sent) for chat_client in in_memory.chat_clients))
        },
        target=Target(1.0),
    )
