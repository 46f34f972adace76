"""Starts contenders' processes and sends them jobs. Ends them by their own ids."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self, TypeVar

import msgspec

from engine.machine import torch_settings
from tests.bench.engine.records import Failed, Job, Line, Ready
from tests.bench.engine.registry import Name, Worker
from tests.bench.processes import MeasurementFailed

START_S = 180.0
GOODBYE_S = 15.0
LAST_WORDS = 2000

A = TypeVar("A")


class Process:
    """A contender's process. `end` it in any case. Raises MeasurementFailed if it does not start."""

    def __init__(self, command: Sequence[str], variables: Mapping[str, str], log: Path) -> None:
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=variables
            )
        try:
            self._read(Ready, START_S)
        except BaseException:
            self.end()
            raise

    @classmethod
    def of(cls, worker: Worker, log: Path) -> Self:
        """Start a contender of this environment."""
        ours = worker.contender is Name.OURS
        return cls(
            [sys.executable, "-m", "tests.bench.engine.worker", msgspec.json.encode(worker).decode()],
            environment() | (torch_settings(os.environ) if ours else {}),
            log,
        )

    @property
    def alive(self) -> bool:
        """True if it can take another job."""
        return self._process.poll() is None

    def ask(self, job: Job, answer: type[A], *, limit_s: float) -> A:
        """Run a job. A process that takes longer than `limit_s` is ended. Raises MeasurementFailed."""
        if self._process.stdin is None or not self.alive:
            raise MeasurementFailed("its process had ended before")
        with suppress(BrokenPipeError):  # the missing answer shows it
            self._process.stdin.write(msgspec.json.encode(job) + b"\n")
            self._process.stdin.flush()
        return self._read(answer, limit_s)

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

    def _read(self, expected: type[A], limit_s: float) -> A:
        line = self._line(limit_s)
        read: Line = msgspec.json.decode(line, type=Line)
        if isinstance(read, Failed):
            raise MeasurementFailed(read.message)
        if not isinstance(read, expected):
            raise MeasurementFailed(f"it answered with {type(read).__name__}")
        return read

    def _line(self, limit_s: float) -> bytes:
        """Read a line. A process that sends none in time is killed, with its children."""
        late = threading.Event()
        killer = threading.Timer(limit_s, self._kill, [late])
        killer.start()
        try:
            line: bytes = self._process.stdout.readline() if self._process.stdout else b""
        finally:
            killer.cancel()
        if not line:
            self._process.wait()
            ended = f"no answer within {limit_s:.0f} s" if late.is_set() else "its process ended"
            raise MeasurementFailed(f"{ended}: {last_words(self._log.read_text(errors='replace'))}")
        return line

    def _kill(self, late: threading.Event) -> None:
        late.set()
        self._process.kill()


def last_words(log: str) -> str:
    """Return the last line of a log, which sums up a traceback; the rest goes to standard error."""
    print(log[-LAST_WORDS:].strip(), file=sys.stderr)
    lines = log.strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def environment() -> dict[str, str]:
    """Return the environment of every process. Compute threads wait as the contender's authors intend."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MIDSTREAM_")}
    return {**kept, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
