"""Finds out from its CPU time when a server becomes idle: the one effect of a cancel that every server shows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.bench.records import Silence

WINDOW_S = 0.2
IDLE_S = 0.003
"""CPU seconds in a window that still counts as idle: heartbeats, a store's own chores and loops that look for work ten
times a second take up to 2 ms. Stops shorter than this are reported as no time at all."""

SAMPLE_S = 0.001
CPUCLOCK_SCHED = 2


class Sample(NamedTuple):
    """CPU time so far, and the time of its reading; both in seconds."""

    at: float
    cpu: float


class ProcessTree:
    """A process and its descendants, as they are now."""

    def __init__(self, pid: int) -> None:
        self._clocks = [clock_of(one) for one in _tree(pid)]

    def sample(self) -> Sample:
        """Read the CPU time of all threads, ended ones included. Raises OSError if one of the processes has ended."""
        return Sample(time.perf_counter(), sum(time.clock_gettime(clock) for clock in self._clocks))


def can_watch() -> bool:
    """Return whether this system reports the CPU time of other processes: Linux does."""
    return Path("/proc/self/task").is_dir()


def silent_from(samples: Sequence[Sample]) -> Sample | None:
    """Return the first sample whose next window is idle, or None if there is none yet. Samples are in order."""
    end = 0
    for sample in samples:
        while end < len(samples) and samples[end].at < sample.at + WINDOW_S:
            end += 1
        if end == len(samples):
            return None
        if samples[end].cpu - sample.cpu <= IDLE_S:
            return sample
    return None


async def watch(tree: ProcessTree, first: Sample, *, limit_s: float) -> Silence | None:
    """Watch from a first sample on until the processes are idle; None if they aren't in `limit_s` seconds."""
    samples = [first]
    while samples[-1].at < first.at + limit_s:
        await asyncio.sleep(SAMPLE_S)
        samples.append(tree.sample())
        if (found := silent_from(samples)) is not None:
            return Silence(found.at - first.at, found.cpu - first.cpu)
        _forget(samples)
    return None


def _forget(samples: list[Sample]) -> None:
    """Drop the samples whose window is over: `silent_from` has rejected them."""
    while samples[-1].at - samples[0].at >= WINDOW_S:
        del samples[0]


def _tree(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    children = [int(child) for task in tasks for child in task.read_text().split()]
    return [pid, *(one for child in children for one in _tree(child))]


def clock_of(pid: int) -> int:
    """Return the id of a process's CPU clock, as Linux's clock_getcpuclockid(3) forms it."""
    return (~pid << 3) | CPUCLOCK_SCHED
