"""Parts are killed at random while clients talk and reconnect: no acknowledged message is lost or doubled.

Three replicas share one store: two with scripted engines, which restart within a second or two, and the whole service
with the bundled model, whose engine process is killed too. The store writes to its disk before it answers
(`MIDSTREAM_STORE_DURABILITY=disk`): a store that writes each second may lose two seconds when its process dies.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import count
from random import Random

from engine.process.supervision import RestartPolicy
from tests.bench.engine.findings import Target
from tests.chaos import gateway
from tests.chaos.company import QUIET_S, Company, kept_promises
from tests.chaos.report import Finding, Part
from tests.chaos.server_log import unhandled
from tests.chaos.stage import Stage
from tests.chaos.store_server import StoreServer, store_server
from tests.chaos.talker import Account, Talker
from tests.server_process import ServerProcess, serving

PACE_S = 0.03
VICTIMS = {"gateway": 8, "store": 5}
"""Relative frequency of each part's deaths."""
VICTIMS_OF_THE_SERVICE = {"service": 1, "engine": 4}
ENGINE_DEATHS = RestartPolicy().deaths - 2
"""Deaths of one service's engine process; after one more its supervisor gives up, as it should."""
CALM_S = (0.1, 1.2)
"""Seconds between a part's return and the next death, drawn at random."""
TIME_S = 2520.0
"""Seconds after which the rounds end, however many there were."""
GO_ON_S = 2.5
LOOK_S = 0.05


class Parts:
    """The parts that it may kill. `service` is the one with a real engine, if there is one."""

    def __init__(
        self, *, store: StoreServer, gateways: Sequence[ServerProcess], service: ServerProcess | None
    ) -> None:
        self.servers = [*gateways, *([service] if service else [])]
        self._store = store
        self._gateways = gateways
        self._service = service
        self._engine_deaths = 0

    def kill(self, draw: Random) -> str | None:
        """Kill a part and restart it; return its name, or None if it is not running at the moment."""
        victims = VICTIMS | (VICTIMS_OF_THE_SERVICE if self._service else {})
        victim = draw.choices(list(victims), list(victims.values()))[0]
        if victim == "engine" and self._engine_deaths == ENGINE_DEATHS:
            victim = "service"
        match victim:
            case "store":
                self._store.kill()
                self._store.start()
            case "gateway":
                _kill_and_start(draw.choice(self._gateways))
            case "service" if self._service:
                _kill_and_start(self._service)
                self._engine_deaths = 0
            case "engine" if self._service:
                return victim if self._kill_engine(self._service) else None
        return victim

    def _kill_engine(self, service: ServerProcess) -> bool:
        if not service.is_ready():  # if it is killed again while it loads, it never answers
            return False
        try:
            os.kill(service.engine_pid(), signal.SIGKILL)
        except (AssertionError, OSError):  # it is not up yet
            return False
        self._engine_deaths += 1
        return True


def measure(stage: Stage) -> Sequence[Finding]:
    """Kill so often, and count the losses."""
    with ExitStack() as stack:
        store = stack.enter_context(store_server(stage.folder / "store", fsync="always"))
        environ = {
            "MIDSTREAM_REDIS_URL": store.url,
            "MIDSTREAM_STORE_DURABILITY": "disk",
            "MIDSTREAM_LOG_LEVEL": "warning",
        }
        scripted = gateway.command(gateway.Script(words=20, pace_s=PACE_S, hurry=stage.scale.hurry))
        folders = [stage.folder / name for name in ("one", "two", "service")]
        for folder in folders:
            folder.mkdir()
        one, two = (stack.enter_context(serving(folder, environ, command=scripted)) for folder in folders[:2])
        service = stack.enter_context(serving(folders[2], environ)) if stage.scale.engines else None
        parts = Parts(store=store, gateways=(one, two), service=service)
        talkers, killed = asyncio.run(_rounds(parts, stage))
        told = asyncio.run(accounts(parts, talkers))
        logged = [error for server in parts.servers for error in unhandled(server.log)]
    return tuple(_findings(stage, talkers, killed, told, logged))


async def _rounds(parts: Parts, stage: Stage) -> tuple[list[Talker], Counter[str]]:
    """Kill while the talkers talk; then let the open turns end."""
    loop, draw, killed = asyncio.get_running_loop(), stage.draw(), Counter[str]()
    turns = count()
    urls = [server.ws_url for server in parts.servers]
    talkers = [Talker(f"talker-{number}", _next_of(urls, turns)) for number in range(stage.scale.talkers)]
    talking = [asyncio.create_task(talker.talk()) for talker in talkers]
    end = loop.time() + TIME_S
    while killed.total() < stage.scale.kills and loop.time() < end:
        await asyncio.sleep(draw.uniform(*CALM_S))
        if (victim := await asyncio.to_thread(parts.kill, draw)) is not None:
            killed[victim] += 1
            stage.say(f"  {killed.total()}: {victim} killed, {_ended(talkers)} replies")
            await go_on(talkers)
    for talker in talkers:
        talker.stop()
    await asyncio.wait(talking, timeout=QUIET_S)
    for task in talking:
        task.cancel()
    await asyncio.gather(*talking, return_exceptions=True)
    for talker in talkers:
        await talker.leave()
    return talkers, killed


async def go_on(talkers: Sequence[Talker], *, within_s: float = GO_ON_S) -> None:
    """Wait until some talkers got replies again: before that there is nothing new to lose. Gives up after `within_s`."""
    wanted = _ended(talkers) + len(talkers) // 4
    end = asyncio.get_running_loop().time() + within_s
    while _ended(talkers) < wanted and asyncio.get_running_loop().time() < end:  # noqa: ASYNC110 - no single event
        await asyncio.sleep(LOOK_S)


def _ended(talkers: Sequence[Talker]) -> int:
    return sum(talker.ended for talker in talkers)


def _next_of(urls: list[str], turns: Iterator[int]) -> Callable[[], str]:
    return lambda: urls[next(turns) % len(urls)]


async def accounts(parts: Parts, talkers: Sequence[Talker], *, within_s: float = QUIET_S) -> list[Account]:
    """Return the talkers' accounts, once everything is up again. Raises TimeoutError."""
    for server in parts.servers:
        await asyncio.to_thread(server.wait_ready)
    return await Company([*talkers]).accounts(within_s=within_s)


def _findings(
    stage: Stage,
    talkers: list[Talker],
    killed: Counter[str],
    accounts: list[Account],
    logged: list[str],
) -> Iterator[Finding]:
    yield Finding(
        part=Part.KILLS,
        label="kill -9",
        value=float(killed.total()),
        readings={name: float(times) for name, times in sorted(killed.items())},
        target=Target(float(stage.scale.kills)),
    )
    yield Finding(
        part=Part.KILLS,
        label=f"{len(talkers)} talking clients: replies to the end",
        value=float(_ended(talkers)),
        readings={
            "acknowledged": float(sum(len(talker.said) for talker in talkers)),
            "connections lost": float(sum(talker.device.losses for talker in talkers)),
            "unanswered for 20 s": float(sum(talker.unanswered for talker in talkers)),
            "gaps told": float(sum(talker.device.ledger.gaps for talker in talkers)),
            "ends told as not saved": float(len(Company(talkers).unsaved)),
            "ends that the store lost": float(sum(talker.device.ledger.lost_ends for talker in talkers)),
        }
        | dict[str, float](sum((talker.refusals for talker in talkers), Counter())),
    )
    yield from kept_promises(Part.KILLS, accounts, logged)


def _kill_and_start(server: ServerProcess) -> None:
    server.kill()
    server.start(wait=False)
