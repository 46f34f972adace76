"""`make bench-peers`: Midstream, vLLM and llama-server, in turns, on random weights.

Every second round has the reverse order, and one program runs at a time. A ratio is the median of each round's ratio.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from random import Random
from statistics import median

import msgspec
from tokenizers import Tokenizer

from tests.bench.clients import ServerApi
from tests.bench.engine.shapes import SMALL, TINY, Shape
from tests.bench.engine.worker import drawn
from tests.bench.load_generator import FIRST_TOKEN, TOKENS_PER_REPLY, TOKENS_PER_S, Job, figures, observe
from tests.bench.peers.servers import TITLES, PeerName, is_installed, readable, served
from tests.bench.report import (
    RESULTS,
    TIMES,
    Failure,
    Measured,
    MeasurementFailed,
    Report,
    Target,
    at_most,
    say,
)
from tests.bench.servers import model_of, running

NAMES = (PeerName.VLLM, PeerName.LLAMA)
DTYPE = "bfloat16"
LIMIT_S = 150.0
"""Seconds for one load."""
WARM_UP_TOKENS = 8
LETTERS = "xyz"
"""Letters that the tokenizers of the random weights never join: one letter more is one token more."""
FRAME = "user:{};assistant:"
"""One message in the models' chat template."""
TERMINATED = 143
"""The exit code of a process that got SIGTERM."""


class Kind(StrEnum):
    """The kind of measurement: chat completions, streamed over HTTP, and the same with long prompts."""

    CHAT = "chat"
    LONG = "long"


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


class Part(msgspec.Struct, frozen=True):
    """One program's part of a round, with one model."""

    who: PeerName
    shape: Shape

    @property
    def title(self) -> str:
        """The name in progress lines."""
        return f"{TITLES[self.who]}, {self.shape.name}"


PARTS = (
    Part(PeerName.MIDSTREAM, SMALL),
    Part(PeerName.VLLM, SMALL),
    Part(PeerName.LLAMA, SMALL),
    Part(PeerName.MIDSTREAM, TINY),
    Part(PeerName.LLAMA, TINY),
)
"""The programs in the order of the first round."""


class Mark(msgspec.Struct, frozen=True):
    """Our ratio to a peer in one figure of a load, and its mark."""

    peer: PeerName
    model: str
    kind: Kind
    clients: int
    target: Target
    of: str = TOKENS_PER_S


def _rates(peer: PeerName, shape: Shape, wanted: dict[int, float]) -> list[Mark]:
    return [Mark(peer, shape.name, Kind.CHAT, clients, Target(least)) for clients, least in wanted.items()]


MARKS = (
    *_rates(PeerName.VLLM, SMALL, {1: 2.0, 8: 1.6, 32: 1.6}),
    *_rates(PeerName.LLAMA, SMALL, {1: 0.9, 8: 1.5, 32: 1.4}),
    *_rates(PeerName.LLAMA, TINY, {1: 0.6, 8: 1.1, 32: 1.3}),
    Mark(PeerName.VLLM, SMALL.name, Kind.LONG, 1, at_most(1.0), of=FIRST_TOKEN),
    Mark(PeerName.LLAMA, SMALL.name, Kind.LONG, 1, at_most(0.6), of=FIRST_TOKEN),
)
"""The marks in the table's order, on two cores."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One program under one load in one round."""

    who: PeerName
    model: str
    kind: Kind
    clients: int
    round: int
    figures: dict[str, float]


def measured(
    plan: Plan, parts: Sequence[Part], folder: Path, homes: dict[PeerName, Path] | None = None
) -> Report:
    """Run all rounds; a part that failed once gets no further turn. `folder` is for models."""
    runs: list[Run] = []
    report = Report(details={"dtype": DTYPE, "plan": plan, "runs": runs})
    failed: set[Part] = set()
    for number in range(plan.rounds):
        for part in parts[:: -1 if number % 2 else 1]:
            if part in failed:
                continue
            say(f"Round {number + 1} of {plan.rounds}: {part.title}")
            try:
                for kind, clients, found in _turn(plan, part, number, folder, (homes or {}).get(part.who)):
                    runs.append(Run(
                        who=part.who, model=part.shape.name, kind=kind, clients=clients, round=number, figures=found
                    ))  # fmt: skip
                    say(
                        f"  {kind}, {clients:>2} at once: {found[TOKENS_PER_S]:,.0f} tokens/s, first token {found[FIRST_TOKEN]:,.0f} ms"
                    )
            except MeasurementFailed as failure:
                failed.add(part)
                report.failures.append(Failure(part.title, str(failure)))
                say(f"  FAILED: {failure}")
    report.findings += findings(runs)
    return report


