"""`make bench-peers`: Midstream, vLLM, llama-server and OpenVINO GenAI, in turns; installs missing peers first.

Every second round has the reverse order, and one program runs at a time. A ratio is the median of each round's ratio.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from random import Random
from statistics import median

import msgspec
from tokenizers import Tokenizer

from tests.bench.clients import ServerApi
from tests.bench.engine.load import Load, Observed, tokens_per_s
from tests.bench.engine.shapes import SMALL, TINY, Shape
from tests.bench.engine.worker import Name, Process, Worker, WorkerPool, assembled, last_words
from tests.bench.load_generator import FIRST_TOKEN, TOKENS_PER_REPLY, TOKENS_PER_S, Job, figures, observe
from tests.bench.peers.install import ROOT, TITLES, NotInstallable, Peer, PeerName, install, peers, quiet
from tests.bench.peers.servers import served
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
    table,
)
from tests.bench.servers import model_of, running

NAMES = tuple(who for who in PeerName if who is not PeerName.MIDSTREAM)
DTYPE = "bfloat16"
LIMIT_S = 150.0
"""Seconds for one load; a process that takes longer is ended."""
PREPARING_S = 180.0
WARM_UP_TOKENS = 8
LETTERS = "xyz"
"""Letters that the tokenizers of the random weights never join: one letter more is one token more."""
FRAME = "user:{};assistant:"
"""One message in the models' chat template."""
TERMINATED = 143
"""The exit code of a process that got SIGTERM."""


class Kind(StrEnum):
    """The kind of measurement: chat completions, streamed over HTTP, the same with long prompts, the engine alone."""

    CHAT = "chat"
    LONG = "long"
    ENGINE = "engine"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """All sizes. `levels`: how many replies each of so many clients asks for. `budget_s`: no round is begun that would
    probably end later. `held`: True if figures have marks.
    """

    levels: dict[int, int] = msgspec.field(default_factory=lambda: {1: 6, 8: 2, 32: 1})
    prompt_tokens: int = 53
    new_tokens: int = 128
    long_levels: dict[int, int] = msgspec.field(default_factory=lambda: {1: 3, 8: 1})
    long_tokens: int = 1387
    long_first_new: int = 16
    """New tokens of the reply to a single long prompt, of which only the first one is timed."""
    rounds: int = 4
    budget_s: float = 22 * 60.0
    held: bool = True


FULL = Plan()
QUICK = Plan(
    levels={1: 2, 8: 1, 32: 1}, new_tokens=16, long_levels={1: 2, 8: 1}, rounds=1, budget_s=600.0, held=False
)
"""A plan that only shows that everything works; its figures are worth nothing."""


class Part(msgspec.Struct, frozen=True):
    """One program's part of a round, with one model. `engine`: without its sockets."""

    who: PeerName
    shape: Shape
    engine: bool = False

    @property
    def title(self) -> str:
        """The name in progress lines."""
        return f"{TITLES[self.who]}, {self.shape.name}{', engine alone' if self.engine else ''}"


PARTS = (
    Part(PeerName.MIDSTREAM, SMALL),
    Part(PeerName.VLLM, SMALL),
    Part(PeerName.LLAMA, SMALL),
    Part(PeerName.MIDSTREAM, TINY),
    Part(PeerName.LLAMA, TINY),
    Part(PeerName.MIDSTREAM, SMALL, engine=True),
    Part(PeerName.OPENVINO, SMALL, engine=True),
)
"""The programs in the order of the first round."""


def parts(here: Collection[PeerName]) -> list[Part]:
    """Return the parts of a round with these peers: ours only if one of them is measured beside it."""
    beside = {(part.shape.name, part.engine) for part in PARTS if part.who in here}
    ours = PeerName.MIDSTREAM
    return [
        one
        for one in PARTS
        if one.who in here or (one.who is ours and (one.shape.name, one.engine) in beside)
    ]


class Mark(msgspec.Struct, frozen=True):
    """Our ratio to a peer in one figure of a load, and its mark."""

    peer: PeerName
    model: str
    kind: Kind
    clients: int
    target: Target
    of: str = TOKENS_PER_S


def _rates(peer: PeerName, shape: Shape, kind: Kind, wanted: dict[int, float]) -> list[Mark]:
    return [Mark(peer, shape.name, kind, clients, Target(least)) for clients, least in wanted.items()]


