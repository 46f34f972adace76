"""The benchmark's clients against a real server: their observations are right. Nothing is timed here."""

from __future__ import annotations

import msgspec
import pytest

from tests.bench.client import ServerMisbehaved
from tests.bench.idle_detection import can_watch
from tests.bench.load_generator import do
from tests.bench.records import Job, Measure, ServerApi
from tests.server_process import ServerProcess

CLIENTS = 3
MODEL = "midstream-demo"


def job(
    server: ServerProcess, measure: Measure, max_new_tokens: int, *, api: ServerApi = ServerApi.WEBSOCKET
) -> Job:
    assert server.process is not None
    return Job(
        measure=measure,
        api=api,
        url=server.url,
        model=MODEL,
        pid=server.process.pid,
        clients=CLIENTS,
        replies=2,
        max_new_tokens=max_new_tokens,
        cancel_after_texts=2,
        limit_s=90,
    )


async def test_every_client_reads_all_its_replies_to_the_end(server: ServerProcess) -> None:
    replies = (await do(job(server, Measure.LOAD, 12))).replies
    assert [reply.tokens for reply in replies] == [12] * CLIENTS * 2
    assert all(reply.sent < min(reply.arrivals) <= max(reply.arrivals) < reply.ended for reply in replies)


@pytest.mark.parametrize(
    "api", [ServerApi.CHAT, ServerApi.REALTIME, ServerApi.RESPONSES, ServerApi.MESSAGES, ServerApi.AI_SDK]
)
async def test_a_reply_is_read_through_every_door(server: ServerProcess, api: ServerApi) -> None:
    requested = msgspec.structs.replace(job(server, Measure.LOAD, 100, api=api), replies=1)
    replies = (await do(requested)).replies
    assert [reply.tokens for reply in replies] == [100] * CLIENTS
    assert all(len(reply.arrivals) > 1 for reply in replies)  # a busy server sends some of its words together


async def test_every_cancel_is_answered_twice_and_costs_a_step_at_most(server: ServerProcess) -> None:
    stops = (await do(job(server, Measure.STOP_ONE, 256))).stops
    assert len(stops) == CLIENTS
    assert all(0 < stop.cancelled_s <= stop.done_s for stop in stops)
    assert {stop.steps_after for stop in stops} <= {0, 1}


@pytest.mark.skipif(not can_watch(), reason="this system tells nothing of other processes' CPU time")
async def test_a_server_whose_replies_are_all_cancelled_falls_silent(server: ServerProcess) -> None:
    silence = (await do(job(server, Measure.STOP_ALL, 256))).silence
    assert silence is not None
    assert silence.after_s >= 0
    assert silence.cpu_s >= 0


async def test_a_refusal_ends_the_measurement(server: ServerProcess) -> None:
    with pytest.raises(ServerMisbehaved, match="bad_params"):
        await do(job(server, Measure.LOAD, -2))
