"""`python -m tools.mutants`: each operator changes what it says, and every change is still a program."""

from __future__ import annotations

import ast
import random
import tomllib

import pytest

from tools.mutants.__main__ import AREAS, ROOT
from tools.mutants.operators import mutants


@pytest.mark.parametrize(
    ("operator", "before", "after"),
    [
        ("comparison", "a < b", "(a) <= (b)"),
        ("arithmetic", "a + b", "(a) - (b)"),
        ("logic", "a and b", "((a) or (b))"),
        ("condition", "a if b else c", "a if (not (b)) else c"),
        ("constant", "True", "False"),
        ("constant", "7", "8"),
    ],
)
def test_an_operator_changes_what_it_says(operator: str, before: str, after: str) -> None:
    source = (
        f"def f(a, b=1, c: int = 2):\n    'Text with 3.'\n    return {before}  # \N{CHECK MARK}\n".encode()
    )
    changed = [one.of(source).decode() for one in mutants("m", source) if one.operator == operator]
    assert changed == [source.decode().replace(before + "  #", after + "  #")]


def test_a_call_is_dropped_but_not_what_logs_or_raises() -> None:
    source = b"async def f():\n    await g()\n    log.info('x')\n    raise E(1 + 2)\n"
    assert [one.of(source) for one in mutants("m", source)] == [source.replace(b"await g()", b"pass")]


@pytest.mark.parametrize(
    "area", tomllib.loads(AREAS.read_text(encoding="utf-8"))["areas"].items(), ids=lambda one: one[0]
)
def test_every_area_has_mutants_that_are_programs(area: tuple[str, list[str]]) -> None:
    for pattern in area[1]:
        modules = [path for path in ROOT.glob(pattern) if path.name != "__init__.py"]
        assert modules, pattern
        for module in modules:
            source = module.read_bytes()
            for one in random.Random(0).sample(found := mutants(module.name, source), min(10, len(found))):
                ast.parse(one.of(source))
