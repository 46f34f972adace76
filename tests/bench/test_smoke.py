"""Each lab of the service works with a little of it; no figure is judged."""

from __future__ import annotations

from typing import Any

import pytest

from tests.bench import conversations, durability
from tests.bench.clients import ServerApi, ServerMisbehaved
from tests.bench.load_generator import Job, do
from tests.server_process import ServerProcess

CLIENTS = 3


def job(server: ServerProcess, tokens: int, api: ServerApi = ServerApi.WEBSOCKET, **more: Any) -> Job:
    return Job(
        api=api, url=server.url, model="midstream-demo", clients=CLIENTS, max_new_tokens=tokens, limit_s=90, **more,
    )  # fmt: skip


@pytest.mark.parametrize("api", [ServerApi.WEBSOCKET, ServerApi.CHAT])
async def test_a_reply_is_read_over_a_socket_and_over_http(server: ServerProcess, api: ServerApi) -> None:
    replies = (await do(job(server, 100, api))).replies
    assert [reply.tokens for reply in replies] == [100] * CLIENTS
    assert all(reply.sent < min(reply.arrivals) <= max(reply.arrivals) < reply.ended for reply in replies)


async def test_every_client_reads_all_its_replies_over_new_connections(server: ServerProcess) -> None:
    asked = job(server, 8, ServerApi.CHAT, replies=2, anew=True)
    assert [reply.tokens for reply in (await do(asked)).replies] == [8] * CLIENTS * 2


async def test_every_cancel_is_answered_twice_and_costs_a_step_at_most(server: ServerProcess) -> None:
    stops = (await do(job(server, 256, cancel_after_texts=2))).stops
    assert all(0 < stop.cancelled_s <= stop.done_s for stop in stops)
    assert {stop.steps_after for stop in stops} <= {0, 1}


async def test_a_refusal_ends_the_measurement(server: ServerProcess) -> None:
    with pytest.raises(ServerMisbehaved, match="bad_params"):
        await do(job(server, -2))


def test_every_way_to_be_durable_is_measured() -> None:
    report = durability.measure(durability.QUICK)
    assert all(one.value is not None for one in report.findings)
    assert {name for one in report.findings for name in one.readings} == {"memory", "disk"}


async def test_conversations_are_measured() -> None:
    report = await conversations.measure(conversations.QUICK)
    assert all(one.value is not None for one in report.findings)
