"""The sound of replies on its way to the loudspeaker, one reply at a time. Knows how much of it was heard; no device."""

from __future__ import annotations

import threading
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

DUCKED = 0.2
"""How loud a reply is while somebody speaks over it."""
DUCKED_S = 3.0
"""After this the volume comes back, even if the sound continues."""
_WIDTH = 2


@dataclass(frozen=True, slots=True)
class _Part:
    """Sound that was handed over: heard from `at` on, by the clock; it begins at so many milliseconds of the reply."""

    at: float
    from_ms: float
    ms: float


class Player:
    """`fill` is called in a thread of the device's, all else by the event loop."""

    def __init__(self, rate: int, clock: Callable[[], float] = monotonic) -> None:
        """`rate`: samples a second."""
        self._rate, self._clock = rate, clock
        self._lock = threading.Lock()
        self._sound = bytearray()
        self._output_ms = 0.0
        self._parts: deque[_Part] = deque()
        self._is_whole = False
        self._is_stopped = True
        self._gain = 1.0
        self._ducked_until = 0.0

    @property
    def played_ms(self) -> float:
        """How much of the reply was heard by now."""
        with self._lock:
            now = self._clock()
            while len(self._parts) > 1 and self._parts[1].at <= now:
                self._parts.popleft()
            if not self._parts:
                return self._output_ms
            part = self._parts[0]
            return part.from_ms + min(part.ms, max(0.0, (now - part.at) * 1000))

    @property
    def is_over(self) -> bool:
        """Whether all of the reply was heard."""
        played_ms = self.played_ms
        with self._lock:
            return self._is_whole and not self._sound and played_ms >= self._output_ms

    def begin(self, from_ms: float) -> None:
        """Begin with a reply, at so many milliseconds of it."""
        self.stop()
        with self._lock:
            self._output_ms, self._is_stopped = from_ms, False

    def take(self, samples: bytes, *, last: bool) -> None:
        """Take the next sound of the reply; behind the `last` none follows. What comes behind a stop is too late."""
        with self._lock:
            if not self._is_stopped:
                self._sound += samples
                self._is_whole = last

    def duck(self, *, ducked: bool) -> None:
        """Play softly while somebody speaks over it, for `DUCKED_S` at most."""
        with self._lock:
            self._ducked_until = self._clock() + DUCKED_S if ducked else 0.0

    def stop(self) -> float:
        """Fall silent, and return how much of the reply is heard by then: what the device has can't be taken back."""
        with self._lock:
            self._sound.clear()
            self._parts.clear()
            self._is_whole, self._is_stopped = False, True
            self._gain, self._ducked_until = 1.0, 0.0
            return self._output_ms

    def fill(self, size: int, delay_s: float) -> bytes:
        """Return so many bytes, which are heard so many seconds later: sound as far as there is some, then silence."""
        with self._lock:
            part = bytes(self._sound[:size])
            del self._sound[:size]
            if part:
                ms = len(part) / _WIDTH * 1000 / self._rate
                self._parts.append(_Part(self._clock() + delay_s, self._output_ms, ms))
                self._output_ms += ms
                part = self._gained(part)
        return part.ljust(size, b"\0")

    def _gained(self, part: bytes) -> bytes:
        """Return sound as loud as is wanted, which it becomes within the part."""
        before, self._gain = self._gain, DUCKED if self._clock() < self._ducked_until else 1.0
        if before == self._gain == 1.0:
            return part
        samples = array("h", part)
        step = (self._gain - before) / len(samples)
        return array("h", (int(one * (before + step * at)) for at, one in enumerate(samples, 1))).tobytes()
