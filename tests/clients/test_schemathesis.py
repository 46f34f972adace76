"""The HTTP endpoints answer as `/openapi.json` says, whatever is asked of them: with the demo model, with every endpoint open, and by an operator's key."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import pytest

from tests.attack.embedding_server import vectors
from tests.chaos import gateway
from tests.chaos.server_log import unhandled
from tests.clients.conftest import Runner
from tests.server_process import ServerProcess, serving

pytestmark = [pytest.mark.clients, pytest.mark.timeout(1800)]
PATIENCE_S = 1500
ALL, OPERATORS, WITHOUT_SOUND = ".*", "^/v1/admin", "^(?!/v1/audio/)"
PHASES = "examples,coverage,fuzzing"
QUICK_SCRIPT = gateway.Script(words=3)
SPEECH = {
    "MIDSTREAM_SPEECH": "both",
    "MIDSTREAM_SPEECH_RECOGNIZER": str(Path(__file__).parent.parent / "e2e" / "demo.jsgf"),
}


def test_what_is_answered_is_what_is_described(run_script: Runner, server: ServerProcess) -> None:
    """100 examples of each operation, beside what the coverage phase makes. Sound is off: its paths are unserved."""
    _run(run_script, server, examples=100, paths=WITHOUT_SOUND)


def test_with_every_door_open_too(run_script: Runner, tmp_path: Path) -> None:
    """It hears, speaks, makes vectors and has a tool; what a request follows from another one is tried, too."""
    with vectors() as upstreams:
        file = tmp_path / "upstreams.toml"
        file.write_text(upstreams)
        environ = SPEECH | {
            "MIDSTREAM_CONFIG": str(file),
            "MIDSTREAM_TOOLS": "tests.chaos.scripted_tools:note",
        }
        with _scripted(tmp_path, environ | gateway.UNHURRIED) as server:
            _run(run_script, server, examples=50, phases=f"{PHASES},stateful")


def test_and_by_an_operators_key(run_script: Runner, tmp_path: Path) -> None:
    key = f"msk_{secrets.token_urlsafe(32)}"
    keys = {"MIDSTREAM_API_KEYS": f"ops:{sha256(key.encode()).hexdigest()}:admin"}
    with _scripted(tmp_path, keys | gateway.UNHURRIED) as server:
        _run(run_script, server, examples=100, paths=OPERATORS, shown=key)


@contextmanager
def _scripted(folder: Path, environ: dict[str, str]) -> Iterator[ServerProcess]:
    """A service over the scripted engine; its log says of no request that it failed."""
    with serving(folder, environ, command=gateway.command(QUICK_SCRIPT)) as server:
        yield server
    assert unhandled(server.log) == []


def _run(
    run_script: Runner,
    server: ServerProcess,
    *,
    examples: int,
    phases: str = PHASES,
    paths: str = ALL,
    shown: str = "",
) -> None:
    requested = {"PHASES": phases, "EXAMPLES": str(examples), "PATHS": paths, "SHOWN": shown}
    done = run_script("schemathesis_endpoints.py", server.url, patience_s=PATIENCE_S, **requested)["run"]
    assert done["status"] == 0, done["report"]
