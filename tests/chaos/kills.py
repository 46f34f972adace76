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
from tests.bench.engine.report import Target
from tests.chaos import gateway
from tests.chaos.chat_client import Account, ChatClient
from tests.chaos.client_group import QUIET_S, ClientGroup, check_guarantees
from tests.chaos.report import Finding, Part
from tests.chaos.scenario import Scenario
from tests.chaos.server_log import unhandled
from tests.chaos.store_server import StoreServer, store_server
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


def measure(scenario: Scenario) -> Sequence[Finding]:
    """Kill so often, and count the losses."""
    with ExitStack() as stack:
        store = stack.enter_context(store_server(scenario.folder / "store", fsync="always"))
        environ = {
            "MIDSTREAM_REDIS_URL": store.url,
            "MIDSTREAM_STORE_DURABILITY": "disk",
            "MIDSTREAM_LOG_LEVEL": "warning",
        }
        scripted = gateway.command(gateway.Script(words=20, pace_s=PACE_S, hurry=scenario.scale.hurry))
        folders = [scenario.folder / name for name in ("one", "two", "service")]
        for folder in folders:
            folder.mkdir()
        one, two = (stack.enter_context(serving(folder, environ, command=scripted)) for folder in folders[:2])
        service = stack.enter_context(serving(folders[2], environ)) if scenario.scale.engines else None
        parts = Parts(store=store, gateways=(one, two), service=service)
        chat_clients, killed = asyncio.run(_rounds(parts, scenario))
        reported = asyncio.run(accounts(parts, chat_clients))
        logged = [error for server in parts.servers for error in unhandled(server.log)]
    return tuple(_findings(scenario, chat_clients, killed, reported, logged))


async def _rounds(parts: Parts, scenario: Scenario) -> tuple[list[ChatClient], Counter[str]]:
    """Kill while the talkers talk; then let the open turns end."""
    loop, draw, killed = asyncio.get_running_loop(), scenario.draw(), Counter[str]()
    turns = count()
    urls = [server.ws_url for server in parts.servers]
    chat_clients = [
        ChatClient(f"talker-{number}", _next_of(urls, turns)) for number in range(scenario.scale.chat_clients)
    ]
    talking = [asyncio.create_task(chat_client.talk()) for chat_client in chat_clients]
    end = loop.time() + TIME_S
    while killed.total() < scenario.scale.kills and loop.time() < end:
        await asyncio.sleep(draw.uniform(*CALM_S))
        if (victim := await asyncio.to_thread(parts.kill, draw)) is not None:
            killed[victim] += 1
            scenario.log(f"  {killed.total()}: {victim} killed, {_ended(chat_clients)} replies")
            await until_serving_again(chat_clients)
    for chat_client in chat_clients:
        chat_client.stop()
    await asyncio.wait(talking, timeout=QUIET_S)
    for task in talking:
        task.cancel()
    await asyncio.gather(*talking, return_exceptions=True)
    for chat_client in chat_clients:
        await chat_client.leave()
    return chat_clients, killed


async def until_serving_again(chat_clients: Sequence[ChatClient], *, within_s: float = GO_ON_S) -> None:
    """Wait until some talkers got replies again: before that there is nothing new to lose. Gives up after `within_s`."""
    wanted = _ended(chat_clients) + len(chat_clients) // 4
    end = asyncio.get_running_loop().time() + within_s
    while _ended(chat_clients) < wanted and asyncio.get_running_loop().time() < end:  # noqa: ASYNC110 - no single event
        await asyncio.sleep(LOOK_S)


def _ended(chat_clients: Sequence[ChatClient]) -> int:
    return sum(chat_client.ended for chat_client in chat_clients)


def _next_of(urls: list[str], turns: Iterator[int]) -> Callable[[], str]:
    return lambda: urls[next(turns) % len(urls)]


async def accounts(
    parts: Parts, chat_clients: Sequence[ChatClient], *, within_s: float = QUIET_S
) -> list[Account]:
    """Return the talkers' accounts, once everything is up again. Raises TimeoutError."""
    for server in parts.servers:
        await asyncio.to_thread(server.wait_ready)
    return await ClientGroup([*chat_clients]).accounts(within_s=within_s)


def _findings(
    scenario: Scenario,
    chat_clients: list[ChatClient],
    killed: Counter[str],
    accounts: list[Account],
    logged: list[str],
) -> Iterator[Finding]:
    yield Finding(
        part=Part.KILLS,
        label="kill -9",
        value=float(killed.total()),
        readings={name: float(times) for name, times in sorted(killed.items())},
        target=Target(float(scenario.scale.kills)),
    )
    yield Finding(
        part=Part.KILLS,
        label=f"{len(chat_clients)} talking clients: replies to the end",
        value=float(_ended(chat_clients)),
        readings={
            "acknowledged": float(sum(len(chat_client.sent) for chat_client in chat_clients)),
            "connections lost": float(sum(chat_client.device.losses for chat_client in chat_clients)),
            "unanswered for 20 s": float(sum(chat_client.unanswered for chat_client in chat_clients)),
            "gaps told": float(sum(chat_client.device.event_checker.gaps for chat_client in chat_clients)),
            "ends told as not saved": float(len(ClientGroup(chat_clients).unsaved)),
            "ends that the store lost": float(
                sum(chat_client.device.event_checker.lost_ends for chat_client in chat_clients)
            ),
        }
        | dict[str, float](sum((chat_client.refusals for chat_client in chat_clients), Counter())),
    )
    yield from check_guarantees(Part.KILLS, accounts, logged)


def _kill_and_start(server: ServerProcess) -> None:
    server.kill()
    server.start(wait=False)
