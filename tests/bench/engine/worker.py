"""The contenders' processes, from both sides: a pool that starts them and sends jobs, and `python -m … WORKER`, which serves.

Jobs and answers are lines of JSON. A process starts when it is first needed; its main thread drives all work, and it ends when
its standard input does. `WORKER` is JSON.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from tests.bench.engine.load import WARM_UP, Contender, ContenderFailed, Load, Observed, observe
from tests.bench.engine.shapes import Shape
from tests.bench.report import MeasurementFailed

START_S = 180.0
ANSWER_S = 240.0
"""Seconds for a job without a limit of its own, and beyond the limit of one that has one; then the process is ended."""
SAVING_S = 120.0
GOODBYE_S = 15.0
LAST_WORDS = 2000


class Name(StrEnum):
    """A contender's name, in the files and on the command line, in the order of their turns."""

    OURS = "midstream"
    BATCHING = "batching"
    THREADS = "threads"


TITLES = {Name.OURS: "Midstream", Name.BATCHING: "continuous batching", Name.THREADS: "a thread per request"}


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """A process: its contender and its model, a folder. `kv_bytes` bounds our engine's keys and values.
    `most_at_once`: streams that our engine has slots for.
    """

    contender: Name
    folder: str
    dtype: str
    vocabulary: int
    kv_bytes: int | None = None
    device: str = "cpu"
    most_at_once: int = 32


class OwnMeasure(StrEnum):
    """What is measured of our engine alone (`tests/bench/engine/ours.py`)."""

    NEXT_TURN = "next-turn"
    CANCEL = "cancel"
    BOUND = "bound"
    MEMORY = "memory"


class OwnJob(msgspec.Struct, frozen=True, kw_only=True, tag="own"):
    """A measurement of our engine alone, and its sizes."""

    measure: OwnMeasure
    at_once: int = 1
    prompt_tokens: int = 0
    new_tokens: int = 0
    long_tokens: int = 0
    turns: int = 0
    settled: int = 0
    salt: int = 0


