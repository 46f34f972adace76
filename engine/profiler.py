"""A sampling profiler for all threads of a process. It costs nothing while it does not run.

A profile holds names of functions and files, never values.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from types import FrameType

import msgspec

INTERVAL_S = 0.01
DEEPEST = 100
"""Most frames of a stack; of a deeper one the outer frames are left out."""
MOST_STACKS = 5_000
"""Most different stacks; further ones count as `dropped`."""


class Frame(msgspec.Struct, frozen=True):
    """A function, and the line where it begins."""

    name: str
    file: str
    line: int


class Stack(msgspec.Struct, frozen=True):
    """Frames, outermost first, by their index in the profile. `seen`: how often the stack was seen."""

    frames: tuple[int, ...]
    seen: int


class Thread(msgspec.Struct, frozen=True):
    """The profile of one thread."""

    name: str
    stacks: tuple[Stack, ...]


class Profile(msgspec.Struct, frozen=True):
    """The profile of a process. `interval_s`: the real interval between two samples."""

    frames: tuple[Frame, ...]
    threads: tuple[Thread, ...]
    interval_s: float
    dropped: int = 0


def profile(seconds: float, stop: threading.Event | None = None) -> Profile:
    """Sample for `seconds`, or until stopped, and return the profile. It blocks its thread, which the profile leaves out."""
    sampler, stop = _Sampler(), stop or threading.Event()
    begun = time.monotonic()
    looks = 0
    while True:
        due = begun + (looks + 1) * INTERVAL_S
        if stop.wait(max(0.0, due - time.monotonic())) or time.monotonic() - begun > seconds:
            break
        sampler.look()
        looks = max(
            looks + 1, int((time.monotonic() - begun) / INTERVAL_S)
        )  # a missed sample is not made up for
    return sampler.profile_of(time.monotonic() - begun)


class _Sampler:
    def __init__(self) -> None:
        self._frames: dict[Frame, int] = {}
        self._stacks: Counter[tuple[str, tuple[int, ...]]] = Counter()
        self._looks = 0
        self._dropped = 0

    def look(self) -> None:
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        own = threading.get_ident()
        self._looks += 1
        for ident, frame in sys._current_frames().items():  # noqa: SLF001 - documented, in spite of its name
            if ident != own:
                self._count(names.get(ident, "unnamed"), frame)

    def _count(self, name: str, innermost: FrameType) -> None:
        frames: list[int] = []
        frame: FrameType | None = innermost
        while frame is not None and len(frames) < DEEPEST:
            code = frame.f_code
            seen = Frame(code.co_qualname, code.co_filename, code.co_firstlineno)
            frames.append(self._frames.setdefault(seen, len(self._frames)))
            frame = frame.f_back
        stack = (name, tuple(reversed(frames)))
        if stack in self._stacks or len(self._stacks) < MOST_STACKS:
            self._stacks[stack] += 1
        else:
            self._dropped += 1

    def profile_of(self, seconds: float) -> Profile:
        names = dict.fromkeys(name for name, _ in self._stacks)
        return Profile(
            frames=tuple(self._frames),
            threads=tuple(Thread(name, self._of(name)) for name in names),
            interval_s=seconds / self._looks if self._looks else INTERVAL_S,
            dropped=self._dropped,
        )

    def _of(self, name: str) -> tuple[Stack, ...]:
        return tuple(Stack(frames, seen) for (whose, frames), seen in self._stacks.items() if whose == name)
