"""Starts, stops, stalls and crashes of the engine's process, each with a process of its own."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import sys
from pathlib import Path

import msgspec
import pytest

from engine.api import EngineState
from engine.errors import EngineLost, EngineUnavailable, ModelNotUsable
from engine.machine import EngineOptions
from engine.messages import Finished, Params, Request
from engine.process.client import EngineClient
from engine.process.supervision import HeartbeatOptions, RestartPolicy
from tests.engine.replies import HELLO, has_ended

ENDLESS = Request("r", HELLO, Params(max_new_tokens=4000))

GATEWAY = """
import asyncio, sys
from engine.process.client import EngineClient
from engine.machine import EngineOptions

async def main():
    async with EngineClient(EngineOptions(model=sys.argv[1], device="cpu")).running() as engine:
        await engine.ready()
        print(engine.pid, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def client_of(model: Path, **settings: object) -> EngineClient:
    return EngineClient(EngineOptions(model=str(model), device="cpu", max_batch=2), **settings)  # type: ignore[arg-type]


async def test_stopping_loses_what_ran_and_leaves_no_process(tiny_llama: Path) -> None:
    async with client_of(tiny_llama).running() as engine:
        await engine.ready(timeout_s=100)
        stream, pid = engine.generate(ENDLESS), engine.pid
    assert pid is not None
    assert has_ended(pid, 0)
    assert engine.status.state is EngineState.STOPPED
    assert engine.pid is None
    with pytest.raises(EngineLost):
        async for _ in stream:
            pass
    with pytest.raises(EngineUnavailable):
        engine.generate(ENDLESS)


async def test_stopping_during_the_load_leaves_no_process(tiny_llama: Path) -> None:
    async with client_of(tiny_llama).running() as engine:
        waiting, counting = engine.generate(ENDLESS), asyncio.ensure_future(engine.count_tokens(HELLO))
        with pytest.raises(EngineUnavailable, match="not ready yet"):
            await engine.ready(timeout_s=0.5)
        pid = engine.pid
    assert pid is not None
    assert has_ended(pid, 0)
    with pytest.raises(EngineLost):
        await anext(waiting)
    with pytest.raises(EngineUnavailable):
        await counting


async def test_a_model_that_is_not_there_is_told_without_a_traceback(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async with client_of(tmp_path / "nowhere").running() as engine:
        with pytest.raises(ModelNotUsable, match="nowhere"):
            await engine.ready(timeout_s=100)
        assert engine.status.state is EngineState.FAILED
        with pytest.raises(EngineUnavailable, match="nowhere"):
            engine.generate(ENDLESS)
        with pytest.raises(EngineUnavailable, match="nowhere"):
            await engine.count_tokens(HELLO)
    assert "Traceback" not in capfd.readouterr().err


async def test_a_stalled_process_is_replaced_and_one_that_does_not_listen_is_killed_at_the_stop(
    tiny_llama: Path,
) -> None:
    heartbeat = HeartbeatOptions(interval_s=0.1, misses=40)
    async with client_of(tiny_llama, heartbeat=heartbeat, stop_deadline_s=0.1).running() as engine:
        await engine.ready(timeout_s=100)
        stalled = engine.pid
        assert stalled is not None
        stream = engine.generate(ENDLESS)
        await anext(stream)
        os.kill(stalled, signal.SIGSTOP)
        with pytest.raises(EngineLost, match="answered nothing"):
            async for _ in stream:
                pass
        await engine.ready(timeout_s=100)
        replacement = engine.pid
        assert replacement not in {None, stalled}
        os.kill(replacement, signal.SIGSTOP)
    assert has_ended(replacement, 0)


HANGING_DEVICE = """
import threading
from engine.process.dispatcher import StepLoop

class Hangs:
    def __init__(self, core):
        self.core = core
    def __getattr__(self, name):
        return getattr(self.core, name)
    def step(self):
        outputs = self.core.step()
        if any(output.request_id == "hangs" for output in outputs):
            threading.Event().wait()
        return outputs

begin = StepLoop.__init__
StepLoop.__init__ = lambda loop, core, *others, **more: begin(loop, Hangs(core), *others, **more)
"""
"""What Python runs at its start, here: the second step of one request never ends, as on a device that hangs."""


async def test_a_process_whose_step_hangs_is_replaced_though_it_answers(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "sitecustomize.py").write_text(HANGING_DEVICE)
    inherited = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{inherited}")
    heartbeat = HeartbeatOptions(interval_s=0.1, misses=100, step_timeout_s=2)
    async with client_of(tiny_llama, heartbeat=heartbeat).running() as engine, asyncio.timeout(100):
        await engine.ready()
        hangs, hung = engine.generate(msgspec.structs.replace(ENDLESS, request_id="hangs")), engine.pid
        with pytest.raises(EngineLost, match="did not end within 2 s"):
            async for _ in hangs:
                pass
        *_, end = [output async for output in engine.generate(Request("r", HELLO, Params(max_new_tokens=3)))]
        assert isinstance(end, Finished)
        assert engine.pid != hung
    assert hung is not None
    assert has_ended(hung, 0)
    assert "a step of the engine did not end" in caplog.text.lower()


async def test_deaths_and_failed_restarts_end_in_failure(tiny_llama: Path, tmp_path: Path) -> None:
    """A model that was served and cannot be loaded again may come back: it is tried as often as after a crash."""
    model = shutil.copytree(tiny_llama, tmp_path / "model")
    policy = RestartPolicy(first_delay_s=0.01, deaths=2)
    async with client_of(model, restarts=policy).running() as engine:
        await engine.ready(timeout_s=100)
        shutil.rmtree(model)
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)
        with pytest.raises(EngineLost, match="SIGKILL"):
            await anext(engine.generate(Request("lost", HELLO)))
        waiting = engine.generate(ENDLESS)
        with pytest.raises(EngineLost, match="too often"):
            await anext(waiting)
        with pytest.raises(EngineUnavailable, match="exit code 3"):
            await engine.ready()


async def test_a_killed_gateway_takes_its_engine_along(tiny_llama: Path) -> None:
    gateway = await asyncio.create_subprocess_exec(
        sys.executable, "-c", GATEWAY, str(tiny_llama), stdout=asyncio.subprocess.PIPE
    )
    assert gateway.stdout is not None
    pid = int(await gateway.stdout.readline())
    gateway.kill()
    await gateway.wait()
    assert has_ended(pid, 10)


async def test_a_process_that_cannot_be_started_counts_as_a_death(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    async with client_of(tiny_llama, restarts=RestartPolicy(deaths=1)).running() as engine:
        with pytest.raises(EngineUnavailable, match="could not be started"):
            await engine.ready()


async def test_a_process_whose_gateway_closed_the_line_ends_by_itself(tiny_llama: Path) -> None:
    ours, theirs = socket.socketpair()
    options = msgspec.json.encode(EngineOptions(model=str(tiny_llama), device="cpu")).decode()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "engine.process", str(theirs.fileno()), options), pass_fds=[theirs.fileno()]
    )
    theirs.close()
    ours.recv(1)
    ours.close()
    async with asyncio.timeout(100):
        assert await process.wait() == 0
