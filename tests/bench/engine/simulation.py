"""The scheduler on a simulated GPU: real schedule, real pages, and a model of the cost of a step.

python -m tests.bench.engine.simulation writes docs/bench/simulation.md. Nothing in it was measured on a device: launches
are those of traced steps (tests/engine/execution/test_cuda_steps.py), times follow from bytes and operations.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random

from engine.kv_cache import PagePool
from engine.scheduling.scheduler import ScheduledRequest, Scheduler, StepPlan

PAPER = Path(__file__).parents[3] / "docs" / "bench" / "simulation.md"
PAGE, CONTEXT = 256, 32_768
KV_BYTES = 110 * 10**9
PER_TOKEN = 128 * 1024
LAYERS, WEIGHTS = 32, 16 * 10**9
BANDWIDTH, OPERATIONS, LAUNCH_S = 4.8e12 * 0.75, 990e12 * 0.5, 5e-6
PER_LAYER, PER_STEP, RECORDED = 16, 12, 8
"""Launches of an unrecorded step, by layer and by step, and of a recorded one: its graph, and the choice of tokens."""
PREFILL = 2048
"""Prompt tokens in a step: about 60 ms by this model."""
REPLIES_EACH = 4
"""Requests for each stream, in all: the number of times that the streams are filled."""


@dataclass
class Totals:
    """Totals of all steps of one run."""

    seconds: float = 0.0
    steps: int = 0
    recorded: int = 0
    launches: int = 0
    most_launches: int = 0
    bytes_read: float = 0.0
    tokens: int = 0
    most_held: int = 0
    most_pages: int = 0

    def add(self, plan: StepPlan) -> None:
        """Count a step and its cost."""
        recorded = bool(plan.decodes) and not plan.prefills
        launches = (
            1 + PER_STEP // 2 if recorded else PER_LAYER * LAYERS + PER_STEP + bool(plan.prefills) * LAYERS
        )
        keys = sum(segment.start + segment.count for segment in plan.segments)
        read = WEIGHTS + keys * PER_TOKEN
        computed = sum(segment.count for segment in plan.segments)
        device = max(read / BANDWIDTH, 2 * WEIGHTS / 2 * computed / OPERATIONS)
        self.seconds += max(device, launches * LAUNCH_S)
        self.steps += 1
        self.recorded += recorded
        self.launches += launches
        self.most_launches = max(self.most_launches, launches)
        self.bytes_read += read
        self.tokens += sum(segment.samples for segment in plan.segments)


def simulate(streams: int, lengths: tuple[int, int], *, new_tokens: int = 256, seed: int = 1) -> Totals:
    """Serve requests of mixed lengths to their ends; as one ends, the next one arrives."""
    dice = Random(seed)
    pool = PagePool(KV_BYTES // (PAGE * PER_TOKEN), PAGE)
    scheduler, totals = Scheduler(streams, pool), Totals()
    ends: dict[str, int] = {}

    def arrive() -> None:
        prompt = [dice.randrange(10**6) for _ in range(dice.randint(*lengths))]
        request = ScheduledRequest(f"r{len(ends)}", prompt, salt=str(len(ends)))
        ends[request.request_id] = len(prompt) + dice.randint(new_tokens // 2, new_tokens * 3 // 2)
        scheduler.add(request)

    for _ in range(streams):
        arrive()
    while scheduler.running or scheduler.queued:
        plan = scheduler.schedule(PREFILL)
        pool.copies.clear()
        totals.add(plan)
        totals.most_held = max(totals.most_held, scheduler.running)
        totals.most_pages = max(totals.most_pages, pool.total - pool.free - pool.cached)
        scheduler.complete(plan)
        for segment in plan.segments:
            if segment.samples:
                segment.request.valid = segment.request.computed
                segment.request.tokens.append(dice.randrange(10**6))
                if len(segment.request.tokens) >= ends[segment.request.request_id]:
                    scheduler.remove(segment.request, keep=False)
                    if len(ends) < streams * REPLIES_EACH:
                        arrive()
    pool.check_idle()
    return totals


HEAD = """# The scheduler on a GPU, simulated

The schedule and the pages are the engine's own. The device is a model: no figure here was measured
on one. It is of the size of an H200: three quarters of 4.8 TB/s, half of 990 TFLOP/s, 5 µs a
launch, 110 GB for keys and values. The model has the shape of Llama 8B in bfloat16: 32 layers,
128 KiB a token. As a reply ends, the next request arrives. Launches are those of traced steps.
`python -m tests.bench.engine.simulation` writes this page.

| streams | prompts | steps recorded | launches a step | at most | read a step | pages | held | tokens/s |
|---|---|---|---|---|---|---|---|---|
"""
FOOT = f"""
*Held* is the most replies at once, *pages* the most that they had. Slots of {CONTEXT:,} tokens, as the engine had
them before, would hold {KV_BYTES // (CONTEXT * PER_TOKEN)} replies in that memory, whatever their lengths are.
"""


def main() -> None:
    """Write the page."""
    rows = []
    for streams, lengths in ((64, (200, 8000)), (64, (2000, 2000)), (256, (100, 1300)), (256, (200, 8000))):
        found = simulate(streams, lengths)
        cells = (
            *(str(streams), f"{lengths[0]:,} to {lengths[1]:,}", f"{found.recorded / found.steps:.0%}"),
            *(f"{found.launches / found.steps:,.0f}", f"{found.most_launches:,}"),
            *(
                f"{found.bytes_read / found.steps / 1e9:.0f} GB",
                f"{found.most_pages:,}",
                str(found.most_held),
            ),
            f"{found.tokens / found.seconds:,.0f}",
        )
        rows.append(f"| {' | '.join(cells)} |\n")
    PAPER.write_text(HEAD + "".join(rows) + FOOT, encoding="utf-8")


if __name__ == "__main__":
    main()
