"""`make bench-peers`: Midstream, vLLM and llama-server, in turns, on random weights; a table with targets, and JSON.

A ratio is the median of each round's ratio.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from random import Random
from statistics import median

import msgspec
from tokenizers import Tokenizer

from tests.bench.clients import ServerApi
from tests.bench.engine.load import TEMPERATURE, TOP_P
from tests.bench.engine.shapes import SHAPES, SMALL, TINY
from tests.bench.engine.worker import drawn, in_gguf
from tests.bench.load_generator import (
    FIRST_TOKEN,
    TOKENS_PER_REPLY,
    TOKENS_PER_S,
    Figures,
    Job,
    figures,
    observe,
)
from tests.bench.report import TIMES, Measured, NotInstalled, Report, Target, at_most, run_lab
from tests.bench.servers import LLAMA, MIDSTREAM, VLLM, Entry, Run, in_turns, model_of, running

PEERS = {one.name: one for one in (VLLM, LLAMA)}
DTYPE = "bfloat16"
LIMIT_S = 150.0
"""Seconds for one load."""
WARM_UP_TOKENS = 8
LETTERS = "xyz"
"""Letters that the tokenizers of the random weights never join: one letter more is one token more."""
FRAME = "user:{};assistant:"
"""One message in the models' chat template."""
LONG = "long"
TERMINATED = 143
"""The exit code of a process that got SIGTERM."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """All sizes. `levels`: how many replies each of so many clients asks for."""

    levels: dict[int, int] = msgspec.field(default_factory=lambda: {1: 6, 8: 2, 32: 1})
    prompt_tokens: int = 53
    new_tokens: int = 128
    long_replies: int = 3
    long_tokens: int = 1387
    long_new_tokens: int = 16
    """New tokens of the reply to a long prompt, of which only the first one is timed."""
    rounds: int = 4


FULL = Plan()
QUICK = Plan(levels={1: 2, 8: 1, 32: 1}, new_tokens=16, long_replies=2, rounds=1)
"""A plan that only shows that everything works; its figures are worth nothing."""
ENTRIES = (
    Entry(MIDSTREAM, SMALL.name),
    Entry(VLLM, SMALL.name),
    Entry(LLAMA, SMALL.name),
    Entry(MIDSTREAM, TINY.name),
    Entry(LLAMA, TINY.name),
)
"""The servers in the order of the first round."""


def _rates(peer: str, model: str, *least: float) -> dict[tuple[str, str, str, str], Target]:
    return {
        (peer, model, f"{clients} at once", TOKENS_PER_S): Target(ratio)
        for clients, ratio in zip(FULL.levels, least, strict=True)
    }


MARKS = {
    **_rates("vllm", "small", 2.0, 1.6, 1.6),
    **_rates("llama-server", "small", 0.9, 1.5, 1.4),
    **_rates("llama-server", "tiny", 0.6, 1.1, 1.3),
    ("vllm", "small", LONG, FIRST_TOKEN): at_most(1.0),
    ("llama-server", "small", LONG, FIRST_TOKEN): at_most(0.6),
}
"""Targets of our ratio to a peer with a model under a load in one figure, in the table's order, on two cores."""


def measured(plan: Plan, entries: Sequence[Entry], folder: Path) -> Report:
    """Run all rounds. `folder` is for models."""
    report = Report(details={"dtype": DTYPE, "plan": plan})

    def loads(entry: Entry, number: int) -> Iterator[tuple[str, Figures]]:
        return _loads(plan, entry, number, folder)

    report.findings += findings(in_turns(entries, plan.rounds, report, loads))
    return report


