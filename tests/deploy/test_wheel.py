"""What is installed: wheels of the client, of the gateway with every file that its packages read, and of what runs models.

All are installed beside a stranger's project that has a package `app`, in an environment without the checkout.
"""

from __future__ import annotations

import ast
import asyncio
import json
import subprocess
import sysconfig
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import midstream
from engine.model.cpu import kernels as cpu_kernels
from tests.deploy.wheel_suite import copied_suite
from tests.deploy.wheels import (
    CLIENT,
    GATEWAY,
    MODELS,
    PACKAGES,
    PROJECT,
    ROOT,
    Installation,
    built,
    copied_tree,
    metadata_of,
    names_in,
    requirements_of,
)
from tests.server_process import ServerProcess, serving

HOME = "midstream_server"
LAYERS = sorted({*PACKAGES} - {HOME})
CARD = {"starlette", "websockets", "uvicorn", "torch", "transformers", "orjson", "redis"}
PYPROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "shop"
version = "1.0"

[project.entry-points."midstream.tools"]
stock = "app.stock:stock"

[tool.setuptools]
packages = ["app", "engine"]
"""
STOCK = '''
"""How much is there."""

from engine import PIECES
from midstream_server.tools import ToolFailed


def stock(item: str) -> int:
    """Say how many pieces of an item are there."""
    if item not in PIECES:
        raise ToolFailed(f"There is no {item}.")
    return PIECES[item]
'''
WHOSE = """
import app, app.stock, engine, midstream, midstream_server.app, sys
print(app.__doc__, app.stock.stock("tea"), midstream_server.app.__name__, "torch" in sys.modules)
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copied_tree(tmp_path_factory.mktemp("tree"))


