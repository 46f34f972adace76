"""How imports are rewritten for a wheel of the gateway."""

from __future__ import annotations

import importlib.util
import tomllib
from types import ModuleType

import pytest

from tests.deploy.wheels import GATEWAY, ROOT

LAYERS = ("app", "engine")


@pytest.fixture(scope="module")
def backend() -> ModuleType:
    file = ROOT / "distributions" / "gateway" / "backend.py"
    spec = importlib.util.spec_from_file_location("backend", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("source", "moved"),
    [
        ("from engine.api import Engine\n", "from midstream_server.engine.api import Engine\n"),
        ("from engine import door as d\n", "from midstream_server.engine import door as d\n"),
        ("if 1:\n    from app.x import (\n  y)\n", "if 1:\n    from midstream_server.app.x import (\n  y)\n"),
        ("from engineering import door\nimport app_store\n",) * 2,
        ('"""\nfrom engine.api import Engine\n"""\n',) * 2,
    ],
)
def test_imports_of_the_layers_alone_are_rewritten(backend: ModuleType, source: str, moved: str) -> None:
    assert backend.rewritten(source, LAYERS) == moved


@pytest.mark.parametrize("source", ["import engine.api\n", "import engine\n", "from  engine import x\n"])
def test_an_import_that_cannot_be_moved_stops_the_build(backend: ModuleType, source: str) -> None:
    with pytest.raises(backend.CannotBeMoved, match="line 1"):
        backend.rewritten(source, LAYERS)


def test_the_project_is_read_back_as_it_was_written(backend: ModuleType) -> None:
    moved = backend.moved_project(GATEWAY)
    assert tomllib.loads(backend.as_toml(moved)) == moved
    assert moved["project"] == GATEWAY["project"]