def _loads(plan: Plan, entry: Entry, number: int, folder: Path) -> Iterator[tuple[str, Figures]]:
    """Yield the figures of each load. Raises MeasurementFailed."""
    model = drawn(SHAPES[entry.model], folder)
    counter = Tokenizer.from_file(str(model / "tokenizer.json"))
    served = in_gguf(model) if entry.server.name == LLAMA.name else model
    with running(entry.server, model=str(served), device="cpu", dtype=DTYPE) as url:
        name = model_of(url)

        def observed(load: str, clients: int, replies: int, tokens: int, new_tokens: int) -> Figures:
            seeds = ((number, load, clients, place) for place in range(clients * replies))
            prompts = (content(tokens, seed, lambda text: len(counter.encode(text).ids)) for seed in seeds)
            return figures(observe(Job(
                api=ServerApi.CHAT, url=url, model=name, clients=clients, replies=replies,
                max_new_tokens=new_tokens, limit_s=LIMIT_S, prompts=tuple(prompts),
                more={"temperature": TEMPERATURE, "top_p": TOP_P, **entry.server.more},
                anew=True,  # llama-server says that it keeps connections, and closes them after a stream
            )))  # fmt: skip

        for clients in (1, max(plan.levels)):
            observed("warm-up", clients, 1, plan.prompt_tokens, WARM_UP_TOKENS)
        for clients, replies in plan.levels.items():
            load = f"{clients} at once"
            yield load, observed(load, clients, replies, plan.prompt_tokens, plan.new_tokens)
        if entry.model == SMALL.name:
            yield LONG, observed(LONG, 1, plan.long_replies, plan.long_tokens, plan.long_new_tokens)


def content(tokens: int, seed: object, count: Callable[[str], int]) -> str:
    """Return the content of a message whose whole prompt has so many tokens, by `count`. Raises ValueError.

    All are different: no server may have cached the beginning of one.
    """
    draw, letters = Random(repr(seed)), tokens - count(FRAME.format(LETTERS[0])) + 1
    made = "".join(draw.choice(LETTERS) for _ in range(letters))
    if letters <= 0 or count(FRAME.format(made)) != tokens:
        raise ValueError(f"no prompt of {tokens} tokens can be made of {LETTERS!r}")
    return made


def findings(runs: Sequence[Run]) -> Iterator[Measured]:
    """Return our ratios to each peer that was measured, mark by mark. Pure."""
    for (peer, model, load, figure), target in MARKS.items():
        same = [run for run in runs if (run.model, run.load) == (model, load) and figure in run.figures]
        ours, theirs = (
            {run.round: run.figures[figure] for run in same if run.server == name}
            for name in (MIDSTREAM.name, peer)
        )
        both = sorted(ours.keys() & theirs.keys())
        lengths = {run.figures[TOKENS_PER_REPLY] for run in same if TOKENS_PER_REPLY in run.figures}
        shortest = f"; shortest reply {min(lengths):.0f} tokens" if len(lengths) > 1 else ""
        if both:
            title = PEERS[peer].title
            yield Measured(
                label=f"{model}, {load}: {figure} against {title}",
                value=median(ours[number] / theirs[number] for number in both),
                unit=TIMES,
                readings={MIDSTREAM.title: median(ours.values()), title: median(theirs.values())},
                target=target,
                note=f"{len(both)} rounds{shortest}",
            )


def entries_of(peers: Collection[str]) -> list[Entry]:
    """Return the servers of a round with these peers: ours only if one of them is measured beside it."""
    models = {one.model for one in ENTRIES if one.server.name in peers}
    return [one for one in ENTRIES if one.model in models and one.server.name in (MIDSTREAM.name, *peers)]


def measure(options: argparse.Namespace) -> Report:
    """Measure what is installed. Raises NotInstalled."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))  # so that started processes are ended
    here = [name for name in options.only if not PEERS[name].missing()]
    if not here:
        raise NotInstalled("No peer is installed: `make bench-peers` does that.")
    with tempfile.TemporaryDirectory(prefix="midstream-peers-") as folder:
        return measured(QUICK if options.quick else FULL, entries_of(here), Path(folder))


if __name__ == "__main__":
    sys.exit(run_lab("tests.bench.peers", __doc__, measure, file="peers.json", parts=tuple(PEERS)))
