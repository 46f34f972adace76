"""Parts are killed while tool calls are open: no call starts twice, each turn ends once, every prompt is well formed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path

from tests.bench.engine.report import Target
from tests.chaos import gateway, scripted_tools
from tests.chaos.chat_client import Account
from tests.chaos.client_group import check_guarantees, none
from tests.chaos.kills import CALM_S, PACE_S, Parts, accounts, until_serving_again
from tests.chaos.report import Finding, Part
from tests.chaos.scenario import Scenario
from tests.chaos.server_log import unhandled
from tests.chaos.store_server import store_server
from tests.chaos.tool_client import ToolClient
from tests.server_process import serving

TIME_S = 900.0
GO_ON_S = 10.0
QUIET_S = 120.0
"""Seconds for open exchanges: each has several turns, and calls that another replica has to take over."""


def measure(scenario: Scenario) -> Sequence[Finding]:
    """Kill so often, and count losses and duplicates."""
    started, malformed = scenario.folder / "started", scenario.folder / "malformed"
    for file in (started, malformed):
        file.touch()
    with ExitStack() as stack:
        store = stack.enter_context(store_server(scenario.folder / "store", fsync="always"))
        environ = {
            "MIDSTREAM_REDIS_URL": store.url,
            "MIDSTREAM_STORE_DURABILITY": "disk",
            "MIDSTREAM_LOG_LEVEL": "warning",
            "MIDSTREAM_TOOLS": "tests.chaos.scripted_tools:note",
            scripted_tools.STARTED: str(started),
            scripted_tools.MALFORMED: str(malformed),
        } | gateway.UNHURRIED
        script = gateway.Script(words=10, pace_s=PACE_S, hurry=scenario.scale.hurry, calls=True)
        servers = []
        for name in ("one", "two", "three"):
            (scenario.folder / name).mkdir()
            servers.append(
                stack.enter_context(serving(scenario.folder / name, environ, command=gateway.command(script)))
            )
        parts = Parts(store=store, gateways=servers, service=None)
        callers, killed = asyncio.run(_rounds(parts, scenario))
        reported = asyncio.run(accounts(parts, callers, within_s=QUIET_S))
        logged = [error for server in parts.servers for error in unhandled(server.log)]
    return tuple(
        _findings(
            scenario,
            callers,
            killed,
            reported,
            started=_lines(started),
            malformed=_lines(malformed),
            logged=logged,
        )
    )


async def _rounds(parts: Parts, scenario: Scenario) -> tuple[list[ToolClient], Counter[str]]:
    loop, draw, killed, turns = asyncio.get_running_loop(), scenario.draw(), Counter[str](), count()
    urls = [server.ws_url for server in parts.servers]
    callers = [
        ToolClient(f"caller-{number}", lambda: urls[next(turns) % len(urls)], draw=scenario.draw())
        for number in range(scenario.scale.chat_clients)
    ]
    talking = [asyncio.create_task(caller.talk()) for caller in callers]
    end = loop.time() + TIME_S
    try:
        while killed.total() < scenario.scale.tool_kills and loop.time() < end:
            await asyncio.sleep(draw.uniform(*CALM_S))
            if (victim := await asyncio.to_thread(parts.kill, draw)) is not None:
                killed[victim] += 1
                scenario.log(
                    f"  {killed.total()}: {victim} killed, {sum(one.ended for one in callers)} exchanges"
                )
                await until_serving_again(callers, within_s=GO_ON_S)
        for caller in callers:
            caller.stop()
        await asyncio.wait(talking, timeout=QUIET_S)
    finally:
        for task in talking:
            task.cancel()
        await asyncio.gather(*talking, return_exceptions=True)
        for caller in callers:
            await caller.leave()
    return callers, killed


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines()


def _twice(started: list[str]) -> list[str]:
    return [call for call, times in Counter(started).items() if times > 1]


def _findings(
    scenario: Scenario,
    callers: list[ToolClient],
    killed: Counter[str],
    accounts: list[Account],
    *,
    started: list[str],
    malformed: list[str],
    logged: list[str],
) -> Iterator[Finding]:
    calls = [call for caller in callers for call in caller.device.event_checker.calls.values()]
    yield Finding(
        part=Part.TOOLS,
        label="kill -9 while calls are open",
        value=float(killed.total()),
        readings={name: float(times) for name, times in sorted(killed.items())},
        target=Target(float(scenario.scale.tool_kills)),
    )
    yield Finding(
        part=Part.TOOLS,
        label=f"{len(callers)} clients with two devices each: exchanges to the end",
        value=float(sum(caller.ended for caller in callers)),
        readings={
            f"calls {state}": float(times) for state, times in Counter(one["state"] for one in calls).items()
        }
        | {
            "settled by a client": float(sum(caller.settled for caller in callers)),
            "started by a server": float(len(started)),
            "gaps told": float(sum(caller.device.event_checker.gaps for caller in callers)),
        },
    )
    yield none(Part.TOOLS, "calls that a server started twice", _twice(started))
    yield none(Part.TOOLS, "prompts that were not well formed", malformed)
    yield from check_guarantees(Part.TOOLS, accounts, logged)
