"""The inputs of a part of `make chaos`: its scale, a folder and a seed."""

from __future__ import annotations

from pathlib import Path
from random import Random

import msgspec


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """Size of each part. `…_s` are seconds."""

    hurry: float = 1.0
    """How many times shorter leases and heartbeats are than the product's."""
    settle_s: float = 2.0
    """Seconds between an action and the measurement of its remains."""
    frames: int = 100_000
    handshakes: int = 10_000
    stalls: int = 2
    stall_s: float = 7.0
    weather_s: float = 3.0
    """Seconds of each network trouble."""
    failovers: int = 20
    """Masters that are replaced, in a cluster and under Sentinels."""
    partitions: int = 24
    """Troubles of a replica's link to the store, or to its clients."""
    kills: int = 1_000
    power_failures: int = 20
    """Kills of an embedded store whose disk loses what was not synced."""
    engines: bool = True
    """True if engine processes are killed too."""
    chat_clients: int = 16
    tool_kills: int = 200
    """Kills of gateways and of the store, while calls are open."""
    walks: int = 100
    """Random walks of the state machine."""


FULL = Scale()
QUICK = Scale(
    hurry=8.0, settle_s=0.3, frames=1_000, handshakes=200, stalls=1, stall_s=1.0, weather_s=0.25, failovers=1,
    partitions=12, kills=3, power_failures=2, engines=False, chat_clients=4, tool_kills=3, walks=3,
)  # fmt: skip


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """Context of a part. `folder` is its own and empty."""

    scale: Scale
    folder: Path
    seed: int

    def draw(self) -> Random:
        """Return the part's random numbers, the same for the same seed."""
        return Random(self.seed)
