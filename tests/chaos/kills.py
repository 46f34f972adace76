"""Parts are killed at random while clients talk and reconnect: no acknowledged message is lost or doubled.

`kills`: three replicas share one store: two with scripted engines, which restart within a second or two, and the whole service
with the bundled model, whose engine process is killed too. The store writes to its disk before it answers
(`MIDSTREAM_STORE_DURABILITY=disk`): a store that writes each second may lose two seconds when its process dies.

`power-failures`: the embedded store is killed, alone or with its service, and what its disk had not synced is gone. The service has
its defaults; the same clients then talk to one with `MIDSTREAM_STORE_DURABILITY=memory`, which has to lose something: otherwise
this part would show nothing.

`tools`: tool calls are open meanwhile: no call starts twice, each turn ends once, every prompt is well formed.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from random import Random
from time import monotonic
from typing import ClassVar

from engine.process.supervision import RestartPolicy
from tests.bench.report import Measured, Target, none, say
from tests.chaos import gateway, scripted_tools
from tests.chaos.chat_client import (
    PACE_S,
    PAUSE_S,
    QUIET_S,
    Account,
    ChatClient,
    ClientGroup,
    Device,
    Lost,
    SentMessage,
    errors,
    gateways,
    run_clients,
)
from tests.chaos.event_checker import SETTLED, Frame
from tests.chaos.scenario import Scenario
from tests.chaos.server_log import unhandled
from tests.chaos.store_server import StoreServer, store_server
from tests.faulty_disk import disk
from tests.server_process import ServerProcess, child_of, serving

Kill = Callable[[Random], str | None]
"""Kills a part and restarts it; returns its name, or None if it is not running at the moment."""
VICTIMS = {"gateway": 8, "store": 5}
"""Relative frequency of each part's deaths."""
VICTIMS_OF_THE_SERVICE = {"service": 1, "engine": 4}
ENGINE_DEATHS = RestartPolicy().deaths - 2
"""Deaths of one service's engine process; after one more its supervisor gives up, as it should."""
CALM_S = (0.1, 1.2)
"""Seconds between a part's return and the next death, drawn at random."""
GO_ON_S = 2.5
KILLS_S, TOOLS_S = 2520.0, 900.0
"""Seconds after which the rounds end, however many there were."""
TOOLS_GO_ON_S, TOOLS_QUIET_S = 10.0, 120.0
"""Open exchanges have several turns each, and calls that another replica has to take over."""
KILLS_IN_MEMORY = 3
STORE_DEATH = "embedded store ended"
IMPATIENCE_S = 5.0
"""How long open turns may take to end if some are lost, and never will."""
CONFLICT_S = 2.0


class Parts:
    """The parts that it may kill. `service` is the one with a real engine, if there is one."""

    def __init__(
        self, store: StoreServer, scripted: Sequence[ServerProcess], service: ServerProcess | None
    ) -> None:
        self.servers = [*scripted, *([service] if service else [])]
        self._store, self._scripted, self._service = store, scripted, service
        self._engine_deaths = 0

    def kill(self, draw: Random) -> str | None:
        """Kill one of them. See `Kill`."""
        victims = VICTIMS | (VICTIMS_OF_THE_SERVICE if self._service else {})
        victim = draw.choices(list(victims), list(victims.values()))[0]
        if victim == "engine" and self._engine_deaths == ENGINE_DEATHS:
            victim = "service"
        if victim == "store":
            self._store.kill()
            self._store.start()
        elif victim == "engine" and self._service:
            return victim if self._kill_engine(self._service) else None
        else:
            server = draw.choice(self._scripted) if victim == "gateway" else self._service
            assert server is not None
            server.kill()
            server.start(wait=False)
            self._engine_deaths *= victim == "gateway"
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


async def _kill_often(
    scenario: Scenario,
    group: ClientGroup,
    kill: Kill,
    times: int,
    *,
    limit_s: float,
    within_s: float = GO_ON_S,
) -> Counter[str]:
    """Kill so often while clients talk; return how often each part was."""
    draw, killed, end = scenario.draw(), Counter[str](), monotonic() + limit_s
    while killed.total() < times and monotonic() < end:
        await asyncio.sleep(draw.uniform(*CALM_S))
        if (victim := await asyncio.to_thread(kill, draw)) is not None:
            killed[victim] += 1
            say(f"  {killed.total()}: {victim} killed, {group.ended} replies")
            await group.serving_again(within_s)
    return killed


def _killed(label: str, killed: Counter[str], times: int) -> Measured:
    readings = {name: float(count) for name, count in sorted(killed.items())}
    return Measured(label=label, value=float(killed.total()), readings=readings, target=Target(float(times)))


