"""The inputs of a part: its scale, a folder, a seed, and a function that reports progress."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """Size of each part. `…_s` are seconds."""

    hurry: float
    """How many times shorter leases and heartbeats are than the product's."""
    settle_s: float
    """Seconds between an action and the measurement of its remains."""
    streams: int
    streams_s: float
    """Seconds that each server of the fan-out is measured."""
    idle: int
    storm_per_s: int
    storm_s: float
    slow: int
    normal: int
    calm_s: float
    """Seconds that the normal readers are measured without the slow ones, before and after."""
    frames: int
    handshakes: int
    stalls: int
    stall_s: float
    weather_s: float
    """Seconds of each network trouble."""
    replicas: tuple[int, ...]
    cancels: int
    """Cancels from another replica, for each number of replicas."""
    owner_kills: int
    owner_stall_s: float
    failovers: int
    """Masters that are replaced, in a cluster and under Sentinels."""
    partitions: int
    """Troubles of one replica's link to the store."""
    spoils: int
    """Times that conversations are taken from the store, or their journals corrupted."""
    kills: int
    power_failures: int
    """Kills of an embedded store whose disk loses what was not synced."""
    engines: bool
    """True if engine processes are killed too."""
    chat_clients: int
    upgrades: int
    """Replicas of an earlier version; all are replaced by today's."""
    tool_kills: int
    """Kills of gateways and of the store, while calls are open."""
    walks: int
    """Random walks of the state machine."""
    cuts: int
    """Spoken replies that are cut."""


FULL = Scale(
    hurry=1.0,
    settle_s=2.0,
    streams=64,
    streams_s=10.0,
    idle=10_000,
    storm_per_s=1_000,
    storm_s=5.0,
    slow=1_000,
    normal=16,
    calm_s=20.0,
    frames=100_000,
    handshakes=10_000,
    stalls=2,
    stall_s=7.0,
    weather_s=3.0,
    replicas=(2, 3),
    cancels=200,
    owner_kills=3,
    owner_stall_s=15.0,
    failovers=20,
    partitions=12,
    spoils=6,
    kills=1_000,
    power_failures=20,
    engines=True,
    chat_clients=16,
    upgrades=2,
    tool_kills=200,
    walks=100,
    cuts=1_000,
)

QUICK = Scale(
    hurry=8.0,
    settle_s=0.3,
    streams=8,
    streams_s=0.5,
    idle=100,
    storm_per_s=100,
    storm_s=0.5,
    slow=10,
    normal=2,
    calm_s=0.5,
    frames=1_000,
    handshakes=200,
    stalls=1,
    stall_s=1.0,
    weather_s=0.25,
    replicas=(2,),
    cancels=5,
    owner_kills=1,
    owner_stall_s=2.0,
    failovers=1,
    partitions=6,
    spoils=2,
    kills=3,
    power_failures=2,
    engines=False,
    chat_clients=4,
    upgrades=1,
    tool_kills=3,
    walks=3,
    cuts=6,
)


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """Context of a part. `folder` is its own and empty."""

    scale: Scale
    folder: Path
    seed: int
    log: Callable[[str], None]

    def draw(self) -> Random:
        """Return the part's random numbers, the same for the same seed."""
        return Random(self.seed)
