"""`python -m tests.bench.engine.images`: what plain streams notice of a peer that sends images all the time.

A SmolVLM of random weights and of the sizes of the one with 256 million, on a CPU, in an engine's process as the service starts it.
Eight plain streams run alone, then beside one peer that asks about one image after the other. Gaps are between the texts of the
plain streams, as they come here.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import count, cycle, pairwise
from pathlib import Path
from statistics import median

import msgspec
from PIL import Image as Pillow

from connections.images import image_from_bytes
from engine.machine import EngineOptions
from engine.messages import Chunk, Finished, Message, Output, Params, Request, Started
from engine.process.client import EngineClient
from engine.vision.image import Image
from tests.bench.statistics import MS, percentile
from tests.engine.vision_models import folder_of

WINDOW = 4096
TEXT = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "initializer_range": 0.02,
}
TOWER = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "image_size": 512,
    "patch_size": 16,
    "initializer_range": 0.02,
}
FACTOR = 4
LONGEST = 1024
"""Two by two tiles and that of the whole. The model's own 2,048 are four by four, for images that take four times as long."""
SIZE = (640, 480)
IMAGES = 16
"""They come again under other salts: nothing that was kept of one helps."""
PLAIN_TOKENS, SEEN_TOKENS = 2000, 8
START_S = 600.0


