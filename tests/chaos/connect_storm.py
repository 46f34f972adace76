"""Clients that all connect at once, as after a restart: each is served or refused with a reason, and none hangs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import cycle

from tests.bench.engine.report import Target
from tests.bench.statistics import percentile
from tests.chaos import gateway
from tests.chaos.minimal_websocket import Dropped, MinimalWebSocket, Refused
from tests.chaos.report import Finding, Part
from tests.chaos.scenario import Scale, Scenario
from tests.server_process import serving

WITHIN_S = 5.0
SOURCES = tuple(f"127.0.0.{last}" for last in range(2, 6))
"""Loopback addresses to connect from, so that no port is used twice."""
TICK_S = 0.02


def measure(scenario: Scenario) -> Sequence[Finding]:
    """Run the storm."""
    with serving(scenario.folder, command=gateway.command(gateway.Script())) as server:
        outcomes = asyncio.run(_storm(server.port, scenario.scale))
    served = [outcome for outcome in outcomes if isinstance(outcome, float)]
    refused = sum(isinstance(outcome, Refused) for outcome in outcomes)
    hung = len(outcomes) - len(served) - refused
    slowest, middle = percentile(served, 1.0), percentile(served, 0.5)
    return (
        Finding(
            part=Part.STORM,
            label=f"{scenario.scale.storm_per_s} connects/s: neither served nor refused in {WITHIN_S:g} s",
            value=float(hung),
            readings={"served": float(len(served)), "refused with a reason": float(refused)},
            target=Target(0.0, at_most=True),
        ),
        Finding(
            part=Part.STORM,
            label="from connect to ready, slowest",
            value=None if slowest is None else slowest * 1000,
            unit="ms",
            readings={} if middle is None else {"p50": middle * 1000},
        ),
    )


async def _storm(port: int, scale: Scale) -> list[float | Exception | None]:
    """Connect at a steady pace, whether the server keeps up or not."""
    loop, sources = asyncio.get_running_loop(), cycle(SOURCES)
    opened: list[MinimalWebSocket] = []
    coming: list[asyncio.Task[float | Exception | None]] = []
    started, total = loop.time(), int(scale.storm_per_s * scale.storm_s)
    while len(coming) < total:
        due = min(total, int((loop.time() - started) * scale.storm_per_s) + 1)
        coming += [asyncio.create_task(_come(port, next(sources), opened)) for _ in range(due - len(coming))]
        await asyncio.sleep(TICK_S)
    outcomes = await asyncio.gather(*coming)
    for one in opened:
        one.close()
    return outcomes


async def _come(port: int, source: str, opened: list[MinimalWebSocket]) -> float | Exception | None:
    """Return the seconds until `ready`, or what came instead, or None if nothing came."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    try:
        async with asyncio.timeout(WITHIN_S):
            one = await MinimalWebSocket.connect(("127.0.0.1", port), source=source)
            opened.append(one)
            await one.send_hello()
    except TimeoutError:
        return None
    except (Refused, Dropped, OSError) as error:
        return error
    return loop.time() - started