class Facts(msgspec.Struct, frozen=True, tag="facts"):
    """Answers an `OwnJob`."""

    values: dict[str, float]


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The first line of a process: its model is loaded and warm."""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """Answers any job that failed, in words for people."""

    message: str


Job = Load | OwnJob
Line = Ready | Failed | Observed | Facts


class Process:
    """A contender's process. `end` it in any case. Raises MeasurementFailed if it does not start."""

    def __init__(self, command: Sequence[str], variables: Mapping[str, str], log: Path) -> None:
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=variables
            )
        try:
            self._read(START_S)
        except BaseException:
            self.end()
            raise

    @property
    def alive(self) -> bool:
        """True if it can take another job."""
        return self._process.poll() is None

    def ask(self, job: Job, *, limit_s: float) -> Line:
        """Run a job. A process that takes longer than `limit_s` is ended. Raises MeasurementFailed."""
        if self._process.stdin is None or not self.alive:
            raise MeasurementFailed("its process had ended before")
        with suppress(BrokenPipeError):  # the missing answer shows it
            self._process.stdin.write(msgspec.json.encode(job) + b"\n")
            self._process.stdin.flush()
        return self._read(limit_s)

    def end(self) -> None:
        """End it: politely, then by a signal."""
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):  # it had ended before it read all
                self._process.stdin.close()
        try:
            self._process.wait(GOODBYE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _read(self, limit_s: float) -> Line:
        """Read a line. A process that sends none in time is killed."""
        late = threading.Event()

        def kill() -> None:
            late.set()
            self._process.kill()

        killer = threading.Timer(limit_s, kill)
        killer.start()
        try:
            line: bytes = self._process.stdout.readline() if self._process.stdout else b""
        finally:
            killer.cancel()
        if not line:
            self._process.wait()
            ended = f"no answer within {limit_s:.0f} s" if late.is_set() else "its process ended"
            raise MeasurementFailed(f"{ended}: {last_words(self._log.read_text(errors='replace'))}")
        answer: Line = msgspec.json.decode(line, type=Line)
        if isinstance(answer, Failed):
            raise MeasurementFailed(answer.message)
        return answer


def last_words(log: str) -> str:
    """Return the last line of a log, which sums up a traceback; the rest goes to standard error."""
    print(log[-LAST_WORDS:].strip(), file=sys.stderr)
    lines = log.strip().splitlines()
    return lines[-1] if lines else "it said nothing"


class WorkerPool:
    """Processes by what they were started with, and their models, all on one device. Use `assembled`."""

    def __init__(self, folder: Path, *, device: str = "cpu", most_at_once: int = 32) -> None:
        self._folder, self._device, self._most_at_once = folder, device, most_at_once
        self._processes: dict[Worker, Process] = {}
        self._useless: dict[Worker, str] = {}
        self.starting_s = 0.0
        """Seconds spent on starts so far, which belong to no measurement."""

    def model(self, shape: Shape) -> Path:
        """Return the folder of a model; its weights are drawn on the first call. Raises MeasurementFailed."""
        folder = self._folder / shape.name
        if not folder.is_dir():
            command = [
                sys.executable,
                "-m",
                "tests.bench.engine.weights",
                shape.name,
                str(folder),
                self._device,
            ]
            saved = subprocess.run(
                command, env=_environment(), capture_output=True, timeout=SAVING_S, check=False
            )
            if saved.returncode:
                raise MeasurementFailed(f"no weights: {last_words(saved.stderr.decode(errors='replace'))}")
        return folder

    def load(self, name: Name, shape: Shape, dtype: str, load: Load) -> Observed:
        """Have a contender run a load. Raises MeasurementFailed."""
        observed = self._process(self._worker(name, shape, dtype)).ask(load, limit_s=load.cut_s + ANSWER_S)
        assert isinstance(observed, Observed)
        return observed

    def facts(
        self, shape: Shape, dtype: str, job: OwnJob, *, kv_bytes: int | None = None
    ) -> dict[str, float]:
        """Have our engine run a job. Raises MeasurementFailed."""
        facts = self._process(self._worker(Name.OURS, shape, dtype, kv_bytes)).ask(job, limit_s=ANSWER_S)
        assert isinstance(facts, Facts)
        return facts.values

    def dismiss(self) -> None:
        """End all processes; they are started again when needed."""
        while self._processes:
            self._processes.popitem()[1].end()

    def _worker(self, name: Name, shape: Shape, dtype: str, kv_bytes: int | None = None) -> Worker:
        return Worker(
            contender=name, folder=str(self.model(shape)), dtype=dtype, vocabulary=shape.vocabulary,
            kv_bytes=kv_bytes, device=self._device, most_at_once=self._most_at_once,
        )  # fmt: skip

    def _process(self, worker: Worker) -> Process:
        """Return the process that serves, a new one if the last one died. Raises MeasurementFailed."""
        from engine.machine import torch_settings  # noqa: PLC0415 - another Python that serves has no product

        if worker in self._useless:
            raise MeasurementFailed(f"it did not start before: {self._useless[worker]}")
        known = self._processes.pop(worker, None)
        if known is None or not known.alive:
            if known is not None:
                known.end()
            log = self._folder / f"{worker.contender}-{Path(worker.folder).name}-{worker.dtype}.log"
            # Compute threads wait as the contender's authors intend.
            variables = _environment() | (torch_settings(os.environ) if worker.contender is Name.OURS else {})
            command = [
                sys.executable,
                "-m",
                "tests.bench.engine.worker",
                msgspec.json.encode(worker).decode(),
            ]
            begun = time.monotonic()
            try:
                known = Process(command, variables, log)
            except MeasurementFailed as failure:
                self._useless[worker] = str(failure)
                raise
            finally:
                self.starting_s += time.monotonic() - begun
        self._processes[worker] = known
        return known


@contextmanager
def assembled(*, device: str = "cpu", most_at_once: int = 32) -> Iterator[WorkerPool]:
    """Yield a pool; its processes, models and logs end with the block."""
    with tempfile.TemporaryDirectory(prefix="midstream-bench-") as folder:
        pool = WorkerPool(Path(folder), device=device, most_at_once=most_at_once)
        try:
            yield pool
        finally:
            pool.dismiss()


def _environment() -> dict[str, str]:
    from tests.bench.servers import environment  # noqa: PLC0415 - another Python that serves lacks what it imports

    return environment()


def serve(make: Callable[[Worker], tuple[Contender, Callable[[OwnJob], dict[str, float]] | None]]) -> None:
    """Serve jobs until standard input ends. `make` returns the contender, and what runs our engine's own jobs.

    Standard output is kept for answers: libraries print to standard error.
    """
    logging.basicConfig(level=logging.ERROR, stream=sys.stderr)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    worker = msgspec.json.decode(sys.argv[1], type=Worker)
    contender, own = make(worker)
    turn = 0

    def answer(job: Job) -> Line:
        nonlocal turn
        turn += 1
        if isinstance(job, Load):
            return observe(contender, job, vocabulary=worker.vocabulary, clock=time.perf_counter, turn=turn)
        return Facts(own(job)) if own else Failed("only Midstream is measured so")

    def put(line: Line) -> None:
        answers.write(msgspec.json.encode(line) + b"\n")
        answers.flush()

    for load in WARM_UP:
        answer(load)
    put(Ready())
    for line in sys.stdin.buffer:
        try:
            put(answer(msgspec.json.decode(line, type=Job)))
        except ContenderFailed as error:
            put(Failed(str(error)))
        except Exception as error:  # noqa: BLE001 - the boundary of a job: its answer is the failure
            traceback.print_exc(file=sys.stderr)
            put(Failed(f"{type(error).__name__}: {error}"))
    contender.close()


def _make(worker: Worker) -> Any:
    """Load the model: each process loads its own contender. Raises what loading raises."""
    if worker.contender is Name.OURS:
        from tests.bench.engine import ours  # noqa: PLC0415

        engine = ours.MidstreamEngine(worker)
        return engine, lambda job: ours.MEASURES[job.measure](engine, job)
    from tests.bench.engine import peers  # noqa: PLC0415

    if worker.contender is Name.BATCHING:
        return peers.ContinuousBatching(worker.folder, worker.dtype, worker.device), None
    return peers.ThreadPerRequest(worker.folder, worker.dtype), None


if __name__ == "__main__":
    serve(_make)
    os._exit(0)  # taking torch down piece by piece takes a second; the kernel does it at once