class Gaps(msgspec.Struct, frozen=True, kw_only=True):
    """Of one phase: milliseconds between the texts of plain streams, and how many images were answered meanwhile."""

    p50_ms: float
    p99_ms: float
    most_ms: float
    images: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All rounds, each with both phases."""

    streams: int
    seconds: float
    alone: list[Gaps]
    beside: list[Gaps]

    @property
    def ratios(self) -> tuple[float, float]:
        """How much longer gaps are beside images, p50 and p99: by the medians of the rounds."""
        beside, alone = self.beside, self.alone
        return (
            median(one.p50_ms for one in beside) / median(one.p50_ms for one in alone),
            median(one.p99_ms for one in beside) / median(one.p99_ms for one in alone),
        )


class BenchFailed(Exception):
    """A reply ended as it should not."""


def main() -> int:
    """Measure and print. There is no target."""
    options = _options()
    with tempfile.TemporaryDirectory() as folder:
        model = small_model(Path(folder)) if options.quick else large_model(Path(folder))
        report = asyncio.run(
            measured(
                EngineOptions(
                    model=str(model), device="cpu", dtype="bfloat16", max_batch=16, threads=options.threads
                ),
                streams=options.streams,
                rounds=options.rounds,
                seconds=options.seconds,
            )
        )
    print(table(report))
    if options.json:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    return 0


def large_model(folder: Path) -> Path:
    """Save one of the real sizes; its vocabulary is small."""
    return folder_of(
        "smolvlm", folder / "model", window=WINDOW, longest=LONGEST, factor=FACTOR, text=TEXT, **TOWER
    )


def small_model(folder: Path) -> Path:
    """Save one that is there at once, to see whether all runs."""
    return folder_of("smolvlm", folder / "model", window=WINDOW)


async def measured(options: EngineOptions, *, streams: int, rounds: int, seconds: float) -> Report:
    """Start an engine and measure all rounds. Raises BenchFailed."""
    engine = EngineClient(options)
    supervision = asyncio.create_task(engine.run())
    try:
        await engine.ready(timeout_s=START_S)
        images, numbers = made(IMAGES), count()
        alone, beside = [], []
        for _ in range(rounds):
            alone.append(await _Phase(engine, streams, numbers).gaps(seconds, ()))
            beside.append(await _Phase(engine, streams, numbers).gaps(seconds, images))
    finally:
        supervision.cancel()
        await asyncio.wait([supervision])
    return Report(streams=streams, seconds=seconds, alone=alone, beside=beside)


def made(how_many: int) -> Sequence[Image]:
    """Return JPEGs of noise, each another one."""
    images = []
    for _ in range(how_many):
        out = io.BytesIO()
        Pillow.effect_noise(SIZE, 64).convert("RGB").save(out, "JPEG")
        images.append(image_from_bytes(out.getvalue()))
    return images


def table(report: Report) -> str:
    """Return the figures as text."""
    lines = [f"{report.streams} plain streams, {report.seconds:g} s a phase; gaps in ms"]
    lines.append(f"{'':16}{'p50':>8}{'p99':>8}{'most':>8}{'images':>8}")
    for number, pair in enumerate(zip(report.alone, report.beside, strict=True), 1):
        for what, gaps in zip(("alone", "beside images"), pair, strict=True):
            lines.append(
                f"{number} {what:14}{gaps.p50_ms:8.1f}{gaps.p99_ms:8.1f}{gaps.most_ms:8.1f}{gaps.images:8}"
            )
    p50, p99 = report.ratios
    lines.append(f"the latter, of the former: p50 {p50:.2f}, p99 {p99:.2f}")
    return "\n".join(lines)


class _Phase:
    """Streams that run for a while, with or without one who shows images."""

    def __init__(self, engine: EngineClient, streams: int, numbers: Iterator[int]) -> None:
        """`numbers`: none was taken by a request before."""
        self._engine = engine
        self._streams = streams
        self._numbers = numbers
        self._arrivals: list[list[float]] = []
        self._answered = 0
        self._begun = [asyncio.Event() for _ in range(streams)]

    async def gaps(self, seconds: float, images: Sequence[Image]) -> Gaps:
        """Measure for so long, from when all run. Raises BenchFailed."""
        looks = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._stream(begun)) for begun in self._begun]
            for begun in self._begun:
                await begun.wait()
            if images:
                tasks.append(group.create_task(self._show(images, looks)))
                await looks.wait()
            answered, begin = self._answered, time.perf_counter()
            await asyncio.sleep(seconds)
            end, answered = time.perf_counter(), self._answered - answered
            for task in tasks:
                task.cancel()
        return self._summary(begin, end, answered)

    async def _stream(self, begun: asyncio.Event) -> None:
        while True:
            arrivals: list[float] = []
            self._arrivals.append(arrivals)
            async for output in self._replied(PLAIN_TOKENS):
                if isinstance(output, Chunk):
                    arrivals.append(time.perf_counter())
                    begun.set()

    async def _show(self, images: Sequence[Image], looks: asyncio.Event) -> None:
        """Ask about one image after the other. `looks`: the first one is looked at."""
        for image in cycle(images):
            async for output in self._replied(SEEN_TOKENS, image):
                if isinstance(output, Started):
                    looks.set()
            self._answered += 1

    async def _replied(self, tokens: int, *images: Image) -> AsyncIterator[Output]:
        """Give the outputs of a request that nothing kept helps. It is over when this is left."""
        name = str(next(self._numbers))
        how = Params(max_new_tokens=tokens, ignore_eos=True)
        requested = Message("user", "What is this?", images=images)
        stream = self._engine.generate(Request(name, (requested,), how, cache_salt=name))
        try:
            async for output in stream:
                if isinstance(output, Finished) and output.error is not None:
                    raise BenchFailed(output.error)
                yield output
        finally:
            stream.cancel()
            async for _ in stream:
                pass

    def _summary(self, begin: float, end: float, images: int) -> Gaps:
        gaps = [
            (later - earlier) * MS
            for arrivals in self._arrivals
            for earlier, later in pairwise(arrivals)
            if begin <= earlier and later <= end
        ]
        if not gaps:
            raise BenchFailed("no stream had two texts: measure for longer")
        return Gaps(
            p50_ms=percentile(gaps, 0.5) or 0.0,
            p99_ms=percentile(gaps, 0.99) or 0.0,
            most_ms=max(gaps),
            images=images,
        )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.engine.images", description=__doc__)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each phase; a round has two")
    parser.add_argument("--threads", type=int, help="compute threads of the engine")
    parser.add_argument("--quick", action="store_true", help="a tiny model: whether all runs")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
