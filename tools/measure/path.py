"""Traces one native turn and one cancel over a real socket, in all processes of a real service.

Needs Python 3.12 or newer for the service (`sys.monitoring`).
"""

from __future__ import annotations

import json
import mmap
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

from tests.server_process import serving

TURN, CANCEL, WRITE = 1, 2, 255
PHASES = {TURN: "turn", CANCEL: "cancel"}
TRACER = Path(__file__).parent / "tracer"
_ANSWER_S, _WRITTEN_S = 60.0, 20.0
_AFTER_S = 0.5
"""How long after the last frame work still counts: a history that is written, a count that is updated."""
_DELTAS = 3
"""Pieces of a reply that arrive before its cancel."""
_SHORT, _LONG = "What is 17 + 25?", "Count from 1 to 300."


@dataclass
class TracedPath:
    """What one step of the dialogue ran through."""

    modules: dict[str, list[str]]
    """Files whose functions ran, by process."""
    calls: dict[str, int]
    """Calls from one file into another: `caller -> callee`."""

    @property
    def module_count(self) -> int:
        """Different files, over all processes."""
        return len({file for files in self.modules.values() for file in files})

    @property
    def call_count(self) -> int:
        """All calls that cross a file."""
        return sum(self.calls.values())

    @property
    def edge_count(self) -> int:
        """Different pairs of files between which there was a call."""
        return len(self.calls)


class TraceFailed(Exception):
    """The service did not start, did not answer, or did not write what it recorded."""


def traced(root: Path, python: str, serve: Sequence[str], environ: dict[str, str]) -> dict[str, TracedPath]:
    """Return the paths of a turn and of a cancel.

    `root`: the checkout whose code is traced; `python`: the interpreter of the service; `serve`: its module and arguments;
    `environ`: settings. Raises TraceFailed.
    """
    with tempfile.TemporaryDirectory(prefix="midstream-measure-") as folder:
        phase_file = Path(folder) / "phase"
        phase_file.write_bytes(b"\0")
        with (
            phase_file.open("r+b") as opened,
            mmap.mmap(opened.fileno(), 1) as phase,
            _serving(root, python, serve, environ, phase_file) as url,
        ):
            _converse(url, phase)
            phase[0] = WRITE
            return _paths(_written(Path(folder)))


@contextmanager
def _serving(
    root: Path, python: str, serve: Sequence[str], environ: dict[str, str], phase_file: Path
) -> Iterator[str]:
    settings = environ | {
        "PYTHONPATH": os.pathsep.join((str(TRACER), str(root))),
        "MEASURE_ROOT": str(root),
        "MEASURE_PHASE": str(phase_file),
    }
    try:
        with chdir(root), serving(phase_file.parent, settings, command=serve, python=python) as server:
            yield server.ws_url
    except AssertionError as error:
        raise TraceFailed(str(error)) from error


def _converse(url: str, phase: mmap.mmap) -> None:
    """Have one turn that nobody records, one that is recorded, and one whose cancel is."""
    with connect(url, max_size=None) as connection:
        _send(connection, {"type": "hello", "client_id": "measure"})
        _until(connection, lambda frame: frame["type"] == "ready")
        _turn(connection, "warm", _SHORT)  # also what only a conversation's first turn does, such as a title
        time.sleep(5.0)
        with _recording(phase, TURN):
            _turn(connection, "traced", _SHORT)
        _send(connection, {"type": "send", "client_msg_id": "long", "conversation_id": "c", "content": _LONG})
        deltas = 0
        while deltas < _DELTAS:
            deltas += _until(connection, lambda _: True)["type"] == "delta"
        with _recording(phase, CANCEL):
            _send(connection, {"type": "cancel", "conversation_id": "c"})
            _until(connection, lambda frame: frame["type"] == "done")


def _turn(connection: ClientConnection, message_id: str, content: str) -> None:
    _send(
        connection, {"type": "send", "client_msg_id": message_id, "conversation_id": "c", "content": content}
    )
    _until(connection, lambda frame: frame["type"] == "done")


@contextmanager
def _recording(phase: mmap.mmap, number: int) -> Iterator[None]:
    phase[0] = number
    yield
    time.sleep(_AFTER_S)
    phase[0] = 0


def _send(connection: ClientConnection, frame: dict[str, Any]) -> None:
    connection.send(json.dumps(frame))


def _until(connection: ClientConnection, is_last: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    while True:
        try:
            frame: dict[str, Any] = json.loads(connection.recv(timeout=_ANSWER_S))
        except TimeoutError as error:
            raise TraceFailed("The service does not answer.") from error
        if frame["type"] == "error":
            raise TraceFailed(f"The service answered {frame}.")
        if is_last(frame):
            return frame


def _written(folder: Path) -> list[dict[str, Any]]:
    """Wait until each process has written; return what they saw."""
    deadline = time.monotonic() + _WRITTEN_S
    before = -1
    while True:
        time.sleep(1.0)
        documents = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
        if len(documents) == before and documents:
            return documents
        if time.monotonic() > deadline:
            raise TraceFailed("No process wrote what it recorded; is the interpreter older than Python 3.12?")
        before = len(documents)


def _paths(documents: list[dict[str, Any]]) -> dict[str, TracedPath]:
    paths = {}
    for number, name in PHASES.items():
        modules: dict[str, list[str]] = {}
        calls: Counter[str] = Counter()
        for document in documents:
            if seen := document["phases"].get(str(number)):
                modules[f"{document['pid']} {document['command']}"] = seen["modules"]
                calls.update(seen["calls"])
        if not modules:
            raise TraceFailed(f"No product function ran in the phase {name}.")
        paths[name] = TracedPath(modules, dict(sorted(calls.items())))
    return paths
