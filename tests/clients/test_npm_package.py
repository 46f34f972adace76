"""The page's client as an npm package: packed, installed by its name, typed, and talking to a real server."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import tomllib
from functools import partial
from pathlib import Path

import pytest

from engine.scripted import Call, ScriptedEngine, Thought
from tests.app.in_process_service import serving
from tests.clients.environments import HERE, NotInstallable, node_modules
from tests.server_process import ServerProcess

ROOT = HERE.parent.parent
PACKAGE = ROOT / "app" / "page" / "client"
STRICT = ["--noEmit", "--strict", "--target", "es2023", "--lib", "es2024,dom", "--moduleDetection", "force"]

pytestmark = [pytest.mark.clients, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def tools() -> Path:
    """A folder of modules that has `ws` and `typescript`."""
    try:
        return node_modules(print)
    except NotInstallable as why:
        pytest.skip(f"NOT TESTED: {why}")


@pytest.fixture(scope="module")
def project(tools: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Somebody's project, which has the package from its file."""
    folder = tmp_path_factory.mktemp("project")
    done("npm", "pack", str(PACKAGE), "--pack-destination", str(folder), at=folder)
    (packed,) = folder.glob("midstream-client-*.tgz")
    (folder / "package.json").write_text('{"private": true, "type": "module"}')
    done("npm", "install", "--offline", "--no-audit", "--no-fund", str(packed), at=folder)
    (folder / "node_modules" / "ws").symlink_to(tools / "ws")
    return folder


def done(*command: str, at: Path, **environ: str) -> str:
    """What a command said; it has to end well."""
    ran = subprocess.run(
        command, cwd=at, env=os.environ | environ, capture_output=True, text=True, timeout=150, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_the_example_of_its_readme_stops_a_reply(project: Path, server: ServerProcess) -> None:
    example = re.search(r"```js\n(.*?)```", (PACKAGE / "README.md").read_text(), re.DOTALL)
    assert example
    (project / "example.js").write_text(example[1])
    text, reason = done("node", "example.js", at=project, MIDSTREAM_URL=server.ws_url).splitlines()
    assert re.match(r"1, 2, 3, 4, 5,", text)
    assert (reason, " 300" in text) == ("cancelled", False)


async def test_the_tools_of_its_readme_are_called(project: Path, tmp_path: Path) -> None:
    engine = ScriptedEngine()
    engine.script([Thought("Hm."), "I look.", Call("weather", '{"city": "Bern"}')])
    engine.script("It rains there.")
    _, example, _ = re.findall(r"```js\n(.*?)```", (PACKAGE / "README.md").read_text(), re.DOTALL)
    (project / "tools.js").write_text(example)
    async with serving(tmp_path, engine) as running:
        run = partial(done, "node", "tools.js", at=project, MIDSTREAM_URL=running.ws_url)
        assert await asyncio.to_thread(run) == "It rains there.\n"
    assert engine.requests[1].messages[-1].content == "Rain in Bern."


def test_it_waits_for_a_server_that_is_not_there_yet(project: Path) -> None:
    """The sockets of `ws` tell failures as errors too, which end a process that does not listen for them."""
    shutil.copy(HERE / "npm_late_server.mjs", project)
    assert done("node", "npm_late_server.mjs", at=project).split() == ["left", "1006", "connected"]


def test_its_types_hold_for_a_strict_reader(project: Path, tools: Path) -> None:
    shutil.copy(HERE / "npm_example.ts", project)
    options = [*STRICT, "--module", "nodenext", "--types", ""]
    done(str(tools / ".bin" / "tsc"), *options, "npm_example.ts", at=project)


def test_the_types_are_those_of_the_sources(tools: Path, tmp_path: Path) -> None:
    """The sources are checked on the way: what they take frames for is what the server sends."""
    project = str(ROOT / "page" / "declare.json")
    done(str(tools / ".bin" / "tsc"), "--project", project, "--outDir", str(tmp_path), at=ROOT)
    made = {file.name: file.read_text() for file in tmp_path.glob("*.d.ts")}
    kept = {file.name: file.read_text() for file in (PACKAGE / "types").glob("*.d.ts")}
    assert kept.pop("frames.d.ts") == 'export * from "../frames.js";\n'
    assert made == kept, "run `npx tsc --project declare.json` in page/ and commit what it writes"


def test_it_needs_nothing_else(project: Path) -> None:
    installed = {path.name for path in (project / "node_modules").iterdir()}
    assert installed - {".package-lock.json", "ws"} == {"midstream-client"}


def test_its_version_and_licence_are_the_repositorys(project: Path) -> None:
    installed = project / "node_modules" / "midstream-client"
    of_the_service = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert json.loads((installed / "package.json").read_text())["version"] == of_the_service
    assert (installed / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
