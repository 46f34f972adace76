"""A server that can't be measured is reported, and the others get their turns."""

from __future__ import annotations

from app.settings import DEMO_MODEL
from tests.bench.endpoints import measure_endpoints
from tests.bench.records import ServerApi
from tests.bench.report import medians_of
from tests.bench.rounds import Setup, rounds
from tests.bench.servers import Contender
from tests.bench.workload import QUICK

BROKEN = Contender(
    name="broken",
    title="a server that ends at once",
    api=ServerApi.SSE,
    ready="/health",
    arguments=lambda _place: ["no_module_of_this_name"],
)


def test_a_server_that_does_not_start_is_a_failure_of_its_own_turn() -> None:
    lines: list[str] = []
    setup = Setup(model=str(DEMO_MODEL), device="cpu", dtype="float32")
    turns = rounds([BROKEN, BROKEN], QUICK, setup, progress=lines.append)
    assert [turn.levels for turn in turns] == [{}, {}]
    assert all("no_module_of_this_name" in turn.failures[0] for turn in turns)
    assert sum("failed" in line for line in lines) == 2
    assert medians_of(turns) == {"broken": {}}


def test_a_server_that_does_not_start_has_no_doors() -> None:
    setup = {"model": str(DEMO_MODEL), "device": "cpu", "dtype": "float32"}
    found = measure_endpoints(BROKEN, QUICK, setup, progress=lambda _line: None)
    assert found.levels == {}
    assert "no_module_of_this_name" in (found.failure or "")
