"""Each lab of the service works with a little of it; no figure is judged."""

from __future__ import annotations

import msgspec
import pytest

from tests.bench import durability, many_conversations
from tests.bench.clients import ServerApi, ServerMisbehaved
from tests.bench.load_generator import Job, Measure, do
from tests.server_process import ServerProcess

CLIENTS = 3


def job(server: ServerProcess, measure: Measure, tokens: int, api: ServerApi = ServerApi.WEBSOCKET) -> Job:
    return Job(
        measure=measure, api=api, url=server.url, model="midstream-demo", clients=CLIENTS,
        max_new_tokens=tokens, cancel_after_texts=2, limit_s=90, greets=True,
    )  # fmt: skip


@pytest.mark.parametrize("api", [api for api in ServerApi if api is not ServerApi.SSE])
async def test_a_reply_is_read_through_every_endpoint(server: ServerProcess, api: ServerApi) -> None:
    replies = (await do(job(server, Measure.LOAD, 100, api))).replies
    assert [reply.tokens for reply in replies] == [100] * CLIENTS
    assert all(reply.sent < min(reply.arrivals) <= max(reply.arrivals) < reply.ended for reply in replies)


async def test_every_client_reads_all_its_replies_over_new_connections(server: ServerProcess) -> None:
    asked = msgspec.structs.replace(job(server, Measure.LOAD, 8, ServerApi.CHAT), replies=2, anew=True)
    assert [reply.tokens for reply in (await do(asked)).replies] == [8] * CLIENTS * 2


async def test_every_cancel_is_answered_twice_and_costs_a_step_at_most(server: ServerProcess) -> None:
    stops = (await do(job(server, Measure.STOP_ONE, 256))).stops
    assert all(0 < stop.cancelled_s <= stop.done_s for stop in stops)
    assert {stop.steps_after for stop in stops} <= {0, 1}


async def test_a_refusal_ends_the_measurement(server: ServerProcess) -> None:
    with pytest.raises(ServerMisbehaved, match="bad_params"):
        await do(job(server, Measure.LOAD, -2))


def test_every_way_to_be_durable_is_measured() -> None:
    report = durability.measure(durability.QUICK)
    assert all(one.value is not None for one in report.findings)
    assert {name for one in report.findings for name in one.readings} == {"memory", "disk"}


async def test_many_conversations_are_measured() -> None:
    report = await many_conversations.measure(many_conversations.QUICK)
    assert all(one.value is not None for one in report.findings)
