"""Runs a contender's process, and the clients' process. Ends both by their own ids."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from tests.bench.records import Job, Observed
from tests.bench.servers import Contender, ServerLocation

GOODBYE_S = 20.0
PROBE_S = 0.05
CLIENTS_START_S = 30.0
LAST_WORDS = 2000


class MeasurementFailed(Exception):
    """A server did not start, or a job failed. The message is for people."""


@contextmanager
def running(contender: Contender, place: ServerLocation) -> Iterator[int]:
    """Run a server inside the block, once it is ready; yield its process id. Raises MeasurementFailed."""
    log = Path(place.folder) / f"{contender.name}.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            contender.command(place),
            env=contender.environment(place),
            stdin=subprocess.PIPE,  # its end tells a keeper that the server is no longer needed
            stdout=output,
            stderr=output,
        )
    try:
        _wait_ready(process, place.url + contender.ready, log, contender.ready_s)
        yield process.pid
    finally:
        _end(process)


def observe(job: Job) -> Observed:
    """Have clients run a job in a process of their own. Raises MeasurementFailed."""
    try:
        clients = subprocess.run(
            [sys.executable, "-m", "tests.bench.load_generator"],
            input=msgspec.json.encode(job),
            capture_output=True,
            timeout=job.limit_s + CLIENTS_START_S,
            check=True,
        )
    except subprocess.CalledProcessError as error:
        raise MeasurementFailed(error.stderr.decode().strip().splitlines()[-1]) from error
    except subprocess.TimeoutExpired as error:
        raise MeasurementFailed(f"the clients were not done in {error.timeout} s") from error
    return msgspec.json.decode(clients.stdout, type=Observed)


def _wait_ready(process: subprocess.Popen[bytes], url: str, log: Path, ready_s: float) -> None:
    deadline = time.monotonic() + ready_s
    while not _is_ready(url):
        if process.poll() is not None:
            raise MeasurementFailed(f"the server ended at its start:\n{_last_words(log)}")
        if time.monotonic() > deadline:
            raise MeasurementFailed(f"the server was not ready in {ready_s:.0f} s:\n{_last_words(log)}")
        time.sleep(PROBE_S)  # another process's readiness has no event to wait for


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _last_words(log: Path) -> str:
    return log.read_text(errors="replace")[-LAST_WORDS:]


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(GOODBYE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdin is not None:
        process.stdin.close()
