"""Turns as spans at a collector that decodes them; and the cost of a collector that does not answer."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from app import tracing as spans_module
from app.parts import traced
from app.settings import SettingsError
from app.tracing import CLOSE_S, Spans
from engine.scripted import Call, ScriptedEngine, Thought
from sessions.observer import Observer
from tests.app.in_process_service import InProcessService, serving
from tests.app.otlp_collector import Collector, ExportedSpan, running_collector
from tests.app.raw_http import peer

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
UNSAMPLED = f"00-{TRACE}-00f067aa0ba902b7-00"
SERVER = 2
SECRETS = ("Lighthouse?", "written before")
CHAT = json.dumps({"model": "midstream-demo", "messages": [{"role": "user", "content": SECRETS[0]}]})


def noon(zone: str) -> str:
    """Tells the time."""
    if zone == "nowhere":
        raise ValueError(zone)
    return f"It is noon in {zone}."


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with running_collector() as one:
        enable_export(monkeypatch, one.url)
        yield one


def enable_export(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")


@pytest.fixture
async def traced_service(tmp_path: Path, collector: Collector) -> AsyncIterator[InProcessService]:
    async with serving(tmp_path) as running:
        yield running


async def turn_of(collector: Collector, name: str = "chat") -> tuple[ExportedSpan, dict[str, ExportedSpan]]:
    """The next turn's span, and its child spans by name."""
    *parts, turn = await asyncio.to_thread(collector.until, name)
    return turn, {part.name: part for part in parts if part.parent_id == turn.span_id}


async def test_a_turn_is_a_span_below_the_one_that_its_handshake_names(
    traced_service: InProcessService, collector: Collector
) -> None:
    async with traced_service.socket(additional_headers={"traceparent": PARENT}) as client:
        await client.send(type="send", client_msg_id="m", content=SECRETS[0])
        done = (await client.until("done"))[-1]
    turn, parts = await turn_of(collector)
    assert (turn.trace_id, turn.parent_id, turn.kind) == (TRACE, "00f067aa0ba902b7", SERVER)
    assert (turn.name, turn.service) == ("chat midstream-demo", "midstream")
    assert turn.attributes["gen_ai.operation.name"] == "chat"
    assert turn.attributes["gen_ai.response.model"] == "midstream-demo"
    assert turn.attributes["gen_ai.response.finish_reasons"] == ["stop"]
    assert turn.attributes["gen_ai.response.id"] == done["message_id"]
    assert turn.attributes["gen_ai.usage.input_tokens"] == done["usage"]["prompt_tokens"]
    assert turn.attributes["gen_ai.usage.output_tokens"] == done["usage"]["generated_tokens"]
    assert turn.attributes["midstream.turn.id"] == done["turn_id"]
    assert turn.events == ["first token"]
    assert not turn.is_error
    assert list(parts) == ["queue", "prefill", "decode", "journal"]
    edges = [edge for part in parts.values() for edge in (part.start, part.end)]
    assert edges == sorted(edges)
    assert (turn.start, turn.end) == (edges[0], edges[-1])
    assert abs(turn.end - time.time_ns()) < 60e9
    assert traced_service.engine.requests[-1].trace.traceparent == f"00-{TRACE}-{turn.span_id}-01"


async def test_no_span_holds_what_people_and_models_write(
    traced_service: InProcessService, collector: Collector
) -> None:
    traced_service.engine.script([Thought("a secret thought"), *["This", "was", "written", "before", "."]])
    async with traced_service.socket({"features": ["reasoning"]}) as client:
        await client.send(type="send", client_msg_id="m", content=SECRETS[0], params={"system": "Be secret."})
        await client.until("done")
    await turn_of(collector)
    sent = b"".join(collector.bodies)
    assert b"gen_ai.usage" in sent
    assert [word for word in ("Lighthouse", "written", "secret") if word.encode() in sent] == []


