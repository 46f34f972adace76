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

from tests.bench.engine.findings import Target
from tests.chaos import gateway
from tests.chaos.company import PACE_S, QUIET_S, Company, kept_promises
from tests.chaos.kills import CALM_S, go_on
from tests.chaos.report import Finding, Part
from tests.chaos.server_log import unhandled
from tests.chaos.stage import Stage
from tests.chaos.talker import Account, Talker
from tests.disk import disk
from tests.server_process import ServerProcess, child_of, serving

KILLS_IN_MEMORY = 3
DEATH = "embedded store ended"
IMPATIENCE_S = 5.0
"""How long open turns may take to end where some are lost, and never will."""


class Seen(msgspec.Struct, frozen=True):
    """What one service's clients saw."""

    killed: Counter[str]
    talkers: list[Talker]
    accounts: list[Account]
    logged: list[str]


def measure(stage: Stage) -> Sequence[Finding]:
    """Kill so often, and count the losses."""
    durable = _seen(stage, "default", stage.scale.power_failures)
    in_memory = _seen(stage, "memory", KILLS_IN_MEMORY, durability="memory", quiet_s=IMPATIENCE_S)
    return tuple(_findings(stage, durable, in_memory))


def _seen(
    stage: Stage, name: str, kills: int, *, durability: str | None = None, quiet_s: float = QUIET_S
) -> Seen:
    folder = stage.folder / name
    folder.mkdir()
    lossy = disk(folder, store=folder / "data" / "store")
    scripted = gateway.command(gateway.Script(words=20, pace_s=PACE_S, hurry=stage.scale.hurry))
    environ = {"MIDSTREAM_LOG_LEVEL": "warning", **lossy}
    if durability is not None:
        environ["MIDSTREAM_STORE_DURABILITY"] = durability
    with serving(folder, environ, command=scripted) as service:
        killed, talkers, accounts = asyncio.run(_rounds(stage, service, kills, quiet_s))
        logged = [error for error in unhandled(service.log) if not error.startswith(DEATH)]
        return Seen(killed, talkers, accounts, logged)


async def _rounds(
    stage: Stage, service: ServerProcess, kills: int, quiet_s: float
) -> tuple[Counter[str], list[Talker], list[Account]]:
    """Kill while the talkers talk; then let the open turns end."""
    draw, killed = stage.draw(), Counter[str]()
    talkers = [Talker(f"talker-{number}", lambda: service.ws_url) for number in range(stage.scale.talkers)]
    company = Company(talkers)
    talking = [asyncio.create_task(talker.talk()) for talker in talkers]
    try:
        await company.go_on()
        for number in range(kills):
            await asyncio.sleep(draw.uniform(*CALM_S))
            victim = "store and service" if number % 2 else "store"
            await asyncio.to_thread(_kill, service, with_service=bool(number % 2))
            killed[victim] += 1
            stage.say(f"  {killed.total()}: {victim} killed, {company.ended} replies")
            await go_on(talkers)
        for talker in talkers:
            talker.stop()
        await asyncio.wait(talking, timeout=quiet_s)
    finally:
        for task in talking:
            task.cancel()
        await asyncio.gather(*talking, return_exceptions=True)
        for talker in talkers:
            await talker.leave()
    await asyncio.to_thread(service.wait_ready)
    return killed, talkers, await company.accounts()


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


def _findings(stage: Stage, durable: Seen, in_memory: Seen) -> Iterator[Finding]:
    yield Finding(
        part=Part.POWER,
        label="store killed, unsynced writes gone",
        value=float(durable.killed.total()),
        readings={name: float(times) for name, times in sorted(durable.killed.items())},
        target=Target(float(stage.scale.power_failures)),
    )
    yield Finding(
        part=Part.POWER,
        label=f"{len(durable.talkers)} talking clients: replies to the end",
        value=float(sum(talker.ended for talker in durable.talkers)),
        readings={
            "acknowledged": float(sum(len(talker.said) for talker in durable.talkers)),
            "connections lost": float(sum(talker.device.losses for talker in durable.talkers)),
            "gaps": float(sum(talker.device.ledger.gaps for talker in durable.talkers)),
            "ends sent as not saved": float(len(Company(durable.talkers).unsaved)),
        },
    )
    yield from kept_promises(Part.POWER, durable.accounts, durable.logged)
    lost = sum(len(account.lost) for account in in_memory.accounts)
    yield Finding(
        part=Part.POWER,
        label=f"acknowledged messages lost in {KILLS_IN_MEMORY} kills with store_durability=memory",
        value=float(lost),
        readings={"acknowledged": float(sum(len(talker.said) for talker in in_memory.talkers))},
        target=Target(1.0),
    )
