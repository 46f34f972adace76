"""A vLLM that the gateway starts: served by, lost, started again, ended. A small server of the tests' own stands in for it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from engine.api import EngineState
from engine.errors import EngineLost, ModelNotUsable
from engine.messages import FinishReason, Message, Params, Request
from engine.process.supervision import RestartPolicy
from engine.upstream import vllm
from engine.upstream.vllm import LaunchedEngine, LaunchOptions
from tests.coverage_tracing import coverage_enabled
from tests.engine.replies import HELLO, has_ended, reply_of, until_it_writes
from tests.sessions.chat_driver import eventually

ROOT = Path(__file__).parents[3]
Mood = Callable[[str], object]
AT_ONCE = RestartPolicy(first_delay_s=0.01, deaths=3)
READY_S = 60.0
GATEWAY = """
import asyncio, sys
import msgspec
from engine.upstream.vllm import LaunchedEngine
from engine.upstream.vllm import LaunchOptions

async def main():
    async with LaunchedEngine(msgspec.json.decode(sys.argv[1], type=LaunchOptions)).running() as engine:
        await engine.ready()
        print(engine._client.base_url, engine._client.headers["Authorization"], flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def make_request(words: str = "hello", request_id: str = "r", **params: Any) -> Request:
    return Request(request_id, (Message("user", words),), Params(**params))


async def until_exit_noticed(engine: LaunchedEngine) -> None:
    """Wait until the end of its process is known: the loss of a connection may be heard of before."""
    await eventually(lambda: engine.status.state is not EngineState.READY)


async def engine_status(engine: LaunchedEngine) -> dict[str, Any]:
    """What the process that serves now says of itself."""
    text, _ = await reply_of(engine.generate(make_request("who are you", "who")))
    return dict(json.loads(text.removesuffix(".")))


@contextmanager
def log_event(words: str) -> Iterator[asyncio.Event]:
    """An event that is set once the log has a line with these words."""
    event, log = asyncio.Event(), logging.getLogger("engine.upstream.vllm")

    def look(record: logging.LogRecord) -> bool:
        if words in record.getMessage():
            event.set()
        return True

    log.addFilter(look)
    try:
        yield event
    finally:
        log.removeFilter(look)


@asynccontextmanager
async def serving(options: LaunchOptions, **more: Any) -> AsyncIterator[LaunchedEngine]:
    async with LaunchedEngine(options, restarts=AT_ONCE, **more).running() as engine:
        await engine.ready(READY_S)
        yield engine


async def test_it_serves_as_an_upstream_does_with_a_key_and_without_our_settings(
    options: LaunchOptions, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MIDSTREAM_JWT_SECRET", "of nobody's business, " * 2)
    caplog.set_level(logging.INFO, "engine")
    async with LaunchedEngine(options).running() as engine:
        await eventually(lambda: engine.status.stage == "starting vLLM")
        facts = await engine.ready(READY_S)
        assert "vllm: Resolved architecture: LlamaForCausalLM" in caplog.messages
        assert (facts.model, facts.context_tokens, facts.max_batch) == ("model", 4096, 32)
        text, end = await reply_of(engine.generate(make_request()))
        assert (text, end.reason) == ("Hello.", FinishReason.STOP)
        assert await engine.count_tokens(HELLO) == 42
        assert (engine.open_requests, engine.statistics().queued, engine.parts) == (0, 0, (engine,))
        status = await engine_status(engine)
        assert not [name for name in status["environ"] if name.startswith("MIDSTREAM_")]
        assert status["environ"]["VLLM_API_KEY"] not in " ".join(status["argv"])
        async with httpx.AsyncClient(trust_env=False) as client:
            answer = await client.get(f"{engine._client.base_url}models")
        assert answer.status_code == 401


async def test_while_it_serves_the_log_has_heads_of_errors_alone(
    options: LaunchOptions, caplog: pytest.LogCaptureFixture
) -> None:
    """What follows the head of an error may be what people wrote."""
    caplog.set_level(logging.DEBUG, "engine")
    async with serving(options) as engine:
        with log_event("secret") as written:
            await reply_of(engine.generate(make_request("write to the log")))
            async with asyncio.timeout(30):
                await written.wait()
    shown = [record.getMessage() for record in caplog.records if record.levelno > logging.DEBUG]
    assert "vllm: a grave line" in shown
    assert not [words for words in ("everyday", "words of a client", "secret") if words in "".join(shown)]


async def test_one_that_is_killed_in_the_middle_of_a_reply_is_told_and_started_again(
    options: LaunchOptions,
) -> None:
    """What it was not asked yet outlives it."""
    async with serving(msgspec.structs.replace(options, max_batch=1)) as engine:
        before = await engine_status(engine)
        lost = engine.generate(make_request("die"))
        waiting = engine.generate(make_request("hello", "waiting"))
        with pytest.raises(
            EngineLost, match=r"vLLM was ended by SIGKILL|connection to the engine vllm was lost"
        ):
            await reply_of(lost)
        await until_exit_noticed(engine)
        assert (await reply_of(waiting))[0] == "Hello."
        assert engine.status.restarts == 1
        assert engine.status.state is EngineState.READY
        after = await engine_status(engine)
        assert after["environ"]["VLLM_API_KEY"] != before["environ"]["VLLM_API_KEY"]
        assert all(has_ended(pid) for pid in before["pids"])


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        ("ValueError: the model is bad", r"^vLLM ended with exit code 1: ValueError: the model is bad\.$"),
        ("ModuleNotFoundError: python: No module named 'vllm'", "`make vllm` makes an environment"),
        ("", "FileNotFoundError"),
    ],
    ids=["an error", "no vLLM", "no Python"],
)
async def test_a_start_that_fails_is_told_with_its_reason(
    options: LaunchOptions, mood: Mood, trouble: str, reason: str
) -> None:
    mood(trouble)
    python = options.python if trouble else "/nowhere/python"
    async with LaunchedEngine(msgspec.structs.replace(options, python=python)).running() as engine:
        with pytest.raises(ModelNotUsable, match=reason):
            await engine.ready(READY_S)


