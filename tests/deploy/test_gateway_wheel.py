"""The gateway alone: its wheel and the client's, with only the libraries that they require; there is no torch."""

from __future__ import annotations

import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import midstream
from tests.deploy.wheels import Installation, built, copied_tree
from tests.server_process import ServerProcess, serving

SCRIPTED = '''
"""The service over a scripted engine."""
import asyncio, os
from midstream_server.app.server import listen
from midstream_server.app.service import composed
from midstream_server.app.settings import Settings
from midstream_server.engine.scripted import ScriptedEngine

async def main():
    settings, engine = Settings.read(os.environ), ScriptedEngine()
    engine.script("Hello from a script.")
    with listen(settings.host, settings.port) as listener:
        async with composed(settings, engine) as service:
            await service.run(listener)

asyncio.run(main())
'''
HEAVY = "import importlib.util as u; print([n for n in {names} if u.find_spec(n)])"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    tree = copied_tree(tmp_path_factory.mktemp("tree"))
    wheels = [
        built(tree / folder, tmp_path_factory.mktemp("wheel"))
        for folder in ("midstream", "distributions/gateway")
    ]
    return Installation(tmp_path_factory.mktemp("gateway") / "venv", wheels, only_required=True)


@pytest.fixture(scope="module")
def scripted(gateway: Installation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    (gateway.packages / "scripted_service.py").write_text(SCRIPTED)
    yield from running(gateway, tmp_path_factory.mktemp("scripted"), ("scripted_service",))


def running(gateway: Installation, folder: Path, command: tuple[str, ...]) -> Iterator[ServerProcess]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONPATH", raising=False)
        patch.chdir(folder)
        with serving(folder, command=command, python=str(gateway.python)) as server:
            yield server


def test_nothing_of_an_engine_is_installed(gateway: Installation, tmp_path: Path) -> None:
    names = (
        "torch",
        "transformers",
        "tokenizers",
        "llguidance",
        "numpy",
        "brotli",
        "uvloop",
        "rich",
        "cryptography",
    )
    assert gateway.run("-c", HEAVY.format(names=names), folder=tmp_path) == "[]\n"


async def test_it_chats_with_a_scripted_engine(scripted: ServerProcess) -> None:
    async with midstream.connect(scripted.url) as client:
        reply = await client.send("Hello.")
        assert "".join([text async for text in reply]) == "Hello from a script."


@pytest.mark.parametrize(("asked", "coding"), [("br, gzip", "gzip"), ("br", None)])
def test_it_has_the_page_without_brotli(scripted: ServerProcess, asked: str, coding: str | None) -> None:
    page = urllib.request.Request(scripted.url, headers={"Accept-Encoding": asked})
    with urllib.request.urlopen(page) as answer:
        assert (answer.status, answer.headers["Content-Encoding"]) == (200, coding)


async def test_the_command_chats_in_front_of_another_server(
    gateway: Installation, scripted: ServerProcess, tmp_path: Path
) -> None:
    command = ("midstream_server", "serve", "--upstream", f"{scripted.url}/v1")
    for server in running(gateway, tmp_path, command):
        async with midstream.connect(server.url) as client:
            reply = await client.send("Hello.")
            assert [text async for text in reply]


@pytest.mark.parametrize("arguments", [(), ("--model", "some/model"), ("--model", "smollm2")])
def test_a_model_is_refused_with_what_to_install(
    gateway: Installation, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    ended = subprocess.run(
        [gateway.bin / "midstream", "serve", "--port", "0", "--data-dir", str(tmp_path), *arguments],
        env=gateway.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
    assert "pip install midstream-server" in ended.stderr


@pytest.mark.parametrize(
    ("extra", "arguments"),
    [
        ("speech", ("--speech", "both")),
        ("crypto", ("--jwks-url", "https://provider.example/keys", "--jwt-audience", "chat")),
    ],
)
def test_a_missing_extra_is_one_of_the_gateway(
    gateway: Installation, extra: str, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    ended = subprocess.run(
        [gateway.bin / "midstream", "serve", "--port", "0", "--data-dir", str(tmp_path), *arguments],
        env=gateway.environment(MIDSTREAM_CONFIG=str(_upstream(tmp_path))),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == 1
    assert f'pip install "midstream-gateway[{extra}]"' in ended.stderr


def _upstream(folder: Path) -> Path:
    file = folder / "midstream.toml"
    file.write_text(
        '[[upstream]]\nname = "one"\nurl = "http://127.0.0.1:1/v1"\nmodel = "m"\ncontext_tokens = 4096\n'
    )
    return file
