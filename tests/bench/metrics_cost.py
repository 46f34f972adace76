"""`python -m tests.bench.metrics_cost`: the cost of counting each delta, in nanoseconds of processor time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import monotonic, process_time

from prometheus_client import CollectorRegistry, Histogram

from engine.api import Streamer
from engine.messages import Chunk
from sessions.store.pool import Durations

TIMES = 400_000
TRIES = 5


def main() -> None:
    """Print one line for each way."""
    empty = _seconds(lambda: None)
    for name, once in _measured():
        print(f"{name}: {(_seconds(once) - empty) / TIMES * 1e9:.0f} ns")


def _measured() -> Iterator[tuple[str, Callable[[], object]]]:
    durations, made_at = Durations(), monotonic()
    yield "a duration, with the clock", lambda: durations.observe(monotonic() - made_at)
    library = Histogram("seconds", "Of the library.", registry=CollectorRegistry())
    yield "the library's histogram", lambda: library.observe(0.004)
    stream, chunk = Streamer("r", lambda _: None), Chunk("r", "x", 1)

    def through() -> None:
        stream.put_nowait(chunk, made_at)
        stream.get_nowait()

    yield "a chunk through the engine's stream", through


def _seconds(once: Callable[[], object]) -> float:
    """Return the shortest time for a number of calls."""
    took = []
    for _ in range(TRIES):
        began = process_time()
        for _ in range(TIMES):
            once()
        took.append(process_time() - began)
    return min(took)


if __name__ == "__main__":
    main()
