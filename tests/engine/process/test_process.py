"""The real engine's process behind the real client: replies, cancels, counts, refusals."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from engine.api import EngineState, OutputStream
from engine.errors import EngineLost, PromptRejected
from engine.machine import EngineOptions
from engine.messages import Chunk, Finished, FinishReason, Message, Output, Params, Request, Started
from engine.process.client import EngineClient
from engine.process.supervision import RestartPolicy
from tests.coverage_tracing import coverage_enabled

pytestmark = pytest.mark.asyncio(loop_scope="module")

HELLO = (Message("user", "hello there"),)
ENDLESS = 4000


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tiny_llama: Path) -> AsyncIterator[EngineClient]:
    client = EngineClient(
        EngineOptions(model=str(tiny_llama), device="cpu", max_batch=4),
        restarts=RestartPolicy(first_delay_s=0.01, deaths=100),
    )
    with coverage_enabled():
        supervision = asyncio.create_task(client.run())
        yield client
        supervision.cancel()
        await asyncio.wait([supervision])


@pytest_asyncio.fixture(loop_scope="module")
async def engine(running: EngineClient) -> EngineClient:
    await running.ready(timeout_s=100)
    return running


def make_request(request_id: str, tokens: int = 20, messages: tuple[Message, ...] = HELLO) -> Request:
    return Request(request_id, messages, Params(max_new_tokens=tokens, do_sample=False))


async def outputs_of(stream: OutputStream) -> list[Output]:
    return [output async for output in stream]


async def end_of(stream: OutputStream) -> Finished:
    *_, end = await outputs_of(stream)
    assert isinstance(end, Finished)
    return end


async def until_it_writes(stream: OutputStream) -> None:
    async for output in stream:
        if isinstance(output, Chunk):
            return


async def test_a_reply_starts_is_written_and_ends(engine: EngineClient) -> None:
    first, *chunks, end = await outputs_of(engine.generate(make_request("r", 20)))
    assert isinstance(first, Started)
    assert isinstance(end, Finished)
    assert (end.reason, end.generated_tokens) == (FinishReason.LENGTH, 20)
    assert first.prompt_tokens == end.prompt_tokens == await engine.count_tokens(HELLO)
    assert 0 < sum(chunk.tokens for chunk in chunks if isinstance(chunk, Chunk)) <= 20


async def test_a_batch_of_replies_reads_as_each_alone(engine: EngineClient) -> None:
    def text(outputs: list[Output]) -> str:
        return "".join(output.text for output in outputs if isinstance(output, Chunk))

    alone = text(await outputs_of(engine.generate(make_request("alone"))))
    together = await asyncio.gather(*(outputs_of(engine.generate(make_request(f"r{n}"))) for n in range(9)))
    assert {text(outputs) for outputs in together} == {alone}


async def test_a_cancel_ends_a_reply_without_a_further_step(engine: EngineClient) -> None:
    stream = engine.generate(make_request("r", ENDLESS))
    await until_it_writes(stream)
    stream.cancel()
    end = await end_of(stream)
    assert end.reason is FinishReason.CANCELLED
    assert end.steps_after == 0
    assert end.generated_tokens < ENDLESS - 1000


async def test_a_cancel_at_once_ends_a_request_that_never_ran(engine: EngineClient) -> None:
    long_prompt = (Message("user", "word " * 300_000),)
    stream = engine.generate(make_request("r", messages=long_prompt))
    stream.cancel()
    end = await end_of(stream)
    assert (end.reason, end.steps_after, end.generated_tokens) == (FinishReason.CANCELLED, 0, 0)


async def test_prompts_are_counted_while_a_reply_is_written(engine: EngineClient) -> None:
    stream = engine.generate(make_request("r", ENDLESS))
    await until_it_writes(stream)
    assert await engine.count_tokens(HELLO) > 2
    stream.cancel()
    assert (await end_of(stream)).reason is FinishReason.CANCELLED


async def test_a_refused_prompt_is_an_error_of_its_own_request(engine: EngineClient) -> None:
    bystander = engine.generate(make_request("bystander"))
    refused = await end_of(engine.generate(make_request("r", messages=(Message("user", "unspeakable"),))))
    assert refused.reason is FinishReason.ERROR
    assert "unspeakable" in (refused.error or "")
    assert (await end_of(bystander)).reason is FinishReason.LENGTH
    with pytest.raises(PromptRejected, match="unspeakable"):
        await engine.count_tokens([Message("user", "unspeakable")])


async def test_a_prompt_beyond_the_window_is_an_error_of_its_own_request(engine: EngineClient) -> None:
    end = await end_of(engine.generate(make_request("r", messages=(Message("user", "word " * 5000),))))
    assert end.reason is FinishReason.ERROR


SYSTEM = Message("system", "You are brief, kind and exact, and you never guess.")


def first_turn(client: str, *messages: Message, shares_system: bool = False) -> Request:
    return Request(
        client,
        messages,
        Params(max_new_tokens=2),
        cache_salt=client,
        shares_system=shares_system,
        client=client,
    )


async def test_the_operators_system_prompt_is_computed_once_for_all_clients(engine: EngineClient) -> None:
    """And of the words behind it nothing is shared."""
    secret, other = Message("user", "My code is 1234."), Message("user", "My code is 1299.")
    first = await end_of(engine.generate(first_turn("alice", SYSTEM, secret, shares_system=True)))
    second = await end_of(engine.generate(first_turn("bob", SYSTEM, secret, shares_system=True)))
    third = await end_of(engine.generate(first_turn("carol", SYSTEM, other, shares_system=True)))
    assert first.cached_tokens == 0
    assert 16 <= second.cached_tokens == third.cached_tokens < await engine.count_tokens([SYSTEM, secret])


async def test_nothing_else_leaks_between_clients(engine: EngineClient) -> None:
    own_system = Message("system", "Speak as my grandmother Ottilie would, who was born at sea.")
    words = Message("user", "A long first message that two clients happen to send.")
    for messages in ((words,), (own_system, words)):
        for client in ("dora", "emil"):
            end = await end_of(engine.generate(first_turn(f"{client} {len(messages)}", *messages)))
            assert end.cached_tokens == 0
    again = await end_of(engine.generate(first_turn("dora 1", words)))
    assert again.cached_tokens == again.prompt_tokens - 1


async def test_ctrl_c_is_left_to_the_gateway(engine: EngineClient) -> None:
    stream = engine.generate(make_request("r", 200))
    await until_it_writes(stream)
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGINT)
    assert (await end_of(stream)).reason is FinishReason.LENGTH


async def test_a_signal_for_the_gateways_whole_group_leaves_running_replies_alone(
    engine: EngineClient,
) -> None:
    """`timeout` and process managers end groups: the gateway lets replies end, which takes an engine."""
    assert engine.pid is not None
    assert os.getpgid(engine.pid) == engine.pid


async def test_statistics_come_by_themselves(engine: EngineClient) -> None:
    """They come a second late at most: those of earlier replies may still be under way."""
    before = engine.statistics().generated_tokens
    await end_of(engine.generate(make_request("r", 20)))
    async with asyncio.timeout(30):
        while (now := engine.statistics()).running or now.generated_tokens < before + 20:  # noqa: ASYNC110 - it is told, but to no one
            await asyncio.sleep(0.01)
    assert now.steps > 0
    assert now.queued == 0


async def test_a_killed_process_loses_its_replies_and_the_next_one_serves(engine: EngineClient) -> None:
    facts, restarts = engine.facts, engine.status.restarts
    lost = engine.generate(make_request("lost", ENDLESS))
    await until_it_writes(lost)
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)
    with pytest.raises(EngineLost, match="SIGKILL"):
        await end_of(lost)
    assert engine.status.state is EngineState.RESTARTING
    assert engine.facts == facts
    waiting, counted = engine.generate(make_request("waiting")), engine.count_tokens(HELLO)
    cancelled = engine.generate(make_request("cancelled"))
    cancelled.cancel()
    assert (await end_of(cancelled)).steps_after == 0
    assert (await end_of(waiting)).reason is FinishReason.LENGTH
    assert await counted > 2
    assert engine.status.restarts == restarts + 1