async def test_stopping_leaves_nothing_of_it(options: LaunchOptions) -> None:
    """Not even what ignores SIGTERM, or left its group."""
    with coverage_enabled():
        async with serving(options) as engine:
            pids = (await engine_status(engine))["pids"]
            running = engine.generate(make_request("go on"))
            await until_it_writes(running)
    with pytest.raises(EngineLost, match="The engine is stopped"):
        await reply_of(running)
    assert [has_ended(pid, 0) for pid in pids] == [True, True, True]
    assert engine.status.state is EngineState.STOPPED


async def test_a_gateway_that_is_killed_leaves_nothing_of_it(options: LaunchOptions) -> None:
    command = [sys.executable, "-c", GATEWAY, msgspec.json.encode(options).decode()]
    gateway = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=subprocess.PIPE)
    assert gateway.stdout is not None
    url, key = (await gateway.stdout.readline()).decode().strip().split(" ", 1)
    requested = {"messages": [{"role": "user", "content": "who are you"}]}
    async with httpx.AsyncClient(trust_env=False) as client:
        body = (
            await client.post(f"{url}chat/completions", json=requested, headers={"Authorization": key})
        ).text
    first = json.loads(body.partition("data: ")[2].partition("\n")[0])
    pids = json.loads(first["choices"][0]["delta"]["content"])["pids"]
    gateway.kill()
    await gateway.wait()
    assert [has_ended(pid) for pid in pids] == [True, True, True]


async def test_one_whose_keeper_is_killed_leaves_nothing_of_its_group(options: LaunchOptions) -> None:
    async with serving(options) as engine:
        pid, child, alone = (await engine_status(engine))["pids"]
        os.kill(os.getpgid(pid), signal.SIGKILL)
        assert await asyncio.to_thread(has_ended, pid)
        assert await asyncio.to_thread(has_ended, child)
        os.kill(alone, signal.SIGKILL)  # it left the group, and nobody is there to whom it falls
        assert (await reply_of(engine.generate(make_request("hello", "next"))))[0] == "Hello."


async def test_one_that_answers_nothing_any_more_is_ended(
    options: LaunchOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient = msgspec.structs.replace
    upstream_of = vllm.upstream_of

    def quick(options: LaunchOptions) -> Any:
        upstream = upstream_of(options)
        return impatient(upstream, timeouts=impatient(upstream.timeouts, health_s=0.05, connect_s=0.5))

    monkeypatch.setattr(vllm, "upstream_of", quick)
    async with serving(options, stalled_s=0.1) as engine:
        before = (await engine_status(engine))["pids"]
        with pytest.raises(EngineLost):
            await reply_of(engine.generate(make_request("stall")))
        assert (await reply_of(engine.generate(make_request("hello", "next"))))[0] == "Hello."
        assert engine.status.restarts == 1
        assert all(has_ended(pid) for pid in before[:2])
