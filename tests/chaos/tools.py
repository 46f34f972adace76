"""Parts are killed while calls of tools are open: none is started twice, each turn ends once, every prompt is well formed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path

from tests.bench.engine.findings import Target
from tests.chaos import calling, gateway
from tests.chaos.caller import Caller
from tests.chaos.company import Company
from tests.chaos.device import Lost
from tests.chaos.kills import CALM_S, PACE_S, Parts, go_on
from tests.chaos.report import Finding, Part
from tests.chaos.server_log import unhandled
from tests.chaos.stage import Stage
from tests.chaos.store_server import store_server
from tests.chaos.talker import Account
from tests.server_process import serving

TIME_S = 900.0
GO_ON_S = 10.0
QUIET_S = 120.0
"""For exchanges under way: each has several turns, and calls that are taken over first."""
NONE = Target(0.0, at_most=True)


def measure(stage: Stage) -> Sequence[Finding]:
    """Kill so often, and count what is missing, and what there is too much."""
    started, malformed = stage.folder / "started", stage.folder / "malformed"
    for file in (started, malformed):
        file.touch()
    with ExitStack() as stack:
        store = stack.enter_context(store_server(stage.folder / "store", fsync="always"))
        environ = {
            "MIDSTREAM_REDIS_URL": store.url,
            "MIDSTREAM_STORE_DURABILITY": "always",
            "MIDSTREAM_LOG_LEVEL": "warning",
            "MIDSTREAM_TOOLS": "tests.chaos.calling:note",
            calling.STARTED: str(started),
            calling.MALFORMED: str(malformed),
        } | gateway.UNHURRIED
        script = gateway.Script(words=10, pace_s=PACE_S, hurry=stage.scale.hurry, calls=True)
        servers = []
        for name in ("one", "two", "three"):
            (stage.folder / name).mkdir()
            servers.append(
                stack.enter_context(serving(stage.folder / name, environ, command=gateway.command(script)))
            )
        parts = Parts(store=store, gateways=servers, service=None)
        callers, killed = asyncio.run(_rounds(parts, stage))
        accounts = asyncio.run(_accounts(parts, callers))
        logged = [error for server in parts.servers for error in unhandled(server.log)]
    return tuple(
        _findings(
            stage,
            callers,
            killed,
            accounts,
            started=_lines(started),
            malformed=_lines(malformed),
            logged=logged,
        )
    )


async def _rounds(parts: Parts, stage: Stage) -> tuple[list[Caller], Counter[str]]:
    loop, draw, killed, turns = asyncio.get_running_loop(), stage.draw(), Counter[str](), count()
    urls = [server.ws_url for server in parts.servers]
    callers = [
        Caller(f"caller-{number}", lambda: urls[next(turns) % len(urls)], draw=stage.draw())
        for number in range(stage.scale.talkers)
    ]
    talking = [asyncio.create_task(caller.talk()) for caller in callers]
    end = loop.time() + TIME_S
    try:
        while killed.total() < stage.scale.tool_kills and loop.time() < end:
            await asyncio.sleep(draw.uniform(*CALM_S))
            if (victim := await asyncio.to_thread(parts.kill, draw)) is not None:
                killed[victim] += 1
                stage.say(
                    f"  {killed.total()}: {victim} killed, {sum(one.ended for one in callers)} exchanges"
                )
                await go_on(callers, within_s=GO_ON_S)
        for caller in callers:
            caller.stop()
        await asyncio.wait(talking, timeout=QUIET_S)
    finally:
        for task in talking:
            task.cancel()
        await asyncio.gather(*talking, return_exceptions=True)
        for caller in callers:
            await caller.device.leave()
            await caller.phone.leave()
    return callers, killed


async def _accounts(parts: Parts, callers: list[Caller]) -> list[Account]:
    for server in parts.servers:
        await asyncio.to_thread(server.wait_ready)
    company = Company([*callers])
    return [company.judged(await _account(caller)) for caller in callers]


async def _account(caller: Caller) -> Account:
    """Of both devices. Raises TimeoutError where no server answers."""
    async with asyncio.timeout(QUIET_S):
        while True:
            try:
                account = await caller.account()
            except Lost:
                await asyncio.sleep(0.1)
            else:
                await caller.device.leave()
                account.faults.extend(caller.phone.ledger.faults)
                return account


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines()


def _twice(started: list[str]) -> list[str]:
    return [call for call, times in Counter(started).items() if times > 1]


def _findings(
    stage: Stage,
    callers: list[Caller],
    killed: Counter[str],
    accounts: list[Account],
    *,
    started: list[str],
    malformed: list[str],
    logged: list[str],
) -> Iterator[Finding]:
    calls = [call for caller in callers for call in caller.device.ledger.calls.values()]
    yield Finding(
        part=Part.TOOLS,
        label="kill -9 while calls are open",
        value=float(killed.total()),
        readings={name: float(times) for name, times in sorted(killed.items())},
        target=Target(float(stage.scale.tool_kills)),
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
            "gaps told": float(sum(caller.device.ledger.gaps for caller in callers)),
        },
    )
    yield _none("calls that a server started twice", _twice(started))
    yield _none("prompts that were not well formed", malformed)
    for label, name in Account.LABELS.items():
        yield _none(label, [one for account in accounts for one in getattr(account, name)])
    yield Finding(
        part=Part.TOOLS,
        label="errors in the logs",
        value=float(len(logged)),
        note="; ".join(sorted(set(logged))[:3]),
    )


def _none(label: str, found: list[str]) -> Finding:
    return Finding(
        part=Part.TOOLS, label=label, value=float(len(found)), target=NONE, note="; ".join(found[:3])
    )