@pytest.fixture(scope="module")
def wheel(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tree, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def gateway_wheel(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tree / "distributions" / "gateway", tmp_path_factory.mktemp("gateway"))


@pytest.fixture(scope="module")
def client_wheel(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tree / "midstream", tmp_path_factory.mktemp("client"))


@pytest.fixture(scope="module")
def installation(
    wheel: Path, gateway_wheel: Path, client_wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> Installation:
    """All three, and a project that has packages `app` and `engine` of its own."""
    shop = tmp_path_factory.mktemp("shop")
    (shop / "pyproject.toml").write_text(PYPROJECT)
    for package, source in (("app", '"""The shop\'s own."""'), ("engine", 'PIECES = {"tea": 12}')):
        (shop / package).mkdir()
        (shop / package / "__init__.py").write_text(source)
    (shop / "app" / "stock.py").write_text(STOCK)
    theirs = built(shop, tmp_path_factory.mktemp("theirs"))
    wheels = [wheel, gateway_wheel, client_wheel, theirs]
    return Installation(tmp_path_factory.mktemp("installation") / "venv", wheels)


@pytest.fixture(scope="module")
def server(installation: Installation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The service of the wheel, in a folder without any sources."""
    folder = tmp_path_factory.mktemp("server")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONPATH", raising=False)
        patch.chdir(folder)
        with serving(
            folder, command=("midstream_server", "serve"), python=str(installation.python)
        ) as running:
            yield running


def at_the_top(wheel: Path) -> set[str]:
    return {name.partition("/")[0] for name in names_in(wheel) if ".dist-info/" not in name}


def required(wheel: Path) -> set[str]:
    """What a wheel needs without its extras."""
    return {one.name for one in requirements_of(wheel)}


def test_the_gateway_s_wheel_holds_every_file_of_every_package(tree: Path, gateway_wheel: Path) -> None:
    files = {
        str(path.relative_to(tree) if package == HOME else HOME / path.relative_to(tree))
        for package in PACKAGES
        for path in (tree / package).rglob("*")
        if path.is_file() and path.suffix not in {".c", ".h"}
    }
    assert files - names_in(gateway_wheel) == set()


def test_the_whole_adds_the_kernels_and_the_models(tree: Path, wheel: Path, gateway_wheel: Path) -> None:
    files = {
        f"{HOME}/{path.relative_to(tree)}"
        for model in MODELS
        for path in (tree / model).rglob("*")
        if path.is_file()
    }
    added = {name for name in names_in(wheel) if ".dist-info/" not in name}
    assert files <= added
    assert {name for name in added - files if not name.startswith(f"{HOME}/engine/_cpu_kernels")} == set()
    assert added & names_in(gateway_wheel) == set()


def test_each_wheel_takes_one_name_in_site_packages(
    wheel: Path, gateway_wheel: Path, client_wheel: Path
) -> None:
    assert at_the_top(wheel) == at_the_top(gateway_wheel) == {HOME}
    assert at_the_top(client_wheel) == {"midstream"}


def test_the_client_needs_three_libraries(client_wheel: Path) -> None:
    assert required(client_wheel) == {"click", "orjson", "websockets"}


def test_the_whole_names_each_package_of_the_card_and_the_gateway_no_engine(
    wheel: Path, gateway_wheel: Path
) -> None:
    assert required(wheel) >= CARD | {"midstream-gateway"}
    assert required(gateway_wheel) & {"torch", "transformers", "llguidance", "numpy", "gguf"} == set()
    assert gateway_wheel.name.endswith("-py3-none-any.whl")


def test_no_module_of_the_gateway_s_wheel_imports_what_lies_at_the_top_of_the_checkout(
    gateway_wheel: Path,
) -> None:
    """Imports are rewritten, at the head of a module and inside of functions; no name of another module is a text."""
    strays: list[str] = []
    with zipfile.ZipFile(gateway_wheel) as archive:
        names = set(archive.namelist())
        for name in filter(lambda name: name.endswith(".py"), names):
            for node in ast.walk(ast.parse(archive.read(name))):
                strays += [
                    f"{name}:{node.lineno}" for module in imported(node) if not is_there(module, names)
                ]
                if isinstance(node, ast.Constant) and is_module(node.value, names):
                    strays.append(f"{name}:{node.lineno}: {node.value}")
    assert strays == []


def imported(node: ast.AST) -> list[str]:
    match node:
        case ast.Import():
            return [alias.name for alias in node.names]
        case ast.ImportFrom():
            return [str(node.module)]
        case _:
            return []


def is_there(module: str, names: set[str]) -> bool:
    """Whether a module is somebody else's, or in the wheel."""
    top, path = module.partition(".")[0], module.replace(".", "/")
    if top == HOME:
        return bool({f"{path}.py", f"{path}/__init__.py"} & names)
    return top not in LAYERS


def is_module(text: object, names: set[str]) -> bool:
    """Whether a text is the name of a module, as the checkout has it."""
    path = f"{HOME}/{text.replace('.', '/')}" if isinstance(text, str) and "." in text else HOME
    return bool({f"{path}.py", f"{path}/__main__.py"} & names) and path != HOME


@pytest.mark.skipif(bool(cpu_kernels.trouble()), reason=cpu_kernels.trouble())
def test_the_wheel_carries_the_kernels_compiled(wheel: Path) -> None:
    assert f"{HOME}/engine/_cpu_kernels{sysconfig.get_config_var('EXT_SUFFIX')}" in names_in(wheel)


def test_each_wheel_carries_its_licence(wheel: Path, gateway_wheel: Path, client_wheel: Path) -> None:
    for one in (wheel, gateway_wheel, client_wheel):
        assert "licenses/LICENSE" in {name.partition(".dist-info/")[2] for name in names_in(one)}
    assert (ROOT / "LICENSE").read_bytes() == (ROOT / "midstream" / "LICENSE").read_bytes()


def test_all_distributions_have_one_version(wheel: Path, gateway_wheel: Path) -> None:
    version = PROJECT["project"]["version"]
    assert CLIENT["project"]["version"] == GATEWAY["project"]["version"] == version
    assert f"\nRequires-Dist: midstream-gateway[crypto,fast]=={version}\n" in metadata_of(wheel)
    for one in (wheel, gateway_wheel):
        assert f"\nRequires-Dist: midstream=={version}\n" in metadata_of(one)


def test_the_image_takes_in_every_package() -> None:
    allowed = (ROOT / ".dockerignore").read_text().splitlines()
    assert {f"!{package}" for package in (*PACKAGES, *MODELS, "distributions", "midstream")} <= set(allowed)


def test_a_project_keeps_its_own_packages(installation: Installation, tmp_path: Path) -> None:
    assert installation.run("-c", WHOSE, folder=tmp_path) == "The shop's own. 12 midstream_server.app False\n"


async def test_the_wheel_serves_chats_and_the_tools_of_such_a_project(server: ServerProcess) -> None:
    async with midstream.connect(server.url, features=("tools",)) as client:
        reply = await client.send("My name is Ada.")
        assert "Ada" in "".join([text async for text in reply])
        assert [tool["name"] for tool in client.ready["tools"]] == ["stock"]


@pytest.mark.skipif(bool(cpu_kernels.trouble()), reason=cpu_kernels.trouble())
def test_the_kernels_are_found(server: ServerProcess) -> None:
    assert "without the kernels" not in server.log.read_text()


def test_the_command_is_there(installation: Installation) -> None:
    reported = subprocess.run(
        [installation.bin / "midstream", "--version"],
        env=installation.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert reported.stdout.startswith("midstream, version ")


async def test_the_client_chats_by_itself(
    installation: Installation, server: ServerProcess, tmp_path: Path
) -> None:
    """`python -m midstream` needs nothing of the service."""
    chat = await asyncio.create_subprocess_exec(
        *(str(installation.python), "-m", "midstream", server.url),
        env=installation.environment(XDG_CONFIG_HOME=str(tmp_path), XDG_STATE_HOME=str(tmp_path)),
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    reported, _ = await chat.communicate(b"My name is Ada.\n")
    assert (chat.returncode, b"Ada" in reported) == (0, True)


def test_the_doctor_finds_all_that_the_wheel_needs(installation: Installation, tmp_path: Path) -> None:
    reported = installation.run(
        "-m",
        "midstream_server",
        "doctor",
        "--json",
        "--port",
        "0",
        "--data-dir",
        str(tmp_path),
        folder=tmp_path,
    )
    found = {one["subject"]: one["verdict"] for one in json.loads(reported)}
    assert (found["model"], found["store"]) == ("ok", "ok")
    assert "kernels" in found


def test_the_tests_of_turns_pass_against_it(installation: Installation, tmp_path: Path) -> None:
    """`make test-wheel` runs more; what ships has imports that were rewritten."""
    suite = copied_suite(tmp_path / "suite")
    ended = installation.run("-m", "pytest", "-q", "tests/sessions/turn", folder=suite)
    assert " passed" in ended
    assert " failed" not in ended
