"""The real engine's process behind the real client: replies, cancels, counts, formats, refusals."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import jsonschema
import pytest
import pytest_asyncio

from engine.api import EngineState, spec_not_served
from engine.errors import EngineLost, PromptRejected
from engine.messages import (
    ErrorCode,
    Finished,
    FinishReason,
    JsonObject,
    JsonSchema,
    Message,
    Params,
    Regex,
    ReplySpec,
    Request,
)
from engine.process.client import EngineClient
from engine.process.supervision import RestartPolicy
from tests.coverage_tracing import coverage_enabled
from tests.engine.constrained import CITIES, CITY
from tests.engine.replies import HELLO, engine_of, reply_of, until_it_writes

pytestmark = pytest.mark.asyncio(loop_scope="module")

ENDLESS = 4000


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tiny_llama: Path) -> AsyncIterator[EngineClient]:
    restarts = RestartPolicy(first_delay_s=0.01, deaths=100)
    async with engine_of(
        tiny_llama, traced=coverage_enabled(), client={"restarts": restarts}, max_batch=9
    ) as engine:
        yield engine


@pytest_asyncio.fixture(loop_scope="module")
async def engine(running: EngineClient) -> EngineClient:
    await running.ready(timeout_s=100)
    return running


def make_request(request_id: str, tokens: int = 20, messages: tuple[Message, ...] = HELLO) -> Request:
    return Request(request_id, messages, Params(max_new_tokens=tokens, do_sample=False), client=request_id)


async def test_a_killed_process_loses_its_replies_and_the_next_one_serves(engine: EngineClient) -> None:
    facts, restarts = engine.facts, engine.status.restarts
    lost = engine.generate(make_request("lost", ENDLESS))
    await until_it_writes(lost)
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)
    with pytest.raises(EngineLost, match="SIGKILL"):
        await reply_of(lost)
    assert engine.status.state is EngineState.RESTARTING
    assert engine.facts == facts
    waiting, counted = engine.generate(make_request("waiting")), engine.count_tokens(HELLO)
    cancelled = engine.generate(make_request("cancelled"))
    cancelled.cancel()
    assert (await reply_of(cancelled))[1].steps_after == 0
    assert (await reply_of(waiting))[1].reason is FinishReason.LENGTH
    assert await counted > 2
    assert engine.status.restarts == restarts + 1


async def test_a_cancel_ends_a_reply_without_a_further_step_and_prompts_are_counted_meanwhile(
    engine: EngineClient,
) -> None:
    stream = engine.generate(make_request("r", ENDLESS))
    await until_it_writes(stream)
    assert await engine.count_tokens(HELLO) > 2
    stream.cancel()
    never_ran = engine.generate(make_request("other", messages=(Message("user", "word " * 300_000),)))
    never_ran.cancel()
    for one, most in ((stream, ENDLESS - 1000), (never_ran, 0)):
        _, end = await reply_of(one)
        assert (end.reason, end.steps_after) == (FinishReason.CANCELLED, 0)
        assert end.generated_tokens <= most


async def test_ctrl_c_and_signals_for_the_gateways_group_are_left_to_the_gateway(
    engine: EngineClient,
) -> None:
    """`timeout` and process managers end groups: the gateway lets replies end, which takes an engine."""
    stream = engine.generate(make_request("r", 200))
    await until_it_writes(stream)
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGINT)
    assert (await reply_of(stream))[1].reason is FinishReason.LENGTH

    assert os.getpgid(engine.pid) == engine.pid


def of_format(request_id: str, spec: ReplySpec, *, tokens: int = 120, seed: int = 1) -> Request:
    how = Params(max_new_tokens=tokens, do_sample=True, temperature=1.0, seed=seed)
    return Request(request_id, HELLO, how, client=request_id, spec=spec)


async def test_a_reply_follows_its_format(engine: EngineClient) -> None:
    assert engine.facts is not None
    assert spec_not_served(ReplySpec(format=JsonObject()), engine.facts) is None
    requests = [of_format(f"r{n}", ReplySpec(format=CITIES), seed=n) for n in range(6)]
    for text, end in await asyncio.gather(*(reply_of(engine.generate(request)) for request in requests)):
        assert end.reason is FinishReason.STOP
        jsonschema.validate(json.loads(text), json.loads(CITY))
    dated = of_format("regex", ReplySpec(format=Regex("[0-9]{4}-[0-9]{2}")))
    text, end = await reply_of(engine.generate(dated))
    assert (end.reason, len(text)) == (FinishReason.STOP, 7)
    spec = ReplySpec(format=CITIES)
    assert await engine.count_tokens(HELLO, spec=spec) == await engine.count_tokens(HELLO)


BAD = {
    "no schema": (JsonSchema("nonsense"), "no valid JSON Schema"),
    "itself": (JsonSchema('{"$ref":"#"}'), "allows nothing"),
    "costly": (JsonSchema('{"type":"integer","multipleOf":99991}'), "takes too much time or memory"),
}


async def test_nobody_notices_bad_prompts_and_formats_nor_good_ones(engine: EngineClient) -> None:
    async def bystanders(*others: Request) -> list[tuple[str, Finished]]:
        plain = [of_format(f"bystander {n}", ReplySpec(), tokens=60, seed=n) for n in range(4)]
        return await asyncio.gather(*(reply_of(engine.generate(one)) for one in (*plain, *others)))

    restarts, quiet = engine.status.restarts, await bystanders()
    words = {
        "an undividable word": "The prompt could not be prepared.",
        "an unspeakable word": "unspeakable",
        "word " * 5000: "must fit",
    }
    bad = [make_request(content[:9], messages=(Message("user", content),)) for content in words]
    bad += [of_format(f"bad {n}", ReplySpec(format=form)) for n, (form, _) in enumerate(BAD.values())]
    good = [of_format(f"good {n}", ReplySpec(format=CITIES), seed=n) for n in range(3)]
    disturbed = await bystanders(*bad, *good)
    assert [text for text, _ in disturbed[:4]] == [text for text, _ in quiet]
    ends = [end for _, end in disturbed[4:]]
    assert [end.reason for end in ends] == [FinishReason.ERROR] * len(bad) + [FinishReason.STOP] * 3
    assert {end.error_code for end in ends[len(words) : len(bad)]} == {ErrorCode.BAD_PARAMS}
    for why, end in zip([*words.values(), *(why for _, why in BAD.values())], ends, strict=False):
        assert why in (end.error or "")
    for reply_format, why in BAD.values():
        with pytest.raises(PromptRejected, match=why) as refused:
            await engine.count_tokens(HELLO, spec=ReplySpec(format=reply_format))
        assert refused.value.field == "format"
    assert engine.status.restarts == restarts
    with pytest.raises(PromptRejected, match="unspeakable"):
        await engine.count_tokens([Message("user", "unspeakable")])


async def test_statistics_come_by_themselves(engine: EngineClient) -> None:
    """They come a second late at most: those of earlier replies may still be under way."""
    before = engine.statistics().generated_tokens
    await reply_of(engine.generate(make_request("r", 20)))
    async with asyncio.timeout(30):
        while (now := engine.statistics()).running or now.generated_tokens < before + 20:  # noqa: ASYNC110 - it is told, but to no one
            await asyncio.sleep(0.01)
    assert now.steps > 0
    assert now.queued == 0
