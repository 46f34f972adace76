"""The HTTP routes: the page, health, readiness, metrics, and the headers on all of them."""

from __future__ import annotations

import json
from pathlib import Path
from time import monotonic

import msgspec
import pytest
from redis.asyncio import Redis

from app.metrics import Readiness
from engine.machine import EngineOptions
from engine.messages import EngineStatistics
from engine.process.client import EngineClient
from engine.scripted import ScriptedEngine
from engine.served_models import served_models
from sessions.store.client import Durability, connect
from sessions.store.ledger import Memory
from sessions.store.server_config import WriteProbe
from tests.app.in_process_service import InProcessService, serving
from tests.store_faults import refusing_writes, without_memory


async def test_every_answer_carries_the_security_headers(running: InProcessService) -> None:
    for path in ("/", "/static/main.js", "/healthz", "/readyz", "/metrics", "/nowhere"):
        _, headers, _ = await running.get(path)
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "deny"
        assert headers["referrer-policy"] == "no-referrer"
        assert "server" not in headers


async def test_a_service_tells_whether_it_lives_and_can_take_turns(running: InProcessService) -> None:
    status, headers, body = await running.get("/healthz")
    assert (status, headers["cache-control"], json.loads(body)) == (200, "no-store", {"status": "ok"})
    status, _, body = await running.get("/readyz")
    report = json.loads(body)
    assert (status, report["ready"], report["store"], report["draining"]) == (200, True, "ok", False)
    ready = {"state": "ready", "stage": "ready", "progress": 1.0, "message": None, "restarts": 0}
    assert report["engine"] == ready
    running.engine.die("It fell over.", revive=False)
    running.engine._life.loading("reading weights", 0.41666)
    status, _, body = await running.get("/readyz")
    report = json.loads(body)
    assert (status, report["ready"]) == (503, False)
    loading = {"state": "restarting", "stage": "reading weights", "progress": 0.417}
    assert report["engine"] == loading | {"message": "It fell over.", "restarts": 1}


async def test_a_service_without_its_store_is_not_ready(tmp_path: Path) -> None:
    """The process is alive nevertheless: it must not be restarted for that."""
    engine = EngineClient(EngineOptions(model="none"))
    async with connect(f"unix://{tmp_path}/nothing") as store:
        report = await Readiness(
            models=served_models(engine),
            store=WriteProbe(store, Durability.MEMORY),
            memory=Memory(store),
        ).report()
    assert (report.ready, report.store, report.engine.state) == (False, "unavailable", "loading")


def readiness_of(store: Redis, *, most_bytes: int | None = None) -> Readiness:
    return Readiness(
        models=served_models(ScriptedEngine()),
        store=WriteProbe(store, Durability.MEMORY),
        memory=Memory(store, most_bytes=most_bytes),
    )


async def test_a_service_whose_store_is_full_is_ready_and_reports_it(store: Redis) -> None:
    """People read and delete through it; a balancer that takes all replicas out would leave nobody to do so."""
    async with without_memory(store):
        report = await readiness_of(store).report()
    assert (report.ready, report.store) == (True, "full")
    assert "OutOfMemoryError" in (report.store_message or "")
    readiness = readiness_of(store, most_bytes=1)
    await readiness._memory.up_to_date()
    report = await readiness.report()
    assert (report.ready, report.store) == (True, "full")
    assert "no room for new messages" in (report.store_message or "")


