"""The contenders' processes: a pool that starts each when it is first needed, and gives it jobs."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager, suppress
from enum import StrEnum
from functools import cache, partial
from itertools import count
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


class WorkerPool:
    """Processes by what they were started with, and their models, all on one device. Use `assembled`."""

    def __init__(self, folder: Path, *, device: str, most_at_once: int) -> None:
        self._folder, self.device, self._most_at_once = folder, device, most_at_once
        self._running: dict[Worker, Process] = {}

    def load(self, name: Name, shape: Shape, dtype: str, load: Load) -> Observed:
        """Have a contender run a load. Raises MeasurementFailed."""
        worker = self._worker(name, shape, dtype)
        observed: Observed = self._ask(worker, "load", load.cut_s + ANSWER_S, load=load)
        return observed

    def facts(
        self, shape: Shape, dtype: str, measure: str, *, kv_bytes: int | None = None, **sizes: int
    ) -> dict[str, float]:
        """Have our engine measured alone (`MEASURES` in `ours.py`), with these sizes. Raises MeasurementFailed."""
        worker = self._worker(Name.OURS, shape, dtype, kv_bytes)
        facts: dict[str, float] = self._ask(worker, measure, ANSWER_S, **sizes)
        return facts

    def dismiss(self) -> None:
        """End all processes; they are started again when needed."""
        while self._running:
            self._running.popitem()[1].end()

    def _worker(self, name: Name, shape: Shape, dtype: str, kv_bytes: int | None = None) -> Worker:
        return Worker(
            contender=name, folder=str(drawn(shape, self._folder, self.device)), dtype=dtype, kv_bytes=kv_bytes,
            vocabulary=shape.vocabulary, device=self.device, most_at_once=self._most_at_once,
        )  # fmt: skip

    def _ask(self, worker: Worker, measure: str, limit_s: float, **sizes: object) -> Any:
        """Return a process's answer. One that fails, or sends none in time, is restarted when it is needed."""
        if worker not in self._running:
            # Compute threads wait as the contender's authors intend.
            is_ours = worker.contender is Name.OURS
            self._running[worker] = Process(torch_settings(os.environ) if is_ours else {})
            limit_s += START_S
        try:
            return self._running[worker].answer(limit_s, _run, worker, measure, sizes)
        except MeasurementFailed:
            self._running.pop(worker).end()
            raise


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
        _save("save", shape, made, device)
    return made


def in_gguf(model: Path) -> Path:
    """Return a drawn model as a GGUF file, written on the first call. Raises MeasurementFailed."""
    made = model.with_suffix(".gguf")
    if not made.exists():
        _save("save_gguf", model, made)
    return made


class Process:
    """A process that runs functions, with the environment of every measured one and these variables. It ends with this one."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._executor = ProcessPoolExecutor(
            1, multiprocessing.get_context("spawn"), _set_up, (environment() | dict(variables),)
        )
        self._pid: int = self.answer(ANSWER_S, os.getpid)

    def answer(self, limit_s: float, function: Callable[..., Any], *args: object) -> Any:
        """Return what a function returns there. Raises MeasurementFailed, at once if the process dies."""
        try:
            return self._executor.submit(function, *args).result(limit_s)
        except FutureTimeoutError:
            raise MeasurementFailed(f"no answer within {limit_s:.0f} s") from None
        except Exception as error:  # the boundary of the process
            raise MeasurementFailed(f"{type(error).__name__}: {error}") from error

    def end(self) -> None:
        """End the process, whatever it does."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)


def _save(function: str, *args: object) -> None:
    process = Process({})
    try:
        process.answer(SAVING_S, _saving, function, *args)
    finally:
        process.end()


def _set_up(variables: Mapping[str, str]) -> None:
    """Give this process its environment, before it imports torch."""
    os.environ.clear()
    os.environ.update(variables)


def _saving(function: str, *args: object) -> None:
    from tests.bench.engine import weights  # noqa: PLC0415 - torch, in this process alone

    getattr(weights, function)(*args)


def _run(worker: Worker, measure: str, sizes: Mapping[str, Any]) -> Any:
    return _measures(worker)[measure](**sizes)


@cache
def _measures(worker: Worker) -> dict[str, Callable[..., Any]]:
    """Load the model and warm up; return what can be measured. Raises what loading raises."""
    turns = count()
    contender, measures = _make(worker)

    def run(load: Load) -> Observed:
        return observe(contender, load, vocabulary=worker.vocabulary, turn=next(turns))

    for load in WARM_UP:
        run(load)
    return {name: partial(measure, contender) for name, measure in measures.items()} | {"load": run}


def _make(worker: Worker) -> Any:
    """Return the contender, and what is measured of it alone. Raises what loading raises."""
    if worker.contender is Name.OURS:
        from tests.bench.engine import ours  # noqa: PLC0415 - each process loads its own contender

        return ours.MidstreamEngine(worker), ours.MEASURES
    from tests.bench.engine.batching import ContinuousBatching  # noqa: PLC0415

    return ContinuousBatching(worker.folder, worker.dtype, worker.device), {}