async def kills(scenario: Scenario) -> Sequence[Measured]:
    """Kill so often, and count the losses."""
    times, killed, service = scenario.scale.kills, Counter[str](), None
    async with AsyncExitStack() as stack:
        store = stack.enter_context(store_server(scenario.folder / "store", fsync="always"))
        environ = {"MIDSTREAM_REDIS_URL": store.url, "MIDSTREAM_STORE_DURABILITY": "disk"}
        if scenario.scale.engines:
            (folder := scenario.folder / "service").mkdir()
            service = stack.enter_context(serving(folder, environ | {"MIDSTREAM_LOG_LEVEL": "warning"}))
        scripted = await stack.enter_async_context(gateways(scenario, environ, environ))
        parts = Parts(store, scripted, service)

        async def happens(group: ClientGroup) -> None:
            killed.update(await _kill_often(scenario, group, parts.kill, times, limit_s=KILLS_S))
            for server in parts.servers:
                await asyncio.to_thread(server.wait_ready)

        group, accounts = await run_clients(scenario, [server.ws_url for server in parts.servers], happens)
        label = f"{len(group.chat_clients)} talking clients"
        found = [_killed("kill -9", killed, times), *group.findings(label, accounts, times)]
        return [*found, errors("kill -9", parts.servers)]


async def power_failures(scenario: Scenario) -> Sequence[Measured]:
    """Kill so often, and count the losses."""
    times = scenario.scale.power_failures
    killed, group, accounts, logged = await _power_fails(scenario, "disk", times)
    _, in_memory, lossy, _ = await _power_fails(scenario, "memory", KILLS_IN_MEMORY)
    label, acknowledged = (
        "store killed, unsynced writes gone",
        sum(len(one.sent) for one in in_memory.chat_clients),
    )
    return [
        _killed(label, killed, times),
        *group.findings(label, accounts, times),
        Measured(label=f"{label}: errors in the logs", value=float(len(logged)), note="; ".join(logged[:3])),
        Measured(
            label=f"acknowledged messages lost in {KILLS_IN_MEMORY} kills with store_durability=memory",
            value=float(sum(len(account.lost) for account in lossy)),
            readings={"acknowledged": float(acknowledged)},
            target=Target(1.0),
        ),
    ]


async def _power_fails(
    scenario: Scenario, durability: str, times: int
) -> tuple[Counter[str], ClientGroup, list[Account], list[str]]:
    killed, recovers = Counter[str](), durability == "disk"
    folder = scenario.folder / durability
    folder.mkdir()
    environ = {"MIDSTREAM_LOG_LEVEL": "warning", "MIDSTREAM_STORE_DURABILITY": durability}
    environ |= disk(folder, store=folder / "data" / "store")
    script = gateway.Script(words=20, pace_s=PACE_S, hurry=scenario.scale.hurry)
    with serving(folder, environ, command=gateway.command(script)) as service:

        def kill(_draw: Random) -> str:
            """Kill the store, which its service restarts, or both: the store first, which would write all if its service ended."""
            assert service.process is not None
            store = child_of(service.process.pid, r"(valkey|redis)-server")
            assert store is not None, "no store runs"
            os.kill(store, signal.SIGKILL)
            with_service = killed["all"] % 2 == 1
            killed["all"] += 1
            if with_service:
                service.kill()
                service.start()
            else:
                service.wait_ready()
            return "store and service" if with_service else "store"

        async def happens(group: ClientGroup) -> None:
            found = await _kill_often(scenario, group, kill, times, limit_s=KILLS_S)
            killed.clear()
            killed.update(found)
            await asyncio.to_thread(service.wait_ready)

        quiet_s = QUIET_S if recovers else IMPATIENCE_S
        urls = [service.ws_url]
        group, accounts = await run_clients(scenario, urls, happens, quiet_s=quiet_s, recovers=recovers)
        logged = [error for error in unhandled(service.log) if not error.startswith(STORE_DEATH)]
    return killed, group, accounts, logged