async def test_a_service_whose_store_takes_no_writes_is_not_ready(
    store: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages would be refused, though the store answers; its report counts for a moment."""
    readiness = readiness_of(store)
    async with refusing_writes(store):
        report = await readiness.report()
        assert (report.ready, report.store) == (False, "refuses_writes")
        assert "takes no writes" in (report.store_message or "")
    assert (await readiness.report()).store == "refuses_writes"
    monkeypatch.setattr("app.metrics.monotonic", lambda: 2 * monotonic())
    report = await readiness.report()
    assert (report.ready, report.store, report.store_message) == (True, "ok", None)


def value(metrics: str, name: str) -> float:
    return next(float(line.split()[-1]) for line in metrics.splitlines() if line.startswith(f"{name} "))


async def test_every_fact_of_the_engine_is_a_metric(
    running: InProcessService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has a label of its own, so that no new fact is forgotten here silently."""
    facts = {name: 101.0 + place for place, name in enumerate(EngineStatistics.__struct_fields__)}
    statistics = msgspec.convert(facts, EngineStatistics, strict=False)
    monkeypatch.setattr(running.engine, "statistics", lambda: statistics)
    text = (await running.get("/metrics"))[2]
    reported = [float(line.split()[-1]) for line in text.splitlines() if line.startswith("midstream_engine_")]
    assert set(reported) >= set(facts.values()) - {facts["running"], facts["queued"]}
    assert value(text, "midstream_engine_kv_cached_bytes") == facts["kv_cached_bytes"]
    assert value(text, "midstream_engine_cached_tokens_total") == facts["cached_tokens"]


async def test_metrics_count_what_clients_go_through(tmp_path: Path) -> None:
    async with serving(tmp_path, ScriptedEngine(pace_s=0.005)) as running:
        running.engine.script([f"{number} " for number in range(5)])
        async with running.socket() as socket:
            await socket.send(type="send", client_msg_id="m1", content="hello there")
            reported = await socket.until("done")
            running.engine.script("x " * 2_000)
            await socket.send(type="send", client_msg_id="m2", content="again")
            await socket.next("delta")
            await socket.send(type="cancel")
            done = (await socket.until("done"))[-1]
            await socket.send(type="resume", conversation_id="default", epoch="another", after_seq=0)
            await socket.until("snapshot")
            _, headers, text = await running.get("/metrics")
        running.engine.die()
        after = (await running.get("/metrics"))[2]

    assert headers["content-type"].startswith("text/plain; version=0.0.4")
    assert value(text, "midstream_connections") == value(text, "midstream_clients") == 1
    assert value(text, "midstream_connections_opened_total") == 1
    assert value(text, 'midstream_turns_total{reason="stop"}') == 1
    assert value(text, 'midstream_turns_total{reason="cancelled"}') == 1
    assert value(text, 'midstream_cancels_total{cause="client"}') == 1
    assert value(text, "midstream_reader_gaps_total") >= 1
    assert value(text, "midstream_steps_after_cancel_total") == done["cancel"]["steps_after"] <= 1
    assert value(text, "midstream_first_token_seconds_count") == 2
    assert value(text, "midstream_delta_gap_seconds_count") >= 1
    deltas = sum(frame["type"] == "delta" for frame in reported)
    assert value(text, "midstream_delta_delay_seconds_count") >= deltas >= 1
    assert value(text, "midstream_delta_delay_seconds_sum") > 0
    assert value(text, "midstream_journal_bytes_total") > 0
    assert value(text, 'midstream_store_call_seconds_count{client="replies"}') >= 1
    assert value(text, 'midstream_store_wait_seconds_count{client="requests"}') >= 1
    assert value(text, "midstream_turns_unsaved") == value(text, "midstream_draining") == 0
    assert value(text, "process_resident_memory_bytes") > 1 << 20
    assert value(text, 'midstream_tokens_total{kind="generated"}') >= 6 + done["usage"]["generated_tokens"]
    assert value(text, 'midstream_tokens_total{kind="wasted"}') == done["usage"]["wasted_tokens"]
    assert value(text, "midstream_turns_live") == value(text, "midstream_engine_batch") == 0
    assert value(text, "midstream_engine_queue") == 0
    assert value(text, "midstream_engine_up") == value(text, "midstream_conversations") == 1
    assert value(text, "midstream_engine_restarts_total") == 0
    assert value(after, "midstream_engine_restarts_total") == 1
    assert value(after, "midstream_connections") == 0
