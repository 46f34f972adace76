"""The command as an operator meets it: real processes, exit codes, and a line instead of a traceback."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.cli import USUAL
from app.settings import option_kinds
from engine.loading import preflight
from tests.chaos import gateway
from tests.server_process import ServerProcess, serving

UPSTREAM = '[[upstream]]\nname = "one"\nurl = "http://127.0.0.1:1/v1"\nmodel = "m"\ncontext_tokens = 4096\n'


IMPATIENT = (
    "import runpy; from sessions.store import server_config; server_config.PATIENCE_S = 1.5; "
    "runpy.run_module('app', run_name='__main__', alter_sys=True)"
)
"""The command, which waits for its store for a second instead of a minute."""


def midstream(
    folder: Path, *arguments: str, program: tuple[str, ...] = ("-m", "app"), **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MIDSTREAM_")}
    environ |= {"MIDSTREAM_PORT": "0", "MIDSTREAM_DATA_DIR": str(folder), "HF_HUB_OFFLINE": "1"} | variables
    return subprocess.run(
        [sys.executable, *program, *arguments],
        env=environ,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


@pytest.fixture
def scripted(tmp_path: Path) -> Iterator[ServerProcess]:
    """A running service over a scripted engine, which starts in a second."""
    with serving(tmp_path, command=gateway.command(gateway.Script())) as server:
        yield server


def complaint(ended: subprocess.CompletedProcess[str]) -> str:
    """Return a failed start's message to the operator: one line after the progress."""
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    return ended.stderr.splitlines()[-1]


def test_help_names_the_commands_and_fifteen_options_and_help_all_every_one(tmp_path: Path) -> None:
    """In groups, with types and defaults."""
    commands = midstream(tmp_path, "--help").stdout.split()
    assert {"serve", "chat", "keys", "doctor"} <= set(commands)
    usual, every = (midstream(tmp_path, "serve", option).stdout for option in ("-h", "--help-all"))
    assert "[MIDSTREAM_MODEL]" in usual
    for output, names in ((usual, USUAL), (every, option_kinds())):
        found = re.findall(r"^  (?:-h, )?--([a-z-]+)", output, re.MULTILINE)
        assert {name.replace("-", "_") for name in found} == {*names, "help", "help_all"}
    assert len(USUAL) == 15
    output = " ".join(every.split())
    address, _, rest = output.partition("Address and network:")[2].partition(" Model: ")
    assert "--port INTEGER Port to listen on. 0: any free port. Default: 8000." in address
    assert "--dtype [auto|bfloat16|float16|float32]" in rest
    assert "--sharing / --no-sharing" in rest
    assert "--drain-timeout DURATION" in rest
    assert "Default: 10s." in rest
    assert output.endswith("-h, --help Show this message and exit.")


def test_a_port_in_use_stops_the_start(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"127.0.0.1:{port}" in complaint(midstream(tmp_path, "serve", "--port", port))


def test_a_data_folder_in_use_stops_the_start(scripted: ServerProcess, tmp_path: Path) -> None:
    """An upstream makes the replies here: it is up sooner than a model, and does not use the folder either."""
    (tmp_path / "upstreams.toml").write_text(UPSTREAM)
    ended = midstream(scripted.log.parent / "data", "serve", "--config", str(tmp_path / "upstreams.toml"))
    assert "Another midstream uses the data folder" in complaint(ended)


@pytest.mark.parametrize("command", ["serve", "restored"])
def test_a_store_that_is_none_stops_the_start(command: str, tmp_path: Path) -> None:
    assert "MIDSTREAM_REDIS_URL" in complaint(
        midstream(tmp_path, command, "--redis-url", "bogus://somewhere")
    )


def test_a_store_that_does_not_come_ends_the_preparation(tmp_path: Path) -> None:
    ended = midstream(tmp_path, "restored", "--redis-url", "redis://127.0.0.1:1", program=("-c", IMPATIENT))
    assert "waiting for the store" in ended.stdout + ended.stderr
    assert "store" in complaint(ended)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--model", "/no/such/folder"), "The folder '/no/such/folder' does not exist."),
        (("--quantize", "int4"), "--quantize int4 is not offered"),
        (("--device", "cuda", "--quantize", "int8"), "not offered on cuda"),
        (("--device", "cpu,cuda:7"), "has no NVIDIA driver"),
    ],
)
def test_a_bad_choice_is_told_before_anything_is_started(
    options: tuple[str, ...], expected: str, tmp_path: Path
) -> None:
    """Neither the store nor the engine's process, which takes seconds to import torch."""
    if "cuda:7" in options[-1] and preflight._may_have_cuda():
        pytest.skip("there may be a CUDA device")
    ended = midstream(tmp_path, "serve", *options)
    assert expected in complaint(ended)
    assert len(ended.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_ends_the_service_well(scripted: ServerProcess) -> None:
    """So does SIGTERM, even in the middle of a model's reply: tests/e2e/test_crashes.py."""
    assert scripted.end(signal.SIGINT) == 0
    log = scripted.log.read_bytes()
    assert b"Traceback" not in log
    assert b"stopping; a second Ctrl-C" in log
    assert b'"event":"stopped"' in log