async def tools(scenario: Scenario) -> Sequence[Measured]:
    """Kill so often while calls are open, and count losses and duplicates."""
    times, killed = scenario.scale.tool_kills, Counter[str]()
    started, malformed = scenario.folder / "started", scenario.folder / "malformed"
    script = gateway.Script(words=10, pace_s=PACE_S, hurry=scenario.scale.hurry, calls=True)
    callers: list[ToolClient] = []

    def make(name: str, url: Callable[[], str]) -> ToolClient:
        callers.append(ToolClient(name, url, draw=scenario.draw()))
        return callers[-1]

    async with AsyncExitStack() as stack:
        store = stack.enter_context(store_server(scenario.folder / "store", fsync="always"))
        environ = gateway.UNHURRIED | {
            "MIDSTREAM_REDIS_URL": store.url,
            "MIDSTREAM_STORE_DURABILITY": "disk",
            "MIDSTREAM_TOOLS": "tests.chaos.scripted_tools:note",
            scripted_tools.STARTED: str(started),
            scripted_tools.MALFORMED: str(malformed),
        }
        servers = await stack.enter_async_context(gateways(scenario, *[environ] * 3, script=script))
        kill = Parts(store, servers, None).kill

        async def happens(group: ClientGroup) -> None:
            limits = {"limit_s": TOOLS_S, "within_s": TOOLS_GO_ON_S}
            killed.update(await _kill_often(scenario, group, kill, times, **limits))
            for server in servers:
                await asyncio.to_thread(server.wait_ready)

        urls = [server.ws_url for server in servers]
        group, accounts = await run_clients(scenario, urls, happens, make=make, quiet_s=TOOLS_QUIET_S)
        logged = errors("kills while calls are open", servers)
    states = Counter(call["state"] for one in callers for call in one.device.event_checker.calls.values())
    readings = {f"calls {state}": float(count) for state, count in states.items()}
    starts = Counter(started.read_text().splitlines())
    twice = [call for call, times in starts.items() if times > 1]
    wrong = malformed.read_text().splitlines() if malformed.exists() else []
    settled = float(sum(one.settled for one in callers))
    return [
        _killed("kill -9 while calls are open", killed, times),
        Measured(label="calls settled by a client", value=settled, readings=readings),
        *group.findings(f"{len(callers)} clients with two devices each", accounts, times),
        logged,
        none(f"calls that a server started twice, of {starts.total()}", twice),
        none("prompts that were not well formed", wrong),
    ]


class ToolClient(ChatClient):
    """A client whose replies call tools: two devices on two servers settle the calls, and the first answer counts."""

    SEND: ClassVar[Frame] = {
        "on_disconnect": "continue",
        "tools": [*scripted_tools.CLIENTS, *scripted_tools.SERVERS],
    }
    FEATURES: ClassVar[tuple[str, ...]] = ("reasoning", "tools")

    def __init__(self, name: str, url: Callable[[], str], *, draw: Random) -> None:
        super().__init__(name, url)
        self.phone = Device(name, features=self.FEATURES)
        self.settled = 0
        self._quiet: dict[str, float] = {}
        """By call, the time until which no answer is sent: after a conflict, the other device's event will follow."""
        self._draw = draw

    async def talk(self) -> None:
        """Talk until stopped, and settle the calls of the replies."""
        settling = [asyncio.create_task(self._settle(device)) for device in (self.device, self.phone)]
        try:
            await super().talk()
        finally:
            for task in settling:
                task.cancel()
            await asyncio.gather(*settling, return_exceptions=True)

    async def leave(self) -> None:
        """Close the connections of both devices."""
        await asyncio.gather(self.device.leave(), self.phone.leave())

    async def account(self) -> Account:
        """Return the account, with the faults that the phone saw. Raises Lost."""
        account = await super().account()
        account.faults.extend(self.phone.event_checker.faults)
        return account

    def _has_end(self, sent: SentMessage) -> bool:
        """True if the whole exchange has ended: its last turn made no calls."""
        return self._has_last(sent.turn_id)

    def _has_last(self, turn_id: str) -> bool:
        """True if this turn or a later one is the last. A store that lost the following turn makes a new one."""
        turns = self.device.event_checker.turns
        turn = turns.get(turn_id)
        if turn is None or not turn.is_over:
            return False
        if turn.done is None or turn.removed or turn.done["reason"] != "tools":
            return True
        return any(self._has_last(name) for name, one in turns.items() if one.follows == turn_id)

    async def _settle(self, device: Device) -> None:
        """Answer one device's calls, again and again, until cancelled."""
        while True:
            await asyncio.sleep(self._draw.uniform(0.0, 2 * PAUSE_S))
            try:
                if not device.is_there:
                    if device is self.phone:
                        await device.come(self._url())
                    continue
                for call in self._open_calls(device):
                    await self._answer(device, call)
            except Lost:
                continue

    def _open_calls(self, device: Device) -> Iterator[Frame]:
        for call in [*device.event_checker.calls.values()]:
            if call["state"] not in SETTLED and monotonic() >= self._quiet.get(call["call_id"], 0.0):
                yield call

    async def _answer(self, device: Device, call: Frame) -> None:
        """Answer a call. A late answer may be refused: the checker ensures that no call is settled twice."""
        about = {"conversation_id": device.conversation_id, "call_id": call["call_id"]}
        if call.get("needs") == "approval" and call["state"] == "waiting":
            digest = call["args_sha256"]
            decision = "allow" if int(digest, 16) % 4 else "deny"
            answer = await device.ask(type="tool_decision", **about, args_sha256=digest, decision=decision)
        elif call.get("where") == "client":
            answer = await device.ask(type="tool_result", **about, content=f"Result of {call['call_id']}.")
        else:
            return
        if answer["type"] == "tool_ack":
            self.settled += answer["state"] in SETTLED and not answer["already"]
        elif answer["code"] == "conflict":
            self._quiet[call["call_id"]] = monotonic() + CONFLICT_S
        elif answer["code"] == "not_found":
            call["state"] = "lost"
        elif not answer["retryable"]:
            self.faults.append(f"{call['call_id']} was answered by {answer}")
