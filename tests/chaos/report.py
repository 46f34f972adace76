"""The findings of the bad days: one flat list, for the table and the file."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from tests.bench.engine.report import Failure, Measured
from tests.bench.machine import Machine


class Part(StrEnum):
    """The parts, as `--only` names them."""

    FAN_OUT = "fan-out"
    IDLE = "idle"
    STORM = "storm"
    SLOW_READERS = "slow-readers"
    FRAMES = "fuzz-frames"
    HANDSHAKES = "fuzz-handshakes"
    REALTIME_FRAMES = "fuzz-realtime"
    TRANSLATIONS_FRAMES = "fuzz-translations"
    RESPONSES_FRAMES = "fuzz-responses"
    AI_SDK_FRAMES = "fuzz-ai-sdk"
    NETWORK = "network"
    REPLICAS = "replicas"
    PARTITIONS = "partitions"
    CLUSTER = "cluster"
    CLUSTER_PLANNED = "cluster-planned"
    CLUSTER_UNCONFIRMED = "cluster-unconfirmed"
    SENTINEL = "sentinel"
    SENTINEL_PLANNED = "sentinel-planned"
    SENTINEL_UNCONFIRMED = "sentinel-unconfirmed"
    OUT_OF_MEMORY = "out-of-memory"
    EVICTION = "eviction"
    POISON = "poisoned-journal"
    KILLS = "kills"
    POWER = "power-failures"
    WALKS = "walks"
    TOOLS = "tools"
    ALERTS = "alerts"
    UPGRADE = "upgrade"
    CUTS = "cuts"


class Finding(Measured, frozen=True, kw_only=True):
    """A figure of one part."""

    part: Part

    @property
    def is_about_faults(self) -> bool:
        """True if its target is zero: such a finding counts on a busy machine too."""
        return self.target is not None and self.target.at_most and self.target.value == 0


class ChaosReport(msgspec.Struct, frozen=True, kw_only=True):
    """The whole result. `date` is an ISO 8601 day; `seed` repeats every random choice; `took_s` is by part."""

    date: str
    machine: Machine
    seed: int
    took_s: dict[str, float]
    findings: tuple[Finding, ...]
    failures: tuple[Failure, ...]
    cuts: tuple[str, ...] = ()

    @property
    def is_good(self) -> bool:
        """True if all parts ran and every target is met."""
        return not self.failures and all(one.met is not False for one in self.findings)


def encode(report: ChaosReport) -> bytes:
    """Return a report as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"