async def test_a_turn_that_nobody_traces_begins_a_trace(
    traced_service: InProcessService, collector: Collector
) -> None:
    async with traced_service.socket() as client:
        for number in range(2):
            await client.send(type="send", client_msg_id=f"{number}", content="Hello?")
            await client.until("done")
    (first, _), (second, _) = await turn_of(collector), await turn_of(collector)
    assert first.parent_id == second.parent_id == ""
    assert first.trace_id != second.trace_id


async def test_a_chat_completion_is_a_turn_without_a_journal(
    traced_service: InProcessService, collector: Collector
) -> None:
    head = f"Host: 127.0.0.1:{traced_service.port}\r\nConnection: close\r\nContent-Length: {len(CHAT)}"
    async with peer(traced_service) as client:
        client.write(f"POST /v1/chat/completions HTTP/1.1\r\n{head}\r\ntraceparent: {PARENT}\r\n\r\n{CHAT}")
        await client.rest()
    turn, parts = await turn_of(collector)
    assert turn.parent_id == "00f067aa0ba902b7"
    assert list(parts) == ["queue", "prefill", "decode"]
    assert "gen_ai.conversation.id" not in turn.attributes


async def test_whoever_samples_a_trace_out_is_followed(
    traced_service: InProcessService, collector: Collector
) -> None:
    for parent in (UNSAMPLED, PARENT):
        async with traced_service.socket(additional_headers={"traceparent": parent}) as client:
            await client.send(type="send", client_msg_id=parent, content="Hello?")
            await client.until("done")
    turn, _ = await turn_of(collector)
    first, second = (request.trace.traceparent for request in traced_service.engine.requests)
    assert (first[:36], first[-2:]) == (f"00-{TRACE}-", "00")
    assert turn.span_id in second
    assert collector.is_empty


async def test_a_stop_and_a_failure_are_told(tmp_path: Path, collector: Collector) -> None:
    engine = ScriptedEngine(by_hand=True)
    async with serving(tmp_path, engine) as running, running.socket() as client:
        await client.send(type="send", client_msg_id="a", content="Hello?")
        await client.next("accepted")
        engine.step()
        await client.next("delta")
        await client.send(type="cancel")
        await client.until("done")
        stopped, _ = await turn_of(collector)
        await client.send(type="send", client_msg_id="b", content="Hello?")
        await client.next("accepted")
        engine.step()
        await client.next("delta")
        engine.die()
        await client.until("done")
        failed, _ = await turn_of(collector)
    assert stopped.attributes["midstream.cancel.cause"] == "client"
    assert stopped.attributes["gen_ai.response.finish_reasons"] == ["cancelled"]
    assert not stopped.is_error
    assert failed.attributes["error.type"] == "engine_unavailable"
    assert failed.is_error


async def test_a_call_of_a_tool_is_a_span_below_the_turn_that_called(
    tmp_path: Path, collector: Collector
) -> None:
    async with serving(tmp_path, tools=("tests.app.test_spans:noon",)) as running:
        for zone in ("Bern", "nowhere"):
            running.engine.script([Call("noon", json.dumps({"zone": zone}))])
            running.engine.script(["So", " it is."])
        async with running.socket(
            {"features": ["tools"]}, additional_headers={"traceparent": PARENT}
        ) as client:
            for name in "ab":
                tools = [{"name": "noon", "where": "server"}]
                await client.send(type="send", client_msg_id=name, content="When?", tools=tools)
                await client.until("done")
                await client.until("done")
        spans = [await asyncio.to_thread(collector.until, name) for name in ("chat", "exec", "chat") * 2]
    calling, call, following, _, failed, _ = [several[-1] for several in spans]
    assert (call.name, call.parent_id) == ("execute_tool noon", calling.span_id)
    assert following.parent_id == calling.span_id
    assert {calling.trace_id, call.trace_id, following.trace_id} == {TRACE}
    assert call.attributes["gen_ai.tool.name"] == "noon"
    assert call.attributes["gen_ai.tool.call.id"].startswith("call_")
    assert not call.is_error
    assert failed.is_error
    assert b"Bern" not in b"".join(collector.bodies)


