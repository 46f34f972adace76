"""Several engines behind one interface, as an operator sees them."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.metrics import Metrics, Readiness, Sources
from app.models import own_engines
from app.settings import Settings
from connections.http import RefusalCounters
from connections.limiters import BoundCounters
from connections.manager import ConnectionStatistics
from engine.messages import EngineStatistics, ModelFacts, Params
from engine.process.client import EngineClient
from engine.served_models import EngineFleet, served_models
from sessions.service import SessionStatistics
from sessions.store.client import Durability, connect
from sessions.store.ledger import Memory
from sessions.store.pool import Durations
from sessions.store.server_config import WriteProbe
from sessions.tools.tool_registry import ToolRegistry

FACTS = ModelFacts("model", 4096, Params(), "cpu", "float32", 32, 1)


@pytest.fixture
async def fleet() -> EngineFleet:
    """Two engines, the first of which serves, without a process."""
    several = own_engines(Settings(device="auto,auto"))
    assert isinstance(several, EngineFleet)
    several.parts[0]._life.loaded(FACTS)
    several.parts[1]._life.died("It was killed.")
    return several


async def test_one_engine_is_no_fleet() -> None:
    assert isinstance(own_engines(Settings()), EngineClient)


async def test_a_device_gets_an_engine_each_time_it_is_named() -> None:
    several = own_engines(Settings(device="cuda:0,cuda:0,cuda:1"))
    assert isinstance(several, EngineFleet)
    assert [part._options.device for part in several.parts] == ["cuda:0", "cuda:0", "cuda:1"]


async def test_readiness_says_how_many_engines_serve(fleet: EngineFleet, tmp_path: Path) -> None:
    async with connect(f"unix://{tmp_path}/nothing") as store:
        report = await Readiness(
            models=served_models(fleet), store=WriteProbe(store, Durability.MEMORY), memory=Memory(store)
        ).report()
    assert report.engine.state == "ready"
    assert report.engines_ready == 1
    assert [engine.state for engine in report.engines or ()] == ["ready", "loading"]
    assert report.engines
    assert report.engines[1].message == "It was killed."


async def test_metrics_tell_of_each_engine(fleet: EngineFleet) -> None:
    fleet.parts[1]._statistics = EngineStatistics(running=3, steps=70)
    metrics = Metrics()
    metrics.watch(
        Sources(
            models=served_models(fleet),
            connections=lambda: ConnectionStatistics(0, 0, 0),
            sessions=lambda: SessionStatistics(0, 0, 0, ToolRegistry().counters),
            refusals=RefusalCounters(),
            bounds=BoundCounters(),
            stores={},
            lag=Durations(),
            is_draining=lambda: False,
            version="1",
        )
    )
    lines = metrics.render().decode().splitlines()
    assert 'midstream_engine_up{engine="0"} 1.0' in lines
    assert 'midstream_engine_up{engine="1"} 0.0' in lines
    assert 'midstream_engine_restarts_total{engine="1"} 1.0' in lines
    assert 'midstream_engine_batch{engine="1"} 3.0' in lines
    assert 'midstream_engine_steps_total{engine="1"} 70.0' in lines
