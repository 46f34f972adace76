"""The servers as commands: ours, vLLM's and llama.cpp's. Knows how each is started, not its protocol."""

from __future__ import annotations

import os
import subprocess
import sys
from enum import StrEnum
from pathlib import Path

from engine.upstream import vllm_keeper as keeper
from tests.bench.clients import ServerApi
from tests.bench.engine.load import TEMPERATURE, TOP_P
from tests.bench.report import MeasurementFailed
from tests.bench.servers import MIDSTREAM, Contender, ServerLocation, environment

CACHE = Path(__file__).parents[3] / ".cache"
SAMPLED: dict[str, object] = {"temperature": TEMPERATURE, "top_p": TOP_P}
ENDLESS: dict[str, object] = {"ignore_eos": True}
"""A field of vLLM and llama-server. Ours needs none: no token of these models ends a reply."""
SLOTS = 32
SLOT_TOKENS = 2048
"""Tokens of a slot: room for a long prompt and its reply."""
VLLM_START_S = 300.0
GRACE_S = 10.0
PREPARING_S = 180.0


class PeerName(StrEnum):
    """Programs, as the command line and the files name them, in the order of their turns."""

    MIDSTREAM = "midstream"
    VLLM = "vllm"
    LLAMA = "llama-server"


TITLES = {PeerName.MIDSTREAM: "Midstream", PeerName.VLLM: "vLLM", PeerName.LLAMA: "llama-server"}
HOMES = {PeerName.VLLM: CACHE / "vllm", PeerName.LLAMA: CACHE / "llama"}
"""Where `make bench-peers` installs them."""


def is_installed(who: PeerName) -> bool:
    """Return whether a program is there, as ours is."""
    return who is PeerName.MIDSTREAM or (HOMES[who] / ".installed").is_file()


class PeerServer(Contender, frozen=True, kw_only=True):
    """A server of another program, in a keeper that ends all its processes with it."""

    def command(self, place: ServerLocation) -> list[str]:
        """See `Contender`; its arguments are the whole command."""
        return [sys.executable, "-I", str(keeper.__file__), str(GRACE_S), *self.arguments(place)]

    def environment(self, place: ServerLocation) -> dict[str, str]:
        """See `Contender`; it finds nothing of our Python."""
        return _foreign() | dict(self.variables(place))


def served(who: PeerName, home: Path | None = None) -> tuple[Contender, dict[str, object]]:
    """Return a server, and the fields of its requests. `home`: where the program is, if not where make puts it."""
    if who is PeerName.MIDSTREAM:
        return MIDSTREAM, SAMPLED
    home = home or HOMES[who]
    return (_vllm(home) if who is PeerName.VLLM else _llama(home)), SAMPLED | ENDLESS


def readable(who: PeerName, folder: Path) -> Path:
    """Return a model in the form that a program reads, made on the first call. Raises MeasurementFailed."""
    if who is not PeerName.LLAMA:
        return folder
    file = folder.with_suffix(".gguf")
    if not file.exists():
        command = [HOMES[who] / "bin" / "python", Path(__file__).with_name("write_gguf.py"), folder, file]
        try:
            subprocess.run(command, env=_foreign(), timeout=PREPARING_S, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            raise MeasurementFailed(f"its model was not made: {error}") from error
    return file


def _foreign() -> dict[str, str]:
    dropped = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    return {name: value for name, value in environment().items() if name not in dropped}


def _vllm(home: Path) -> Contender:
    def arguments(place: ServerLocation) -> list[str]:
        options = ["--max-model-len", "4096", "--dtype", place.dtype, "--max-num-seqs", "64"]
        serve = [str(home / "bin" / "python"), "-P", "-m", "vllm.entrypoints.cli.main", "serve", place.model]
        return [*serve, *_listening(place), *options, "--disable-uvicorn-access-log"]

    variables = {
        "PATH": f"{home / 'bin'}:{os.environ.get('PATH', '/usr/bin:/bin')}",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    return PeerServer(
        name=PeerName.VLLM, title=TITLES[PeerName.VLLM], api=ServerApi.CHAT, ready="/health", arguments=arguments,
        variables=lambda _place: variables, ready_s=VLLM_START_S,
    )  # fmt: skip


def _llama(home: Path) -> Contender:
    def arguments(place: ServerLocation) -> list[str]:
        program = home / "build" / "bin" / "llama-server"
        context = ["--model", place.model, "--ctx-size", str(SLOTS * SLOT_TOKENS)]
        return [str(program), *_listening(place), *context, "-np", str(SLOTS), "-cb", "-fa", "on"]

    title = TITLES[PeerName.LLAMA]
    return PeerServer(
        name=PeerName.LLAMA, title=title, api=ServerApi.CHAT, ready="/health", arguments=arguments
    )


def _listening(place: ServerLocation) -> list[str]:
    return ["--host", "127.0.0.1", "--port", str(place.port)]
