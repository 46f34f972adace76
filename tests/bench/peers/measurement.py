"""Gives each program its turn in every round; every second round has the reverse order. One program runs at a time."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import msgspec
from tokenizers import Tokenizer

from tests.bench.endpoints import model_of
from tests.bench.engine.records import Load
from tests.bench.engine.records import Observed as Alone
from tests.bench.engine.registry import Name, Worker
from tests.bench.engine.report import Failure
from tests.bench.engine.shapes import Shape
from tests.bench.engine.statistics import tokens_per_s
from tests.bench.engine.worker_pool import WorkerPool
from tests.bench.engine.worker_process import Process, last_words
from tests.bench.peers.install import quiet
from tests.bench.peers.plan import Kind, Part, Plan, long_levels
from tests.bench.peers.prompts import content
from tests.bench.peers.registry import ROOT, TITLES, Peer, PeerName
from tests.bench.peers.report import Run
from tests.bench.peers.servers import Served, served
from tests.bench.processes import MeasurementFailed, observe, running
from tests.bench.records import Job, Measure, Observed, ServerApi
from tests.bench.servers import ServerLocation
from tests.bench.statistics import figures
from tests.bench.workload import Level
from tests.server_process import free_port

DTYPE = "bfloat16"
LIMIT_S = 150.0
"""Seconds for one load; a process that takes longer is ended."""
PREPARING_S = 180.0
WARM_UP_TOKENS = 8
WRITE_GGUF = Path(__file__).with_name("write_gguf.py")


class Rounds:
    """Measures; `runs`, `failures` and `cuts` fill up. A part that failed once gets no further turn."""

    def __init__(
        self, plan: Plan, peers: Mapping[PeerName, Peer], crew: WorkerPool, progress: Callable[[str], None]
    ) -> None:
        self._plan = plan
        self._peers = peers
        self._crew = crew
        self._progress = progress
        self._failed: set[Part] = set()
        self._counters: dict[str, Tokenizer] = {}
        self.runs: list[Run] = []
        self.failures: list[Failure] = []
        self.cuts: list[str] = []

    def measure(self, parts: Sequence[Part]) -> None:
        """Do all rounds that the budget allows."""
        begun = time.monotonic()
        for number in range(self._plan.rounds):
            elapsed = time.monotonic() - begun
            if number and elapsed * (number + 1) / number > self._plan.budget_s:
                self.cuts.append(
                    f"{self._plan.rounds - number} of {self._plan.rounds} rounds, for want of time"
                )
                break
            for part in parts if number % 2 == 0 else reversed(parts):
                if part not in self._failed:
                    self._turn(part, number)

    def _turn(self, part: Part, number: int) -> None:
        what = f"{TITLES[part.who]}, {part.shape.name}{', engine alone' if part.engine else ''}"
        self._progress(f"Round {number + 1} of {self._plan.rounds}: {what}")
        begun = time.monotonic()
        try:
            for run in (self._alone if part.engine else self._over_http)(part, number):
                self.runs.append(run)
                self._progress(f"  {_summary(run)}")
        except MeasurementFailed as failure:
            self._failed.add(part)
            self.failures.append(Failure(what, str(failure)))
            self._progress(f"  FAILED: {failure}")
        finally:
            self._crew.dismiss()
        self._progress(f"  took {time.monotonic() - begun:.0f} s")

    def _over_http(self, part: Part, number: int) -> Iterator[Run]:
        """Start a server and give each level its load. Raises MeasurementFailed."""
        one = served(part.who, self._peers)
        with tempfile.TemporaryDirectory(prefix="midstream-bench-") as folder:
            place = ServerLocation(
                port=free_port(), folder=folder, model=str(self._model(part)), device="cpu", dtype=DTYPE
            )
            with running(one.server, place) as pid:
                clients = _Clients(one, place.url, pid, self._counter(part.shape))
                for level in (Level(1, 1), Level(self._plan.most_clients, 1)):
                    clients.ask(level, self._plan.prompt_tokens, WARM_UP_TOKENS, (number, "warm up"))
                for kind, level, tokens, new_tokens in self._loads(part):
                    observed = clients.ask(level, tokens, new_tokens, (number, kind, level.clients))
                    yield _run(part, kind, level, number, observed)

    def _loads(self, part: Part) -> Iterator[tuple[Kind, Level, int, int]]:
        """Yield the loads of a server: kind, number of clients, tokens of each prompt and of each reply."""
        plan = self._plan
        for level in plan.levels:
            yield Kind.CHAT, level, plan.prompt_tokens, plan.new_tokens
        for level in long_levels(part, plan):
            yield (
                Kind.LONG,
                level,
                plan.long_tokens,
                plan.long_first_new if level.clients == 1 else plan.new_tokens,
            )

    def _alone(self, part: Part, number: int) -> Iterator[Run]:
        """Give an engine its loads, without sockets. Raises MeasurementFailed."""
        with self._engine(part) as ask:
            for level in self._plan.levels:
                rates = []
                for reply in range(level.replies):
                    load = Load(
                        at_once=level.clients,
                        prompt_tokens=self._plan.prompt_tokens,
                        new_tokens=self._plan.new_tokens,
                        cut_s=LIMIT_S,
                        salt=number * 100 + reply,
                    )
                    rates.append(_whole(ask(load), self._plan.new_tokens))
                yield Run(
                    who=part.who,
                    model=part.shape.name,
                    kind=Kind.ENGINE,
                    clients=level.clients,
                    round=number,
                    tokens_per_s=median(rates),
                )

    @contextmanager
    def _engine(self, part: Part) -> Iterator[Callable[[Load], Alone]]:
        """Run an engine inside the block; yield what sends it jobs. Raises MeasurementFailed."""
        if part.who is PeerName.MIDSTREAM:
            yield lambda load: self._crew.ask(Name.OURS, part.shape, DTYPE, load, Alone)
            return
        folder = self._model(part)
        # Its process reads the folder and the vocabulary alone: the names are those of our environment's contenders.
        worker = Worker(
            contender=Name.OURS, folder=str(folder), dtype=DTYPE, vocabulary=part.shape.vocabulary
        )
        process = Process(
            [
                *(self._peers[part.who].program, "-m", "tests.bench.peers.openvino_worker"),
                msgspec.json.encode(worker).decode(),
            ],
            quiet(os.environ) | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
            folder.with_suffix(".log"),
        )
        try:
            yield lambda load: process.ask(load, Alone, limit_s=LIMIT_S + load.cut_s)
        finally:
            process.end()

    def _model(self, part: Part) -> Path:
        """Return the model in the form that a program reads, made on the first call. Raises MeasurementFailed."""
        folder = self._crew.model(part.shape)
        match part.who:
            case PeerName.LLAMA:
                file = folder.with_suffix(".gguf")
                python = str(Path(self._peers[part.who].home) / "bin" / "python")
                _prepare(file, [python, str(WRITE_GGUF), str(folder), str(file)])
                return file
            case PeerName.OPENVINO:
                exported = folder.with_suffix(".openvino")
                export = [
                    *(str(Path(self._peers[part.who].home) / "bin" / "optimum-cli"), "export", "openvino"),
                    *("--model", str(folder), "--task", "text-generation-with-past"),
                    *("--weight-format", "fp16", str(exported)),
                ]
                _prepare(exported, export)
                return exported
            case _:
                return folder

    def _counter(self, shape: Shape) -> Tokenizer:
        if shape.name not in self._counters:
            file = self._crew.model(shape) / "tokenizer.json"
            self._counters[shape.name] = Tokenizer.from_file(str(file))
        return self._counters[shape.name]


class _Clients:
    """Clients of one server. All of it raises MeasurementFailed."""

    def __init__(self, one: Served, url: str, pid: int, counter: Tokenizer) -> None:
        self._fields = one.fields
        self._url = url
        self._pid = pid
        self._count = lambda text: len(counter.encode(text).ids)
        try:
            self._model = model_of(url)
        except OSError as error:
            raise MeasurementFailed(f"the server does not name its model: {error}") from error

    def ask(self, level: Level, tokens: int, new_tokens: int, seed: object) -> Observed:
        """Have a level's clients read replies to prompts of so many tokens."""
        numbers = range(level.clients * level.replies)
        return observe(
            Job(
                measure=Measure.LOAD,
                api=ServerApi.CHAT,
                url=self._url,
                model=self._model,
                pid=self._pid,
                clients=level.clients,
                replies=level.replies,
                max_new_tokens=new_tokens,
                cancel_after_texts=0,
                limit_s=LIMIT_S,
                prompts=tuple(content(tokens, (seed, number), self._count) for number in numbers),
                more=self._fields,
                anew=True,  # llama-server says that it keeps connections, and closes them after a stream
            )
        )