async def test_a_message_that_another_replica_takes_in_stays_in_its_trace(
    tmp_path: Path, store_url: str, collector: Collector
) -> None:
    engine, ann = ScriptedEngine(by_hand=True), {"client_id": "ann"}
    async with (
        serving(tmp_path, engine, redis_url=store_url) as home,
        serving(tmp_path, ScriptedEngine(), redis_url=store_url) as abroad,
        home.socket(ann) as here,
        abroad.socket(ann, additional_headers={"traceparent": PARENT}) as there,
    ):
        await here.send(type="send", client_msg_id="a", content="Hello?")
        await here.next("accepted")
        await there.send(type="send", client_msg_id="b", content="And now?", on_busy="enqueue")
        await there.next("accepted")
        engine.step(20)
        await here.next("done")
        while len(engine.requests) < 2:  # noqa: ASYNC110 - an engine has no event for it
            await asyncio.sleep(0)
        engine.step(20)
        await here.next("done")
        first, _ = await turn_of(collector)
        second, _ = await turn_of(collector)
    assert not abroad.engine.requests
    assert first.trace_id != TRACE
    assert (second.trace_id, second.parent_id) == (TRACE, "00f067aa0ba902b7")


@asynccontextmanager
async def silence() -> AsyncIterator[str]:
    """The URL of a collector that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("kind", ["silent", "gone"])
async def test_a_dead_collector_costs_nobody_anything(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Turns are not affected, waiting spans are bounded, and the service stops in time."""
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "64")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "16")
    made: list[Spans] = []
    monkeypatch.setattr(spans_module.Spans, "close", _recording_close(made, Spans.close))
    async with silence() as url:
        enable_export(monkeypatch, url if kind == "silent" else "http://127.0.0.1:1")
        async with serving(tmp_path) as running, running.socket() as client:
            for number in range(20):  # of five spans or more each
                await client.send(type="send", client_msg_id=f"{number}", content="Hello?")
                done = (await client.until("done"))[-1]
                assert (done["reason"], done["saved"]) == ("stop", True)
            started = time.monotonic()
    assert time.monotonic() - started < CLOSE_S + 5
    (processor,) = made[0]._provider._active_span_processor._span_processors
    assert len(processor._batch_processor._queue) <= 64  # type: ignore[attr-defined]


def _recording_close(made: list[Spans], close: Any) -> Any:
    async def noted(self: Spans) -> bool:
        made.append(self)
        return bool(await close(self))

    return noted


@pytest.mark.parametrize(
    ("variables", "is_traced"),
    [
        ({}, True),
        ({"OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_SDK_DISABLED": "TRUE"}, False),
        ({"OTEL_TRACES_EXPORTER": "none"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        # the protocol of traces goes before the one of all
        (
            {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"},
            True,
        ),
    ],
)
async def test_turns_are_observed_for_a_collector_if_one_is_wanted(
    variables: dict[str, str], *, is_traced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    enable_export(monkeypatch, "http://127.0.0.1:1")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    silent = Observer()
    async with traced(silent, version="1") as observer:
        assert (observer is not silent) is is_traced


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "127.0.0.1:4318", "takes a URL"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://", "takes a URL"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "http/protobuf"),
    ],
)
async def test_what_can_not_be_followed_stops_the_start(
    name: str, value: str, complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    enable_export(monkeypatch, "http://127.0.0.1:4318")
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=f"{name}.*{complaint}"):
        async with traced(Observer(), version="1"):
            pass


async def test_without_the_optional_part_it_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    enable_export(monkeypatch, "http://127.0.0.1:4318")
    monkeypatch.delitem(sys.modules, "app.tracing", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(SettingsError, match=r'pip install "midstream-server\[otel\]"'):
        async with traced(Observer(), version="1"):
            pass
