"""The contenders' processes: a pool that starts each when it is first needed, and gives it jobs."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import msgspec

from engine.machine import torch_settings
from tests.bench.engine.load import WARM_UP, Load, Observed, observe
from tests.bench.engine.shapes import Shape
from tests.bench.report import MeasurementFailed
from tests.bench.servers import environment

START_S = 180.0
ANSWER_S = 240.0
"""Seconds for a job without a limit of its own, and beyond the limit of one that has one; then the process is ended."""
SAVING_S = 120.0
_SPAWN = multiprocessing.get_context("spawn")


class Name(StrEnum):
    """A contender's name, in the files and on the command line, in the order of their turns."""

    OURS = "midstream"
    BATCHING = "batching"


TITLES = {Name.OURS: "Midstream", Name.BATCHING: "continuous batching"}


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
    MEMORY = "memory"


class OwnJob(msgspec.Struct, frozen=True, kw_only=True):
    """A measurement of our engine alone, and its sizes."""

    measure: OwnMeasure
    at_once: int = 1
    prompt_tokens: int = 0
    new_tokens: int = 0
    long_tokens: int = 0
    turns: int = 0
    settled: int = 0
    salt: int = 0


class Failed(msgspec.Struct, frozen=True):
    """Answers a start or a job that failed, in words for people."""

    message: str


class WorkerPool:
    """Processes by what they were started with, and their models, all on one device. Use `assembled`."""

    def __init__(self, folder: Path, *, device: str = "cpu", most_at_once: int = 32) -> None:
        self._folder, self._device, self._most_at_once = folder, device, most_at_once
        self._running: dict[Worker, tuple[BaseProcess, Connection]] = {}

    def model(self, shape: Shape) -> Path:
        """Return the folder of a model. Raises MeasurementFailed."""
        return drawn(shape, self._folder, self._device)

    def load(self, name: Name, shape: Shape, dtype: str, load: Load) -> Observed:
        """Have a contender run a load. Raises MeasurementFailed."""
        observed = self._ask(self._worker(name, shape, dtype), load, limit_s=load.cut_s + ANSWER_S)
        assert isinstance(observed, Observed)
        return observed

    def facts(
        self, shape: Shape, dtype: str, job: OwnJob, *, kv_bytes: int | None = None
    ) -> dict[str, float]:
        """Have our engine run a job. Raises MeasurementFailed."""
        facts: dict[str, float] = self._ask(
            self._worker(Name.OURS, shape, dtype, kv_bytes), job, limit_s=ANSWER_S
        )
        return facts

    def dismiss(self) -> None:
        """End all processes; they are started again when needed."""
        for worker in list(self._running):
            self._end(worker)

    def _worker(self, name: Name, shape: Shape, dtype: str, kv_bytes: int | None = None) -> Worker:
        return Worker(
            contender=name, folder=str(self.model(shape)), dtype=dtype, vocabulary=shape.vocabulary,
            kv_bytes=kv_bytes, device=self._device, most_at_once=self._most_at_once,
        )  # fmt: skip

    def _ask(self, worker: Worker, job: Load | OwnJob, *, limit_s: float) -> Any:
        if worker not in self._running:
            # Compute threads wait as the contender's authors intend.
            more = torch_settings(os.environ) if worker.contender is Name.OURS else {}
            ours, theirs = _SPAWN.Pipe()
            self._running[worker] = started(_serve, worker, theirs, variables=more), ours
            theirs.close()
            self._receive(worker, START_S)
        self._running[worker][1].send(job)
        return self._receive(worker, limit_s)

    def _receive(self, worker: Worker, limit_s: float) -> Any:
        """Return the next answer. A process that sends none in time, or ends, is started anew when it is needed."""
        line = self._running[worker][1]
        try:
            if line.poll(limit_s):
                answer = line.recv()
                if isinstance(answer, Failed):
                    raise MeasurementFailed(answer.message)
                return answer
            why = f"no answer within {limit_s:.0f} s"
        except (EOFError, OSError):
            why = "its process ended"
        self._end(worker)
        raise MeasurementFailed(why)

    def _end(self, worker: Worker) -> None:
        process, line = self._running.pop(worker)
        process.kill()
        process.join()
        line.close()


@contextmanager
def assembled(*, device: str = "cpu", most_at_once: int = 32) -> Iterator[WorkerPool]:
    """Yield a pool; its processes and models end with the block."""
    with tempfile.TemporaryDirectory(prefix="midstream-bench-") as folder:
        pool = WorkerPool(Path(folder), device=device, most_at_once=most_at_once)
        try:
            yield pool
        finally:
            pool.dismiss()


def drawn(shape: Shape, folder: Path, device: str = "cpu") -> Path:
    """Return the folder of a model below a folder; its weights are drawn on the first call. Raises MeasurementFailed."""
    made = folder / shape.name
    if not made.is_dir():
        process = started(_draw, shape, made, device)
        process.join(SAVING_S)
        process.kill()
        process.join()
        if process.exitcode != 0:
            raise MeasurementFailed(f"the weights of {shape.name} were not drawn")
    return made


def started(
    target: Callable[..., None], *args: object, variables: Mapping[str, str] | None = None
) -> BaseProcess:
    """Start a process with the environment of every measured one, and these variables. It ends with this one."""
    before, theirs = dict(os.environ), environment() | dict(variables or {})
    os.environ.clear()
    os.environ.update(theirs)
    try:
        process = _SPAWN.Process(target=target, args=args, daemon=True)
        process.start()
    finally:
        os.environ.clear()
        os.environ.update(before)
    return process


def _draw(shape: Shape, folder: Path, device: str) -> None:
    from tests.bench.engine.weights import save  # noqa: PLC0415 - torch, in this process alone

    save(shape, folder, device)


def _serve(worker: Worker, line: Connection) -> None:
    """Load the model, say so, and serve jobs until the other side is gone."""
    turn = 0

    def answer(job: Load | OwnJob) -> Observed | dict[str, float]:
        nonlocal turn
        turn += 1
        if isinstance(job, Load):
            return observe(contender, job, vocabulary=worker.vocabulary, clock=time.perf_counter, turn=turn)
        facts: dict[str, float] = own[job.measure](contender, job)
        return facts

    try:
        contender, own = _make(worker)
        for load in WARM_UP:
            answer(load)
    except Exception as error:  # noqa: BLE001 - the boundary of a start: its answer is the failure
        traceback.print_exc()
        line.send(Failed(f"{type(error).__name__}: {error}"))
        return
    line.send(None)
    while True:
        try:
            line.send(answer(line.recv()))
        except EOFError:
            os._exit(0)  # taking torch down piece by piece takes a second; the kernel does it at once
        except Exception as error:  # noqa: BLE001 - the boundary of a job: its answer is the failure
            traceback.print_exc()
            line.send(Failed(f"{type(error).__name__}: {error}"))


def _make(worker: Worker) -> Any:
    """Return the contender, and what is measured of it alone. Raises what loading raises."""
    if worker.contender is Name.OURS:
        from tests.bench.engine import ours  # noqa: PLC0415 - each process loads its own contender

        return ours.MidstreamEngine(worker), ours.MEASURES
    from tests.bench.engine.batching import ContinuousBatching  # noqa: PLC0415

    return ContinuousBatching(worker.folder, worker.dtype, worker.device), {}
