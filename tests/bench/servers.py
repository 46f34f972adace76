"""The measured servers: how each is started and ended, and turns of measurements with several. Knows no protocol."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import msgspec

from engine.upstream import vllm_keeper as keeper
from tests.bench.clients import ServerApi
from tests.bench.load_generator import Figures
from tests.bench.report import MeasurementFailed, Report, say
from tests.server_process import free_port, wait_ready

CACHE = Path(__file__).parents[2] / ".cache"
CB_BLOCKS = 192
"""Pages of 256 tokens: room for twice the fullest level. By default continuous batching takes most of the free
memory, fills it at its start, and leaves none to the other processes of the machine."""
CB_BATCH_TOKENS = 2048
"""Tokens of one step: all prompts of the fullest level at once. Its attention mask grows with this and the pages."""
NEEDED_BY_SERVE = ("accelerate", "fastapi", "openai")
SLOTS, SLOT_TOKENS = 32, 2048
"""Slots of llama-server, and the tokens of each: room for a long prompt and its reply."""
GRACE_S = 10.0
GOODBYE_S = 20.0
NAMES_S = 90.0


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
    home: Path | None = None
    """Where `make bench-peers` installs another program; it runs in a keeper that ends all its processes with it."""
    ready_s: float = 120.0
    """Seconds that its start may take."""
    more: dict[str, object] = {}
    """Fields of its chat completions, so that no reply ends early. Ours needs none: no token of random weights ends one."""

    def missing(self) -> list[str]:
        """Return the packages or the folder that it needs and that are not installed."""
        installed = self.home is None or (self.home / ".installed").is_file()
        return [name for name in self.needs if find_spec(name) is None] + [str(self.home)] * (not installed)

    def command(self, place: ServerLocation) -> list[str]:
        """Return the command that starts it."""
        if self.home is None:
            return [sys.executable, "-m", *self.arguments(place)]
        return [sys.executable, "-I", str(keeper.__file__), str(GRACE_S), *self.arguments(place)]

    def environment(self, place: ServerLocation) -> dict[str, str]:
        """Return the whole environment of its process. Another program finds nothing of our Python."""
        hidden = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"} if self.home else set()
        kept = {name: value for name, value in environment().items() if name not in hidden}
        return kept | dict(self.variables(place))


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
            try:
                wait_ready(process, place.url + contender.ready, log, within_s=contender.ready_s)
            except AssertionError as error:
                raise MeasurementFailed(str(error)) from error
            yield place.url
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process by its own id: politely, then by a signal."""
    process.terminate()
    try:
        process.wait(GOODBYE_S)
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


class Entry(msgspec.Struct, frozen=True):
    """A server, and the name of the model that it serves."""

    server: Contender
    model: str

    @property
    def title(self) -> str:
        """The name in progress lines."""
        return f"{self.server.title}, {self.model}"


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one server under one load in one round."""

    server: str
    model: str
    load: str
    round: int
    figures: Figures


def in_turns(
    entries: Sequence[Entry],
    rounds: int,
    report: Report,
    measure: Callable[[Entry, int], Iterator[tuple[str, Figures]]],
) -> list[Run]:
    """Measure one server after the other, every second round in the reverse order: `measure` yields loads and figures.

    A server that failed is reported and gets no further turn; what was measured before counts.
    """
    runs: list[Run] = []
    report.details["runs"] = runs
    failed: set[str] = set()
    for number in range(rounds):
        for entry in entries[:: -1 if number % 2 else 1]:
            if entry.title in failed:
                continue
            say(f"Round {number + 1} of {rounds}: {entry.title}")
            try:
                for load, found in measure(entry, number):
                    run = Run(
                        server=entry.server.name, model=entry.model, load=load, round=number, figures=found
                    )
                    runs.append(run)
                    say(f"  {load}: { ({name: round(value, 1) for name, value in found.items()}) }")
            except MeasurementFailed as failure:
                failed.add(entry.title)
                report.fail(entry.title, failure)
    return runs


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


def _listening(place: ServerLocation) -> list[str]:
    return ["--host", "127.0.0.1", "--port", str(place.port)]


def _serve(place: ServerLocation) -> list[str]:
    where = [*_listening(place), "--device", place.device, "--dtype", place.dtype]
    return ["transformers.cli.transformers", "serve", place.model, *where]


def _serve_batched(place: ServerLocation) -> list[str]:
    limits = ["--cb-num-blocks", str(CB_BLOCKS), "--cb-max-batch-tokens", str(CB_BATCH_TOKENS)]
    return [*_serve(place), "--continuous-batching", *limits]


def vllm(home: Path = CACHE / "vllm") -> Contender:
    """Return vLLM's server, installed in a folder."""

    def arguments(place: ServerLocation) -> list[str]:
        program = [str(home / "bin" / "python"), "-P", "-m", "vllm.entrypoints.cli.main", "serve"]
        options = ["--max-model-len", "4096", "--dtype", place.dtype, "--max-num-seqs", "64"]
        return [*program, place.model, *_listening(place), *options, "--disable-uvicorn-access-log"]

    variables = {
        "PATH": f"{home / 'bin'}:{os.environ.get('PATH', '/usr/bin:/bin')}",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    return Contender(
        name="vllm", title="vLLM", api=ServerApi.CHAT, ready="/health", arguments=arguments, home=home,
        variables=lambda _place: variables, ready_s=300.0, more={"ignore_eos": True},
    )  # fmt: skip


def _llama(place: ServerLocation) -> list[str]:
    program = str(LLAMA_HOME / "build" / "bin" / "llama-server")
    context = ["--model", place.model, "--ctx-size", str(SLOTS * SLOT_TOKENS)]
    return [program, *_listening(place), *context, "-np", str(SLOTS), "-cb", "-fa", "on"]


LLAMA_HOME = CACHE / "llama"
MIDSTREAM = Contender(
    name="midstream", title="Midstream", api=ServerApi.WEBSOCKET, ready="/readyz",
    arguments=lambda _place: ["app", "serve"], variables=_midstream_variables,
)  # fmt: skip
SERVE = Contender(
    name="serve", title="transformers serve", api=ServerApi.SSE, ready="/health", arguments=_serve,
    needs=NEEDED_BY_SERVE,
)  # fmt: skip
SERVE_BATCHED = msgspec.structs.replace(
    SERVE, name="serve-cb", title="serve, continuous batching", arguments=_serve_batched
)
VLLM = vllm()
LLAMA = Contender(
    name="llama-server", title="llama-server", api=ServerApi.CHAT, ready="/health", arguments=_llama,
    home=LLAMA_HOME, more={"ignore_eos": True},
)  # fmt: skip
