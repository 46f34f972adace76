"""A store that hangs, and networks that cut, delay, trickle and stall: between clients and server, and behind the server.

The hanging store is measured separately, because it may drop no socket; the network troubles come one after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from random import Random

import msgspec

from tests.bench.engine.report import Target
from tests.chaos import gateway
from tests.chaos.chat_client import Account, ChatClient
from tests.chaos.proxy import FAIR, Proxy, Weather, proxy
from tests.chaos.report import Finding, Part
from tests.chaos.scenario import Scenario
from tests.chaos.store_server import StoreServer, store_server
from tests.server_process import ServerProcess

NONE = Target(0.0, at_most=True)
PACE_S = 0.05
QUIET_S = 60.0
TRICKLE = Weather(delay_s=0.002, piece_bytes=64)
LAG = Weather(delay_s=0.05)


class Scene(msgspec.Struct, frozen=True):
    """A server behind a proxy, with a store behind another one, and clients that talk."""

    store: StoreServer
    clients: Proxy
    stores: Proxy
    chat_clients: list[ChatClient]

    @property
    def losses(self) -> int:
        """Connections that clients lost so far."""
        return sum(chat_client.device.losses for chat_client in self.chat_clients)


def measure(scenario: Scenario) -> Sequence[Finding]:
    """Have clients talk through all troubles."""
    with store_server(scenario.folder / "store") as store:
        return asyncio.run(_measure(scenario, store))


async def _measure(scenario: Scenario, store: StoreServer) -> Sequence[Finding]:
    async with _scene(scenario, store) as scene:
        talking = [asyncio.create_task(chat_client.talk()) for chat_client in scene.chat_clients]
        calm_s = scenario.scale.weather_s
        await asyncio.sleep(calm_s)
        before = scene.losses
        for _ in range(scenario.scale.stalls):
            store.stall()
            await asyncio.sleep(scenario.scale.stall_s)
            store.wake()
            await asyncio.sleep(calm_s)
        dropped = scene.losses - before
        for name, weather in _weathers(scenario.draw()):
            scenario.log(f"  {name}")
            weather(scene)
            await asyncio.sleep(scenario.scale.weather_s)
            _clear(scene)
            await asyncio.sleep(calm_s / 2)
        await asyncio.sleep(calm_s)
        for chat_client in scene.chat_clients:
            chat_client.stop()
        await asyncio.wait(talking, timeout=QUIET_S)
        accounts = [await chat_client.account() for chat_client in scene.chat_clients]
        ended = sum(chat_client.ended for chat_client in scene.chat_clients)
        findings = tuple(_findings(scenario, accounts, dropped, scene.losses, ended))
        for task in talking:
            task.cancel()
        await asyncio.gather(*talking, return_exceptions=True)
        for chat_client in scene.chat_clients:
            await chat_client.leave()
    return findings


@asynccontextmanager
async def _scene(scenario: Scenario, store: StoreServer) -> AsyncIterator[Scene]:
    async with proxy(store.port) as stores:
        environ = {"MIDSTREAM_REDIS_URL": f"redis://127.0.0.1:{stores.port}"}
        command = gateway.command(gateway.Script(words=20, pace_s=PACE_S))
        server = ServerProcess(scenario.folder, environ, command=command)
        await asyncio.to_thread(server.start)
        try:
            async with proxy(server.port) as clients:
                url = f"ws://127.0.0.1:{clients.port}/v1/ws"
                names = [f"talker-{number}" for number in range(scenario.scale.chat_clients)]
                yield Scene(store, clients, stores, [ChatClient(name, lambda: url) for name in names])
        finally:
            _open(stores)
            await asyncio.to_thread(server.stop)


def _weathers(draw: Random) -> list[tuple[str, Callable[[Scene], None]]]:
    """The network's troubles, in any order."""
    weathers: list[tuple[str, Callable[[Scene], None]]] = [
        ("clients are cut off", lambda scene: scene.clients.cut()),
        ("the way to clients lags", lambda scene: _set(scene.clients, LAG)),
        ("the way to clients trickles", lambda scene: _set(scene.clients, TRICKLE)),
        ("the way to clients stands still", lambda scene: scene.clients.stall()),
        ("the store is cut off", lambda scene: scene.stores.cut()),
        ("the way to the store lags", lambda scene: _set(scene.stores, LAG)),
        ("the way to the store trickles", lambda scene: _set(scene.stores, TRICKLE)),
        ("the way to the store stands still", lambda scene: scene.stores.stall()),
        ("the store is out of reach", _out_of_reach),
    ]
    draw.shuffle(weathers)
    return weathers


def _set(between: Proxy, weather: Weather) -> None:
    between.there = between.back = weather


def _out_of_reach(scene: Scene) -> None:
    scene.stores.refuse()
    scene.stores.cut()


def _clear(scene: Scene) -> None:
    for between in (scene.clients, scene.stores):
        _open(between)


def _open(between: Proxy) -> None:
    _set(between, FAIR)
    between.refuse(refuse=False)
    between.flow()


def _findings(
    scenario: Scenario, accounts: list[Account], dropped: int, losses: int, ended: int
) -> Iterator[Finding]:
    yield Finding(
        part=Part.NETWORK,
        label=f"a store that stands still for {scenario.scale.stall_s:g} s: sockets dropped",
        value=float(dropped),
        readings={"stalls": float(scenario.scale.stalls)},
        target=NONE,
    )
    yield Finding(
        part=Part.NETWORK,
        label="that, and cuts, delays and trickles on both sides: replies to the end",
        value=float(ended),
        readings={"connections lost": float(losses)},
    )
    for label, name in Account.LABELS.items():
        found = [one for account in accounts for one in getattr(account, name)]
        yield Finding(
            part=Part.NETWORK, label=label, value=float(len(found)), target=NONE, note="; ".join(found[:3])
        )