def _turn(
    plan: Plan, part: Part, number: int, folder: Path, home: Path | None
) -> Iterator[tuple[Kind, int, dict[str, float]]]:
    """Start a server and give each level its load. Raises MeasurementFailed."""
    server, fields = served(part.who, home)
    model = drawn(part.shape, folder)
    counter = Tokenizer.from_file(str(model / "tokenizer.json"))
    with running(server, model=str(readable(part.who, model)), device="cpu", dtype=DTYPE) as url:
        name = model_of(url)
        for kind, clients, replies, tokens, new_tokens in _loads(plan, part):
            seeds = ((number, kind, clients, place) for place in range(clients * replies))
            prompts = (content(tokens, seed, lambda text: len(counter.encode(text).ids)) for seed in seeds)
            job = Job(
                api=ServerApi.CHAT, url=url, model=name, clients=clients, replies=replies,
                max_new_tokens=new_tokens, limit_s=LIMIT_S, prompts=tuple(prompts), more=fields,
                anew=True,  # llama-server says that it keeps connections, and closes them after a stream
            )  # fmt: skip
            observed = observe(job)
            if kind is not None:
                yield kind, clients, figures(observed)


def _loads(plan: Plan, part: Part) -> Iterator[tuple[Kind | None, int, int, int, int]]:
    """Yield the loads of a server: kind, clients, replies of each, tokens of each prompt and of each reply.

    The first two warm up. Long prompts are for the small model alone.
    """
    for clients in (1, max(plan.levels)):
        yield None, clients, 1, plan.prompt_tokens, WARM_UP_TOKENS
    for clients, replies in plan.levels.items():
        yield Kind.CHAT, clients, replies, plan.prompt_tokens, plan.new_tokens
    if part.shape is SMALL:
        yield Kind.LONG, 1, plan.long_replies, plan.long_tokens, plan.long_new_tokens


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
    for mark in MARKS:
        load = (mark.model, mark.kind, mark.clients)
        same = [run for run in runs if (run.model, run.kind, run.clients) == load]
        ours, theirs = (
            {run.round: run.figures[mark.of] for run in same if run.who is who and mark.of in run.figures}
            for who in (PeerName.MIDSTREAM, mark.peer)
        )
        both = sorted(ours.keys() & theirs.keys())
        lengths = {run.figures[TOKENS_PER_REPLY] for run in same if TOKENS_PER_REPLY in run.figures}
        shortest = f"; shortest reply {min(lengths):.0f} tokens" if len(lengths) > 1 else ""
        if both:
            yield Measured(
                label=f"{mark.model}, {mark.kind}, {mark.clients} at once: {mark.of} against {TITLES[mark.peer]}",
                value=median(ours[number] / theirs[number] for number in both),
                unit=TIMES,
                readings={
                    TITLES[PeerName.MIDSTREAM]: median(ours.values()),
                    TITLES[mark.peer]: median(theirs.values()),
                },
                target=mark.target,
                note=f"{len(both)} rounds{shortest}",
            )


def parts_of(here: Collection[PeerName]) -> list[Part]:
    """Return the parts of a round with these peers: ours only if one of them is measured beside it."""
    beside = {part.shape for part in PARTS if part.who in here}
    return [
        one for one in PARTS if one.who in here or (one.who is PeerName.MIDSTREAM and one.shape in beside)
    ]


def main() -> int:
    """Measure what is installed; return 0 if nothing failed, whatever the figures are, and 2 if no peer is there."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.peers", description=__doc__)
    parser.add_argument("--only", nargs="+", type=PeerName, choices=NAMES, default=NAMES, metavar="PEER")
    parser.add_argument("--quick", action="store_true", help="one tiny round, to see that all of it works")
    parser.add_argument(
        "--out", type=Path, help="file for results (docs/bench/peers.json; with --quick: none)"
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))  # so that started processes are ended
    here = [who for who in options.only if is_installed(who)]
    if not here:
        say("No peer is installed: `make bench-peers` does that.")
        return 2
    with tempfile.TemporaryDirectory(prefix="midstream-peers-") as folder:
        report = measured(QUICK if options.quick else FULL, parts_of(here), Path(folder))
    report.conclude(options.out or (None if options.quick else RESULTS / "peers.json"))
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
