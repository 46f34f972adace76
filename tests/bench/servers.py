"""The measured servers: how each is started and ended, not its protocol."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import msgspec

from tests.bench.clients import ServerApi
from tests.bench.report import MeasurementFailed
from tests.server_process import free_port

CB_BLOCKS = 192
"""Pages of 256 tokens: room for twice the fullest level. By default continuous batching takes most of the free
memory, fills it at its start, and leaves none to the other processes of the machine."""
CB_BATCH_TOKENS = 2048
"""Tokens of one step: all prompts of the fullest level at once. Its attention mask grows with this and the pages."""
NEEDED_BY_SERVE = ("accelerate", "fastapi", "openai")
GOODBYE_S = 20.0
PROBE_S = 0.05
NAMES_S = 90.0
LAST_WORDS = 2000


class ServerLocation(msgspec.Struct, frozen=True, kw_only=True):
    """Where a server runs and what it serves. `model` and `folder` are paths; `folder` is the server's own."""

    port: int
    folder: str
    model: str
    device: str
    dtype: str

    @property
    def url(self) -> str:
        """The server's http address."""
        return f"http://127.0.0.1:{self.port}"


class Contender(msgspec.Struct, frozen=True, kw_only=True):
    """A server: `name` for the command line and the files, `title` for people, `ready` the path of readiness."""

    name: str
    title: str
    api: ServerApi
    ready: str
    arguments: Callable[[ServerLocation], list[str]]
    variables: Callable[[ServerLocation], Mapping[str, str]] = lambda _place: {}
    needs: tuple[str, ...] = ()
    ready_s: float = 120.0
    """Seconds that its start may take."""

    def missing(self) -> list[str]:
        """Return the packages that it needs and that are not installed."""
        return [name for name in self.needs if find_spec(name) is None]

    def command(self, place: ServerLocation) -> list[str]:
        """Return the command that starts it."""
        return [sys.executable, "-m", *self.arguments(place)]

    def environment(self, place: ServerLocation) -> dict[str, str]:
        """Return the whole environment of its process: the same for all servers except for their own settings."""
        return environment() | dict(self.variables(place))


def environment() -> dict[str, str]:
    """Return the environment of every measured process: nothing of ours, and no network."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MIDSTREAM_")}
    return {**kept, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}


@contextmanager
def running(contender: Contender, *, model: str, device: str, dtype: str) -> Iterator[str]:
    """Run a server inside the block, once it is ready; yield its address. Raises MeasurementFailed."""
    with tempfile.TemporaryDirectory(prefix="midstream-bench-") as folder:
        place = ServerLocation(port=free_port(), folder=folder, model=model, device=device, dtype=dtype)
        log = Path(folder) / f"{contender.name}.log"
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
            yield place.url
        finally:
            end(process)


def _wait_ready(process: subprocess.Popen[bytes], url: str, log: Path, ready_s: float) -> None:
    deadline = time.monotonic() + ready_s
    while not _is_ready(url):
        if process.poll() is not None:
            raise MeasurementFailed(
                f"the server ended at its start:\n{log.read_text(errors='replace')[-LAST_WORDS:]}"
            )
        if time.monotonic() > deadline:
            last = log.read_text(errors="replace")[-LAST_WORDS:]
            raise MeasurementFailed(f"the server was not ready in {ready_s:.0f} s:\n{last}")
        time.sleep(PROBE_S)  # another process's readiness has no event to wait for


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def end(process: subprocess.Popen[bytes], *, within_s: float = GOODBYE_S) -> None:
    """End a process by its own id: politely, then by a signal."""
    process.terminate()
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdin is not None:
        process.stdin.close()


def model_of(url: str) -> str:
    """Return a server's name for its model. Raises MeasurementFailed."""
    try:
        with urllib.request.urlopen(f"{url}/v1/models", timeout=NAMES_S) as answer:
            return str(msgspec.json.decode(answer.read())["data"][0]["id"])
    except OSError as error:
        raise MeasurementFailed(f"the server does not name its model: {error}") from error


def _midstream_variables(place: ServerLocation) -> Mapping[str, str]:
    return {
        "MIDSTREAM_PORT": str(place.port),
        "MIDSTREAM_MODEL": place.model,
        "MIDSTREAM_DEVICE": place.device,
        "MIDSTREAM_DTYPE": place.dtype,
        "MIDSTREAM_DATA_DIR": str(Path(place.folder) / "data"),
        "MIDSTREAM_DRAIN_TIMEOUT": "1",
        "MIDSTREAM_LOG_FORMAT": "json",
    }


def _serve(place: ServerLocation) -> list[str]:
    options = {"host": "127.0.0.1", "port": place.port, "device": place.device, "dtype": place.dtype}
    flags = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    return ["transformers.cli.transformers", "serve", place.model, *flags]


def _serve_batched(place: ServerLocation) -> list[str]:
    limits = ["--cb-num-blocks", str(CB_BLOCKS), "--cb-max-batch-tokens", str(CB_BATCH_TOKENS)]
    return [*_serve(place), "--continuous-batching", *limits]


def _threads(place: ServerLocation) -> list[str]:
    return ["tests.bench.thread_server", str(place.port), place.model, place.device, place.dtype]


MIDSTREAM = Contender(
    name="midstream", title="Midstream", api=ServerApi.WEBSOCKET, ready="/readyz",
    arguments=lambda _place: ["app", "serve"], variables=_midstream_variables,
)  # fmt: skip
CONTENDERS = (
    MIDSTREAM,
    Contender(
        name="serve", title="transformers serve", api=ServerApi.SSE, ready="/health",
        arguments=_serve, needs=NEEDED_BY_SERVE,
    ),
    Contender(
        name="serve-cb", title="serve, continuous batching", api=ServerApi.SSE, ready="/health",
        arguments=_serve_batched, needs=NEEDED_BY_SERVE,
    ),
    Contender(
        name="threads", title="a thread per request", api=ServerApi.WEBSOCKET, ready="/readyz", arguments=_threads
    ),
)  # fmt: skip
"""The servers in the order of their turns; the others are compared with the first."""