MARKS = (
    *_rates(PeerName.VLLM, SMALL, Kind.CHAT, {1: 2.0, 8: 1.6, 32: 1.6}),
    *_rates(PeerName.LLAMA, SMALL, Kind.CHAT, {1: 0.9, 8: 1.5, 32: 1.4}),
    *_rates(PeerName.LLAMA, TINY, Kind.CHAT, {1: 0.6, 8: 1.1, 32: 1.3}),
    *_rates(PeerName.OPENVINO, SMALL, Kind.ENGINE, {1: 0.9, 8: 0.95, 32: 1.1}),
    Mark(PeerName.VLLM, SMALL.name, Kind.LONG, 1, at_most(1.0), of=FIRST_TOKEN),
    Mark(PeerName.LLAMA, SMALL.name, Kind.LONG, 1, at_most(0.6), of=FIRST_TOKEN),
    *_rates(PeerName.LLAMA, SMALL, Kind.LONG, {8: 1.2}),
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


class Rounds:
    """Measures; its report fills up. A part that failed once gets no further turn."""

    def __init__(self, plan: Plan, here: Mapping[PeerName, Peer], pool: WorkerPool) -> None:
        self.runs: list[Run] = []
        versions = {str(who): peer.version for who, peer in here.items()}
        details = {"dtype": DTYPE, "plan": plan, "versions": versions, "runs": self.runs}
        self.report = Report(details=details)
        self._plan, self._peers, self._pool = plan, here, pool
        self._failed: set[Part] = set()

    def measure(self, some: Sequence[Part]) -> None:
        """Do all rounds that the budget allows."""
        plan, begun = self._plan, time.monotonic()
        for number in range(plan.rounds):
            elapsed = time.monotonic() - begun
            if number and elapsed * (number + 1) / number > plan.budget_s:
                self.report.cuts.append(f"{plan.rounds - number} of {plan.rounds} rounds, for want of time")
                break
            for part in some[:: -1 if number % 2 else 1]:
                if part not in self._failed:
                    say(f"Round {number + 1} of {plan.rounds}: {part.title}")
                    self._turn(part, number)
        self.report.findings += findings(self.runs, plan)

    def _turn(self, part: Part, number: int) -> None:
        begun = time.monotonic()
        try:
            for kind, clients, found in (self._alone if part.engine else self._over_http)(part, number):
                self.runs.append(Run(
                    who=part.who, model=part.shape.name, kind=kind, clients=clients, round=number, figures=found
                ))  # fmt: skip
                first = f", first token {found[FIRST_TOKEN]:,.0f} ms" if FIRST_TOKEN in found else ""
                say(f"  {kind}, {clients:>2} at once: {found[TOKENS_PER_S]:,.0f} tokens/s{first}")
        except MeasurementFailed as failure:
            self._failed.add(part)
            self.report.failures.append(Failure(part.title, str(failure)))
            say(f"  FAILED: {failure}")
        finally:
            self._pool.dismiss()
        say(f"  took {time.monotonic() - begun:.0f} s")

    def _over_http(self, part: Part, number: int) -> Iterator[tuple[Kind, int, dict[str, float]]]:
        """Start a server and give each level its load. Raises MeasurementFailed."""
        server, fields = served(part.who, self._peers)
        counter = Tokenizer.from_file(str(self._pool.model(part.shape) / "tokenizer.json"))
        with running(server, model=str(self._model(part)), device="cpu", dtype=DTYPE) as (url, pid):
            model = model_of(url)
            for kind, clients, replies, tokens, new_tokens in self._loads(part):
                seeds = ((number, kind, clients, place) for place in range(clients * replies))
                prompts = (
                    content(tokens, seed, lambda text: len(counter.encode(text).ids)) for seed in seeds
                )
                job = Job(
                    api=ServerApi.CHAT, url=url, model=model, pid=pid, clients=clients, replies=replies,
                    max_new_tokens=new_tokens, limit_s=LIMIT_S, prompts=tuple(prompts), more=fields,
                    anew=True,  # llama-server says that it keeps connections, and closes them after a stream
                )  # fmt: skip
                observed = observe(job)
                if kind is not None:
                    yield kind, clients, figures(observed)

    def _loads(self, part: Part) -> Iterator[tuple[Kind | None, int, int, int, int]]:
        """Yield the loads of a server: kind, clients, replies of each, tokens of each prompt and of each reply.

        The first two warm up. Long prompts are for the small model alone, and one at a time for vLLM's CPU build.
        """
        plan = self._plan
        for clients in (1, max(plan.levels)):
            yield None, clients, 1, plan.prompt_tokens, WARM_UP_TOKENS
        for clients, replies in plan.levels.items():
            yield Kind.CHAT, clients, replies, plan.prompt_tokens, plan.new_tokens
        for clients, replies in plan.long_levels.items() if part.shape is SMALL else ():
            if clients == 1 or part.who is not PeerName.VLLM:
                new_tokens = plan.long_first_new if clients == 1 else plan.new_tokens
                yield Kind.LONG, clients, replies, plan.long_tokens, new_tokens

    def _alone(self, part: Part, number: int) -> Iterator[tuple[Kind, int, dict[str, float]]]:
        """Give an engine its loads, without sockets. Raises MeasurementFailed."""
        plan = self._plan
        with self._engine(part) as ask:
            for clients, replies in plan.levels.items():
                loads = (
                    Load(
                        at_once=clients, prompt_tokens=plan.prompt_tokens, new_tokens=plan.new_tokens, cut_s=LIMIT_S,
                        salt=number * 100 + reply,
                    )
                    for reply in range(replies)
                )  # fmt: skip
                rates = [_whole(ask(load), plan.new_tokens) for load in loads]
                yield Kind.ENGINE, clients, {TOKENS_PER_S: median(rates)}

    @contextmanager
    def _engine(self, part: Part) -> Iterator[Callable[[Load], Observed]]:
        """Run an engine inside the block; yield what sends it jobs. Raises MeasurementFailed."""
        if part.who is PeerName.MIDSTREAM:
            yield lambda load: self._pool.load(Name.OURS, part.shape, DTYPE, load)
            return
        folder = self._model(part)
        # Its process reads the folder and the vocabulary alone: the names are those of our environment's contenders.
        worker = Worker(
            contender=Name.OURS, folder=str(folder), dtype=DTYPE, vocabulary=part.shape.vocabulary
        )
        command = [str(self._peers[part.who].program), "-m", "tests.bench.peers.openvino_worker"]
        command.append(msgspec.json.encode(worker).decode())
        variables = quiet() | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
        process = Process(command, variables, folder.with_suffix(".log"))

        def ask(load: Load) -> Observed:
            observed = process.ask(load, limit_s=LIMIT_S + load.cut_s)
            assert isinstance(observed, Observed)
            return observed

        try:
            yield ask
        finally:
            process.end()

    def _model(self, part: Part) -> Path:
        """Return the model in the form that a program reads, made on the first call. Raises MeasurementFailed."""
        folder = self._pool.model(part.shape)
        if part.who not in (PeerName.LLAMA, PeerName.OPENVINO):
            return folder
        programs = self._peers[part.who].home / "bin"
        if part.who is PeerName.LLAMA:
            made = folder.with_suffix(".gguf")
            script = Path(__file__).with_name("write_gguf.py")
            command = [str(programs / "python"), str(script), str(folder), str(made)]
        else:
            made = folder.with_suffix(".openvino")
            command = [
                *(str(programs / "optimum-cli"), "export", "openvino", "--model", str(folder)),
                *("--task", "text-generation-with-past", "--weight-format", "fp16", str(made)),
            ]
        if made.exists():
            return made
        try:
            done = subprocess.run(command, env=quiet(), capture_output=True, timeout=PREPARING_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise MeasurementFailed(f"its model was not made: {error}") from error
        if done.returncode or not made.exists():
            why = last_words(done.stderr.decode(errors="replace"))
            raise MeasurementFailed(f"its model was not made: {why}")
        return made


def _whole(observed: Observed, new_tokens: int) -> float:
    """Return the tokens per second. Raises MeasurementFailed if a reply was cut or ended early."""
    shortest = min(len(stream.arrivals) for stream in observed.streams)
    if observed.cut or shortest != new_tokens:
        raise MeasurementFailed(f"a reply had {shortest} of {new_tokens} tokens")
    return tokens_per_s(observed)


def content(tokens: int, seed: object, count: Callable[[str], int]) -> str:
    """Return the content of a message whose whole prompt has so many tokens, by `count`. Raises ValueError.

    All are different: no server may have cached the beginning of one.
    """
    draw, letters = Random(repr(seed)), tokens - count(FRAME.format(LETTERS[0])) + 1
    made = "".join(draw.choice(LETTERS) for _ in range(letters))
    if letters <= 0 or count(FRAME.format(made)) != tokens:
        raise ValueError(f"no prompt of {tokens} tokens can be made of {LETTERS!r}")
    return made


def findings(runs: Sequence[Run], plan: Plan) -> Iterator[Measured]:
    """Return our ratios to each peer that was measured, mark by mark. A plan with other sizes has no marks. Pure."""
    loads = dict.fromkeys((run.who, run.model, run.kind, run.clients) for run in runs)
    unmarked = [Mark(*load, Target(0.0)) for load in loads if load[0] is not PeerName.MIDSTREAM]
    for mark in MARKS if plan.held else unmarked:
        same = [
            run for run in runs if (run.model, run.kind, run.clients) == (mark.model, mark.kind, mark.clients)
        ]
        ours, theirs = (
            {run.round: run.figures[mark.of] for run in same if run.who is who and mark.of in run.figures}
            for who in (PeerName.MIDSTREAM, mark.peer)
        )
        if theirs:
            both = sorted(ours.keys() & theirs.keys())
            lengths = {run.figures[TOKENS_PER_REPLY] for run in same if TOKENS_PER_REPLY in run.figures}
            shortest = f"; shortest reply {min(lengths):.0f} tokens" if len(lengths) > 1 else ""
            medians = {TITLES[PeerName.MIDSTREAM]: ours, TITLES[mark.peer]: theirs}
            yield Measured(
                label=_label(mark, plan),
                value=median(ours[number] / theirs[number] for number in both) if both else None,
                unit=TIMES,
                readings={title: median(values.values()) for title, values in medians.items() if values},
                target=mark.target if plan.held else None,
                note=f"{len(both)} rounds{shortest}",
            )


def _label(mark: Mark, plan: Plan) -> str:
    clients = f"{mark.clients} client{'s' if mark.clients > 1 else ''}"
    what = {
        Kind.CHAT: f"chat completions, {clients}",
        Kind.LONG: f"prompts of {plan.long_tokens:,} tokens, {clients}",
        Kind.ENGINE: f"engine alone, {mark.clients} at once",
    }[mark.kind]
    return f"{mark.model}, {what}: {mark.of} against {TITLES[mark.peer]}"


def chosen(
    known: Sequence[Peer], only: Collection[PeerName], *, may_install: bool
) -> tuple[dict[PeerName, Peer], list[str]]:
    """Return the peers that take part, installed, and the others, each with its reason."""
    here: dict[PeerName, Peer] = {}
    left_out = []
    for peer in known:
        why = "" if peer.installed else "not installed; without --no-install it would be"
        if peer.who not in only:
            why = "not asked for"
        elif why and may_install:
            try:
                install(peer, say)
                why = ""
            except NotInstallable as failure:
                why = f"not installed: {failure}"
        if why:
            left_out.append(f"{TITLES[peer.who]}: {why}")
        else:
            here[peer.who] = peer
    return here, left_out


def main() -> int:
    """Install and measure; return 0 if nothing failed, whatever the figures are, and 2 if no peer is there."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))  # so that started processes are ended
    # Our own pin of torch: a looser one can pull in gigabytes of GPU packages.
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    torch = next((line for line in pins if line.startswith("torch==")), "torch")
    known = peers(torch=torch, torch_index=options.torch_index)
    here, left_out = chosen(known, options.only, may_install=not options.no_install)
    if not here:
        print("\n".join(f"Left out: {one}" for one in left_out))
        return 2
    if options.install_only:
        return 0
    named = {"rounds": options.rounds, "budget_s": options.budget}
    given = {name: value for name, value in named.items() if value is not None}
    plan = msgspec.structs.replace(QUICK if options.quick else FULL, **given)
    if not plan.held:
        say("A quick round shows that all of it works. Its figures are worth nothing.")
    with assembled() as pool:
        rounds = Rounds(plan, here, pool)
        say(str(rounds.report.machine))
        rounds.measure(parts(here))
    rounds.report.cuts += left_out
    print(f"\n{table(rounds.report)}")
    out = options.out or (None if options.quick else RESULTS)
    rounds.report.write(out and out / "peers.json")
    return 1 if rounds.report.failures else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.peers", description=__doc__)
    names = " ".join(NAMES)
    parser.add_argument(
        "--only", nargs="+", type=PeerName, choices=NAMES, default=NAMES, metavar="PEER", help=names
    )
    parser.add_argument("--quick", action="store_true", help="one tiny round, to see that all of it works")
    parser.add_argument("--rounds", type=int, help=f"how often each has its turn ({FULL.rounds})")
    parser.add_argument(
        "--budget", type=float, metavar="SECONDS", help=f"for all rounds ({FULL.budget_s:.0f})"
    )
    parser.add_argument("--no-install", action="store_true", help="measure those that are installed")
    parser.add_argument("--install-only", action="store_true", help="measure nothing")
    parser.add_argument("--torch-index", help="where torch comes from, if not from pip's own index")
    parser.add_argument("--out", type=Path, help="folder for results (docs/bench; with --quick: none)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