def _run(part: Part, kind: Kind, level: Level, number: int, observed: Observed) -> Run:
    shown = figures(observed, Observed(), Observed())
    return Run(
        who=part.who,
        model=part.shape.name,
        kind=kind,
        clients=level.clients,
        round=number,
        tokens_per_s=shown.tokens_per_s or 0.0,
        first_token_ms=shown.first_token_p50_ms,
        tokens_per_reply=shown.tokens_per_reply,
    )


def _whole(observed: Alone, new_tokens: int) -> float:
    """Return the tokens per second. Raises MeasurementFailed if a reply was cut or ended early."""
    shortest = min(len(stream.arrivals) for stream in observed.streams)
    if observed.cut or shortest != new_tokens:
        raise MeasurementFailed(f"a reply had {shortest} of {new_tokens} tokens")
    return tokens_per_s(observed)


def _prepare(made: Path, command: Sequence[str]) -> None:
    """Run a command that makes a model, once. Raises MeasurementFailed."""
    if made.exists():
        return
    try:
        done = subprocess.run(
            command, env=quiet(os.environ), capture_output=True, timeout=PREPARING_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MeasurementFailed(f"its model was not made: {error}") from error
    if done.returncode or not made.exists():
        raise MeasurementFailed(f"its model was not made: {last_words(done.stderr.decode(errors='replace'))}")


def _summary(run: Run) -> str:
    first = "" if run.first_token_ms is None else f", first token {run.first_token_ms:,.0f} ms"
    return f"{run.kind}, {run.clients:>2} at once: {run.tokens_per_s:,.0f} tokens/s{first}"
