"""Runs the requested parts, each within its time; a part that fails is in the report with its reason."""

from __future__ import annotations

import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from tests.bench.engine.report import Failure
from tests.bench.machine import this_machine
from tests.chaos import (
    alert_scenarios,
    connect_storm,
    corrupt_store,
    failover,
    fan_out,
    fuzz,
    idle,
    interruptions,
    kills,
    network,
    out_of_memory,
    partitions,
    power_loss,
    random_walks,
    replicas,
    slow_readers,
    tool_calls,
    upgrade,
)
from tests.chaos.report import ChaosReport, Finding, Part
from tests.chaos.scenario import Scale, Scenario

MEASURES: dict[Part, Callable[[Scenario], Sequence[Finding]]] = {
    Part.FAN_OUT: fan_out.measure,
    Part.IDLE: idle.measure,
    Part.STORM: connect_storm.measure,
    Part.SLOW_READERS: slow_readers.measure,
    Part.FRAMES: fuzz.frames,
    Part.HANDSHAKES: fuzz.handshakes,
    Part.REALTIME_FRAMES: fuzz.realtime,
    Part.TRANSLATIONS_FRAMES: fuzz.translations,
    Part.RESPONSES_FRAMES: fuzz.responses,
    Part.AI_SDK_FRAMES: fuzz.ai_sdk,
    Part.NETWORK: network.measure,
    Part.REPLICAS: replicas.measure,
    Part.PARTITIONS: partitions.measure,
    Part.CLUSTER: failover.cluster,
    Part.CLUSTER_PLANNED: failover.cluster_planned,
    Part.CLUSTER_UNCONFIRMED: failover.cluster_unconfirmed,
    Part.SENTINEL: failover.sentinel,
    Part.SENTINEL_PLANNED: failover.sentinel_planned,
    Part.SENTINEL_UNCONFIRMED: failover.sentinel_unconfirmed,
    Part.OUT_OF_MEMORY: out_of_memory.measure,
    Part.EVICTION: corrupt_store.eviction,
    Part.POISON: corrupt_store.poison,
    Part.KILLS: kills.measure,
    Part.POWER: power_loss.measure,
    Part.WALKS: random_walks.measure,
    Part.TOOLS: tool_calls.measure,
    Part.ALERTS: alert_scenarios.measure,
    Part.UPGRADE: upgrade.measure,
    Part.CUTS: interruptions.measure,
}
"""The parts, in the order in which they run."""

LIMITS_S: dict[Part, float] = {
    Part.FAN_OUT: 150,
    Part.IDLE: 120,
    Part.STORM: 60,
    Part.SLOW_READERS: 210,
    Part.FRAMES: 150,
    Part.HANDSHAKES: 120,
    Part.REALTIME_FRAMES: 300,
    Part.TRANSLATIONS_FRAMES: 300,
    Part.RESPONSES_FRAMES: 300,
    Part.AI_SDK_FRAMES: 300,
    Part.NETWORK: 150,
    Part.REPLICAS: 240,
    Part.PARTITIONS: 300,
    Part.CLUSTER: 300,
    Part.CLUSTER_PLANNED: 300,
    Part.CLUSTER_UNCONFIRMED: 600,
    Part.SENTINEL: 300,
    Part.SENTINEL_PLANNED: 900,
    Part.SENTINEL_UNCONFIRMED: 600,
    Part.OUT_OF_MEMORY: 180,
    Part.EVICTION: 120,
    Part.POISON: 60,
    Part.KILLS: 2700,
    Part.POWER: 600,
    Part.WALKS: 180,
    Part.TOOLS: 1200,
    Part.ALERTS: 600,
    Part.UPGRADE: 300,
    Part.CUTS: 1800,
}
"""Time limits, 90 minutes in all without the parts that are run alone. A part that takes longer has failed."""

ALONE = (
    *(Part.REALTIME_FRAMES, Part.TRANSLATIONS_FRAMES, Part.RESPONSES_FRAMES, Part.AI_SDK_FRAMES),
    *(
        Part.CLUSTER_PLANNED,
        Part.CLUSTER_UNCONFIRMED,
        Part.SENTINEL_PLANNED,
        Part.SENTINEL_UNCONFIRMED,
        Part.POWER,
    ),
    *(Part.TOOLS, Part.ALERTS, Part.UPGRADE, Part.CUTS),
)
"""Parts that run only if they are named."""

PACKAGES = ("midstream-server", "uvicorn", "starlette", "websockets", "redis")


class OutOfTime(Exception):
    """A part took longer than its limit."""


def run_scenarios(
    scale: Scale, parts: Collection[Part], *, seed: int, log: Callable[[str], None]
) -> ChaosReport:
    """Run the parts. `log` gets progress lines."""
    machine = this_machine(PACKAGES)
    if machine.warning:
        log(machine.warning)
    took_s: dict[str, float] = {}
    findings: list[Finding] = []
    failures: list[Failure] = []
    for part in (one for one in MEASURES if one in parts):
        log(f"{part}: {LIMITS_S[part]:.0f} s at most")
        started = time.monotonic()
        try:
            findings += _measured(part, scale, seed, log)
        except Exception as error:  # noqa: BLE001 - a part's boundary: the other parts still run
            log(traceback.format_exc())
            failures.append(Failure(part, f"{type(error).__name__}: {error}"))
        took_s[part] = round(time.monotonic() - started, 1)
    return ChaosReport(
        date=datetime.now(UTC).date().isoformat(),
        machine=machine,
        seed=seed,
        took_s=took_s,
        findings=tuple(findings),
        failures=tuple(failures),
    )


def _measured(part: Part, scale: Scale, seed: int, log: Callable[[str], None]) -> Sequence[Finding]:
    with tempfile.TemporaryDirectory(prefix="midstream-chaos-") as folder, _no_longer_than(LIMITS_S[part]):
        return MEASURES[part](Scenario(scale=scale, folder=Path(folder), seed=seed, log=log))


@contextmanager
def _no_longer_than(seconds: float) -> Iterator[None]:
    """Raise OutOfTime inside the block once the time is up. For the main thread only."""

    def stop(_number: int, _frame: object) -> None:
        raise OutOfTime(f"not done in {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
