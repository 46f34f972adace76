"""The contenders' processes: each starts when it is first needed, and serves until the end."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from tests.bench.engine.records import Job
from tests.bench.engine.registry import Name, Worker
from tests.bench.engine.shapes import Shape
from tests.bench.engine.worker_process import Process, environment, last_words
from tests.bench.processes import MeasurementFailed

ANSWER_S = 240.0
"""Seconds for a job without a limit of its own, and beyond the limit of one that has one; then the process is ended."""

SAVING_S = 120.0

A = TypeVar("A")


class WorkerPool:
    """Processes by what they were started with, and their models, all on one device. Use `assembled`."""

    def __init__(self, folder: Path, *, device: str = "cpu", most_at_once: int = 32) -> None:
        self._folder = folder
        self._device = device
        self._most_at_once = most_at_once
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
                command, env=environment(), capture_output=True, timeout=SAVING_S, check=False
            )
            if saved.returncode:
                raise MeasurementFailed(f"no weights: {last_words(saved.stderr.decode(errors='replace'))}")
        return folder

    def ask(
        self,
        name: Name,
        shape: Shape,
        dtype: str,
        job: Job,
        answer: type[A],
        *,
        kv_bytes: int | None = None,
    ) -> A:
        """Have a contender run a job with a model. Raises MeasurementFailed."""
        worker = Worker(
            contender=name,
            folder=str(self.model(shape)),
            dtype=dtype,
            vocabulary=shape.vocabulary,
            kv_bytes=kv_bytes,
            device=self._device,
            most_at_once=self._most_at_once,
        )
        return self._process(worker).ask(job, answer, limit_s=getattr(job, "cut_s", 0.0) + ANSWER_S)

    def dismiss(self) -> None:
        """End all processes; they are started again when needed."""
        while self._processes:
            self._processes.popitem()[1].end()

    def _process(self, worker: Worker) -> Process:
        """Return the process that serves, a new one if the last one died. Raises MeasurementFailed."""
        if worker in self._useless:
            raise MeasurementFailed(f"it did not start before: {self._useless[worker]}")
        known = self._processes.get(worker)
        if known is not None and known.alive:
            return known
        if known is not None:
            known.end()
        log = self._folder / f"{worker.contender}-{Path(worker.folder).name}-{worker.dtype}.log"
        begun = time.monotonic()
        try:
            self._processes[worker] = Process.of(worker, log)
        except MeasurementFailed as failure:
            self._processes.pop(worker, None)
            self._useless[worker] = str(failure)
            raise
        finally:
            self.starting_s += time.monotonic() - begun
        return self._processes[worker]


@contextmanager
def assembled(*, device: str = "cpu", most_at_once: int = 32) -> Iterator[WorkerPool]:
    """Yield a crew; its processes, models and logs end with the block."""
    with tempfile.TemporaryDirectory(prefix="midstream-bench-") as folder:
        crew = WorkerPool(Path(folder), device=device, most_at_once=most_at_once)
        try:
            yield crew
        finally:
            crew.dismiss()
