"""Several engines behind one interface, as an operator sees them."""

from __future__ import annotations

from pathlib import Path

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


async def test_each_device_gets_an_engine_each_time_it_is_named() -> None:
    assert isinstance(own_engines(Settings()), EngineClient)
    several = own_engines(Settings(device="cuda:0,cuda:0,cuda:1"))
    assert isinstance(several, EngineFleet)
    assert [part._options.device for part in several.parts] == ["cuda:0", "cuda:0", "cuda:1"]


async def test_readiness_and_metrics_tell_of_each_engine(tmp_path: Path) -> None:
    """Of two without a process, the first serves."""
    fleet = own_engines(Settings(device="auto,auto"))
    assert isinstance(fleet, EngineFleet)
    fleet.parts[0]._life.loaded(ModelFacts("model", 4096, Params(), "cpu", "float32", 32, 1))
    fleet.parts[1]._life.died("It was killed.")
    fleet.parts[1]._statistics = EngineStatistics(running=3, steps=70)
    models = served_models(fleet)
    async with connect(f"unix://{tmp_path}/nothing") as store:
        probe = WriteProbe(store, Durability.MEMORY)
        report = await Readiness(models=models, store=probe, memory=Memory(store)).report()
    assert (report.engine.state, report.engines_ready) == ("ready", 1)
    assert [engine.state for engine in report.engines or ()] == ["ready", "loading"]
    assert report.engines
    assert report.engines[1].message == "It was killed."
    metrics = Metrics()
    metrics.watch(
        Sources(
            models=models,
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
