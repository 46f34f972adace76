"""`python -m tests.bench.engine.images`: what plain streams notice of a peer that sends images all the time.

A SmolVLM of random weights and of the sizes of the one with 256 million, on a CPU, in an engine's process as the service starts it.
Eight plain streams run alone, then beside one peer that asks about one image after the other. Gaps are between the texts of the
plain streams, as they come here. There is no target.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from itertools import count, cycle, pairwise
from pathlib import Path
from statistics import median

from PIL import Image as Pillow

from connections.images import image_from_bytes
from engine.machine import EngineOptions
from engine.messages import Chunk, Finished, Message, Output, Params, Request, Started
from engine.process.client import EngineClient
from engine.vision.image import Image
from tests.bench.report import Measured, Report, percentile_ms
from tests.engine.vision_models import folder_of

WINDOW = 4096
TEXT = {
    "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
    "num_key_value_heads": 3, "initializer_range": 0.02,
}  # fmt: skip
TOWER = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
    "image_size": 512, "patch_size": 16, "initializer_range": 0.02,
}  # fmt: skip
FACTOR = 4
LONGEST = 1024
"""Two by two tiles and that of the whole. The model's own 2,048 are four by four, for images that take four times as long."""
SIZE = (640, 480)
IMAGES = 16
"""They come again under other salts: nothing that was kept of one helps."""
PLAIN_TOKENS, SEEN_TOKENS = 2000, 8
START_S = 600.0


class BenchFailed(Exception):
    """A reply ended as it should not."""


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.engine.images", description=__doc__)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each phase; a round has two")
    parser.add_argument("--threads", type=int, help="compute threads of the engine")
    parser.add_argument("--quick", action="store_true", help="a tiny model: whether all runs")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "model"
        if given.quick:
            model = folder_of("smolvlm", folder, window=WINDOW)
        else:  # its vocabulary is small
            model = folder_of(
                "smolvlm", folder, window=WINDOW, longest=LONGEST, factor=FACTOR, text=TEXT, **TOWER
            )
        options = EngineOptions(
            model=str(model), device="cpu", dtype="bfloat16", max_batch=16, threads=given.threads
        )
        measuring = measured(options, streams=given.streams, rounds=given.rounds, seconds=given.seconds)
        return asyncio.run(measuring).conclude(given.json)


async def measured(options: EngineOptions, *, streams: int, rounds: int, seconds: float) -> Report:
    """Start an engine and measure all rounds, each alone and beside images. Raises BenchFailed."""
    engine = EngineClient(options)
    supervision = asyncio.create_task(engine.run())
    alone: list[Measured] = []
    beside: list[Measured] = []
    try:
        await engine.ready(timeout_s=START_S)
        images, phase = [_noise() for _ in range(IMAGES)], _Phase(engine, streams)
        for number in range(1, rounds + 1):
            alone.append(await phase.gaps(f"{number} alone", seconds, ()))
            beside.append(await phase.gaps(f"{number} beside images", seconds, images))
    finally:
        supervision.cancel()
        await asyncio.wait([supervision])
    ratios = [
        Measured(
            label=f"gaps of {streams} plain streams, beside images / alone: {share}",
            value=median(one.readings[share] for one in beside)
            / median(one.readings[share] for one in alone),
        )
        for share in ("p50", "p99")
    ]
    pairs = [one for pair in zip(alone, beside, strict=True) for one in pair]
    return Report(findings=[*pairs, *ratios])


def _noise() -> Image:
    """Return a JPEG of noise, each another one."""
    out = io.BytesIO()
    Pillow.effect_noise(SIZE, 64).convert("RGB").save(out, "JPEG")
    return image_from_bytes(out.getvalue())


class _Phase:
    """Streams that run for a while, with or without one who shows images."""

    def __init__(self, engine: EngineClient, streams: int) -> None:
        self._engine = engine
        self._streams = streams
        self._numbers = count()
        self._arrivals: list[list[float]] = []
        self._answered = 0

    async def gaps(self, label: str, seconds: float, images: Sequence[Image]) -> Measured:
        """Measure the gaps for so long, from when all run. Raises BenchFailed."""
        looks, begun = asyncio.Event(), [asyncio.Event() for _ in range(self._streams)]
        self._arrivals.clear()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._stream(one)) for one in begun]
            for one in begun:
                await one.wait()
            if images:
                tasks.append(group.create_task(self._show(images, looks)))
                await looks.wait()
            answered, begin = self._answered, time.perf_counter()
            await asyncio.sleep(seconds)
            end, answered = time.perf_counter(), self._answered - answered
            for task in tasks:
                task.cancel()
        gaps = [
            later - earlier
            for arrivals in self._arrivals
            for earlier, later in pairwise(arrivals)
            if begin <= earlier and later <= end
        ]
        if not gaps:
            raise BenchFailed("no stream had two texts: measure for longer")
        shares = {"p50": 0.5, "p99": 0.99, "most": 1.0}
        readings = {name: percentile_ms(gaps, share) for name, share in shares.items()}
        return Measured(
            label=label, value=readings["p99"], unit="ms", readings=readings | {"images": float(answered)}
        )

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
        """Yield the outputs of a request that nothing kept helps. It is over when this is left."""
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


if __name__ == "__main__":
    sys.exit(main())
