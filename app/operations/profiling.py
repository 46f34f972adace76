"""Profiles of the gateway and the local engines, as files in the data folder. Nothing runs until somebody asks.

The files are speedscope's JSON: https://www.speedscope.app opens them, as many tools do. They hold names of functions.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import structlog

from engine.api import Engine
from engine.process.client import EngineClient
from engine.profiler import Frame, Profile, profile

SECONDS = 10.0
MOST_FILES = 10
"""Profiles that are kept; the oldest is removed for a new one. Each has a few megabytes at most: the number and depth of stacks are bounded."""

_log = structlog.get_logger("midstream.profiling")


class Profiler:
    """Takes profiles on request, one at a time, while `run` runs."""

    def __init__(self, folder: Path, engines: Engine, *, seconds: float = SECONDS) -> None:
        """Write into `folder`, which is made on demand."""
        self._folder = folder
        self._engines = engines
        self._seconds = seconds
        self._requested = asyncio.Event()

    def request(self) -> bool:
        """Request a profile, whose file the log will name; return False if one is being taken already."""
        if self._requested.is_set():
            _log.warning("profile already running")
            return False
        self._requested.set()
        return True

    async def run(self) -> None:
        """Take the requested profiles, until cancelled."""
        while True:
            await self._requested.wait()
            _log.info("profile started", seconds=self._seconds)
            try:
                path = await self._take()
            except OSError as error:
                _log.error("profile failed", reason=f"{error.strerror or error}: {error.filename}")
            except Exception:  # noqa: BLE001 - a task's boundary: the service goes on without a profile
                _log.exception("profile failed")
            else:
                _log.info("profile written", file=str(path), open_with="https://www.speedscope.app")
            finally:
                self._requested.clear()

    async def _take(self) -> Path:
        """Raises OSError."""
        stop = threading.Event()
        engines = [part for part in self._engines.parts if isinstance(part, EngineClient)]
        try:
            gateway, *theirs = await asyncio.gather(
                asyncio.to_thread(profile, self._seconds, stop),
                *(engine.profile(self._seconds) for engine in engines),
            )
        finally:
            stop.set()
        snapshots = [("gateway", gateway), *((f"engine {number}", one) for number, one in enumerate(theirs))]
        return await asyncio.to_thread(write, self._folder, [(name, one) for name, one in snapshots if one])


def write(folder: Path, snapshots: Sequence[tuple[str, Profile]]) -> Path:
    """Write a profile of several processes and remove the oldest; return the file. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for old in sorted(folder.glob("*.speedscope.json"))[: -MOST_FILES + 1 or None]:
        old.unlink(missing_ok=True)
    path = folder / f"{datetime.now(UTC):%Y%m%dT%H%M%S.%f}.speedscope.json"
    unfinished = path.with_suffix(".part")
    unfinished.write_bytes(orjson.dumps(speedscope(path.name, snapshots)))
    return unfinished.replace(path)


def speedscope(name: str, snapshots: Sequence[tuple[str, Profile]]) -> dict[str, Any]:
    """Return the profiles in speedscope's form: one a thread, the most frequent stacks first. Pure."""
    frame_indexes: dict[Frame, int] = {}
    profiles = [one for process, seen in snapshots for one in _threads(process, seen, frame_indexes)]
    frames = [{"name": frame.name, "file": frame.file, "line": frame.line} for frame in frame_indexes]
    return {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": "midstream",
        "name": name,
        "activeProfileIndex": 0,
        "shared": {"frames": frames},
        "profiles": profiles,
    }


def _threads(process: str, seen: Profile, frame_indexes: dict[Frame, int]) -> Iterator[dict[str, Any]]:
    moved = [frame_indexes.setdefault(frame, len(frame_indexes)) for frame in seen.frames]
    lost = f" ({seen.dropped} rare stacks left out)" if seen.dropped else ""
    for thread in seen.threads:
        stacks = sorted(thread.stacks, key=lambda stack: -stack.seen)
        weights = [round(stack.seen * seen.interval_s, 6) for stack in stacks]
        yield {
            "type": "sampled",
            "name": f"{process}: {thread.name}{lost}",
            "unit": "seconds",
            "startValue": 0,
            "endValue": round(sum(weights), 6),
            "samples": [[moved[index] for index in stack.frames] for stack in stacks],
            "weights": weights,
        }
