"""The contenders' processes: a pool that starts each when it is first needed, and gives it jobs."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from itertools import count
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
        for worker in list(self._running):
            self._end(worker)

    def _worker(self, name: Name, shape: Shape, dtype: str, kv_bytes: int | None = None) -> Worker:
        return Worker(
            contender=name, folder=str(self.model(shape)), dtype=dtype, vocabulary=shape.vocabulary,
            kv_bytes=kv_bytes, device=self._device, most_at_once=self._most_at_once,
        )  # fmt: skip

    def _ask(self, worker: Worker, measure: str, limit_s: float, **sizes: object) -> Any:
        if worker not in self._running:
            # Compute threads wait as the contender's authors intend.
            more = torch_settings(os.environ) if worker.contender is Name.OURS else {}
            ours, theirs = _SPAWN.Pipe()
            self._running[worker] = started(_serve, worker, theirs, variables=more), ours
            theirs.close()
            self._receive(worker, START_S)
        self._running[worker][1].send((measure, sizes))
        return self._receive(worker, limit_s)

    def _receive(self, worker: Worker, limit_s: float) -> Any:
        """Return the next answer. A process that fails, or sends none in time, is started anew when it is needed."""
        line = self._running[worker][1]
        try:
            answer: Any = MeasurementFailed(f"no answer within {limit_s:.0f} s")
            if line.poll(limit_s):
                answer = line.recv()
        except (EOFError, OSError):
            answer = MeasurementFailed("its process ended")
        if isinstance(answer, MeasurementFailed):
            self._end(worker)
            raise answer
        return answer

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
        _save("save", shape, made, device)
    return made


def in_gguf(model: Path) -> Path:
    """Return a drawn model as a GGUF file, written on the first call. Raises MeasurementFailed."""
    made = model.with_suffix(".gguf")
    if not made.exists():
        _save("save_gguf", model, made)
    return made


def _save(function: str, *args: object) -> None:
    process = started(_saving, function, *args)
    process.join(SAVING_S)
    process.kill()
    process.join()
    if process.exitcode != 0:
        raise MeasurementFailed(f"a model was not written: {function}{args}")


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


def _saving(function: str, *args: object) -> None:
    from tests.bench.engine import weights  # noqa: PLC0415 - torch, in this process alone

    getattr(weights, function)(*args)


def _serve(worker: Worker, line: Connection) -> None:
    """Load the model, say so, and serve jobs until one fails or the other side is gone."""
    turns = count()
    try:
        contender, measures = _make(worker)

        def run(load: Load) -> Observed:
            return observe(contender, load, vocabulary=worker.vocabulary, turn=next(turns))

        for load in WARM_UP:
            run(load)
        line.send(None)
        while True:
            measure, sizes = line.recv()
            line.send(run(**sizes) if measure == "load" else measures[measure](contender, **sizes))
    except EOFError:
        os._exit(0)  # taking torch down piece by piece takes a second; the kernel does it at once
    except Exception as error:  # noqa: BLE001 - the boundary of the process: its answer is the failure
        traceback.print_exc()
        line.send(MeasurementFailed(f"{type(error).__name__}: {error}"))


def _make(worker: Worker) -> Any:
    """Return the contender, and what is measured of it alone. Raises what loading raises."""
    if worker.contender is Name.OURS:
        from tests.bench.engine import ours  # noqa: PLC0415 - each process loads its own contender

        return ours.MidstreamEngine(worker), ours.MEASURES
    from tests.bench.engine.batching import ContinuousBatching  # noqa: PLC0415

    return ContinuousBatching(worker.folder, worker.dtype, worker.device), {}
