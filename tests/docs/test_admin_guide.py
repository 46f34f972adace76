"""The guide to keys and the admin API, whose commands are run as they stand there."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from shutil import which

import pytest
from click.testing import CliRunner

from app.cli import main
from engine.scripted import ScriptedEngine
from tests.app.in_process_service import serving
from tests.app.test_replicas import begin
from tests.docs.documents import ROOT, run_program, snippets
from tests.jwt_signing import SECRET, token

GUIDE = ROOT / "docs" / "admin.md"


def make_files(make_keys: str, make_admin: str) -> None:
    """Create the keys and the limits in this folder, as the guide says."""
    for line in (*make_keys.splitlines(), *make_admin.splitlines()):
        command, _, file = line.partition(" > ")
        done = CliRunner().invoke(main, shlex.split(command)[1:])
        assert done.exit_code == 0, done.output
        if file:
            Path(file).write_text(done.stdout)
    (limits,) = snippets(GUIDE, "toml")
    Path("midstream.toml").write_text(limits)


@pytest.mark.skipif(which("curl") is None, reason="needs curl")
async def test_the_guides_commands_do_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_keys, make_admin, commands = snippets(GUIDE, "sh")
    make_files(make_keys, make_admin)
    settings = {"api_keys": "@keys", "jwt_secret": SECRET, "config": "midstream.toml"}
    async with (
        serving(tmp_path, ScriptedEngine(by_hand=True), **settings) as running,
        running.socket({"token": token(sub="ann")}) as socket,
    ):
        assert socket.ready["limits"]["messages_per_minute"] == 30
        turn_id = (await begin(socket, running))["turn_id"]
        names = {"turn_3f9a": turn_id, "conn_3f9a": socket.ready["connection_id"]}
        for name, real in {**names, "http://127.0.0.1:8000": running.url}.items():
            assert name in commands
            commands = commands.replace(name, real)
        folder = shlex.quote(os.fspath(tmp_path))
        status, shown = await run_program("bash", "-ec", f"cd {folder}\n{commands}")
        assert status == 0, shown
        assert (await socket.next("done"))["cancel"]["cause"] == "operator"
        assert (await socket.closed())[0] == 4403
        assert json.loads((tmp_path / "ann.jsonl").read_text().splitlines()[-1])["type"] == "end"
