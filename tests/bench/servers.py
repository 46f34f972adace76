"""The measured servers, as commands. Knows how each is started, not its protocol."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

import msgspec

from tests.bench.records import ServerApi

CB_BLOCKS = 192
"""Pages of 256 tokens: room for twice the fullest level. By default continuous batching takes most of the free
memory, fills it at its start, and leaves none to the other processes of the machine."""

CB_BATCH_TOKENS = 2048
"""Tokens of one step: all prompts of the fullest level at once. Its attention mask grows with this and the pages."""

NEEDED_BY_SERVE = ("accelerate", "fastapi", "openai")


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
        kept = {name: value for name, value in os.environ.items() if not name.startswith("MIDSTREAM_")}
        return {**kept, "HF_HUB_OFFLINE": "1", **self.variables(place)}


def _midstream_variables(place: ServerLocation) -> Mapping[str, str]:
    return {
        "MIDSTREAM_PORT": str(place.port),
        "MIDSTREAM_MODEL": place.model,
        "MIDSTREAM_DEVICE": place.device,
        "MIDSTREAM_DTYPE": place.dtype,
        "MIDSTREAM_DATA_DIR": str(Path(place.folder) / "data"),
        "MIDSTREAM_DRAIN_S": "1",
        "MIDSTREAM_LOG_FORMAT": "json",
    }


def _serve(place: ServerLocation) -> list[str]:
    arguments = ["transformers.cli.transformers", "serve", place.model]
    options = {"host": "127.0.0.1", "port": place.port, "device": place.device, "dtype": place.dtype}
    return arguments + [part for name, value in options.items() for part in (f"--{name}", str(value))]


def _serve_batched(place: ServerLocation) -> list[str]:
    limits = ["--cb-num-blocks", str(CB_BLOCKS), "--cb-max-batch-tokens", str(CB_BATCH_TOKENS)]
    return [*_serve(place), "--continuous-batching", *limits]


def _threads(place: ServerLocation) -> list[str]:
    return ["tests.bench.thread_server", str(place.port), place.model, place.device, place.dtype]


CONTENDERS = (
    Contender(
        name="midstream",
        title="Midstream",
        api=ServerApi.WEBSOCKET,
        ready="/readyz",
        arguments=lambda _place: ["app", "serve"],
        variables=_midstream_variables,
    ),
    Contender(
        name="serve",
        title="transformers serve",
        api=ServerApi.SSE,
        ready="/health",
        arguments=_serve,
        needs=NEEDED_BY_SERVE,
    ),
    Contender(
        name="serve-cb",
        title="serve, continuous batching",
        api=ServerApi.SSE,
        ready="/health",
        arguments=_serve_batched,
        needs=NEEDED_BY_SERVE,
    ),
    Contender(
        name="threads",
        title="a thread per request",
        api=ServerApi.WEBSOCKET,
        ready="/readyz",
        arguments=_threads,
    ),
)
"""The servers in the order of their turns; the others are compared with the first."""
