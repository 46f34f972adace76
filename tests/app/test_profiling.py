"""Profiles: the sampler's view, the file that tools open, and the signal that starts one."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from app.operations.profiling import MOST_FILES, Profiler, speedscope, write
from engine import profiler
from engine.profiler import Frame, Profile, Stack, Thread, profile
from engine.scripted import ScriptedEngine
from tests.server_process import ServerProcess, serving

SMALL = Profile(
    frames=(Frame("main", "a.py", 1), Frame("work", "a.py", 9)),
    threads=(Thread("MainThread", (Stack((0,), 1), Stack((0, 1), 3))),),
    interval_s=0.01,
)


def busy(stop: threading.Event) -> None:
    """Work that the sampler can see."""
    while not stop.is_set():
        sum(range(1000))


def test_a_busy_function_is_what_is_seen_most() -> None:
    stop = threading.Event()
    worker = threading.Thread(target=busy, args=(stop,), name="worker")
    worker.start()
    try:
        seen = profile(0.5)
    finally:
        stop.set()
        worker.join()
    (thread,) = (one for one in seen.threads if one.name == "worker")
    names = [[seen.frames[place].name for place in stack.frames] for stack in thread.stacks]
    assert all("busy" in stack for stack in names if "run" in stack)
    assert sum(stack.seen for stack in thread.stacks) * seen.interval_s > 0.25
    assert threading.current_thread().name not in {one.name for one in seen.threads}


def test_a_stopped_profile_ends_at_once() -> None:
    stop = threading.Event()
    stop.set()
    started = time.monotonic()
    assert profile(60, stop).threads == ()
    assert time.monotonic() - started < 5


def test_different_stacks_are_bounded_in_number_and_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    def deep(left: int, stop: threading.Event) -> None:
        deep(left - 1, stop) if left else stop.wait()

    monkeypatch.setattr(profiler, "MOST_STACKS", 2)
    stop = threading.Event()
    threads = [threading.Thread(target=deep, args=(left, stop)) for left in (300, 3, 4, 5)]
    for thread in threads:
        thread.start()
    try:
        seen = profile(0.2)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    stacks = [stack for thread in seen.threads for stack in thread.stacks]
    assert len(stacks) == 2
    assert max(len(stack.frames) for stack in stacks) <= profiler.DEEPEST
    assert seen.dropped > 0


def test_the_file_is_what_speedscope_reads() -> None:
    """By its schema: samples are indices of the shared frames, each with its weight; the weights sum up to the end."""
    reported = speedscope("one", [("gateway", SMALL), ("engine 0", SMALL)])
    assert reported["shared"]["frames"] == [
        {"name": "main", "file": "a.py", "line": 1},
        {"name": "work", "file": "a.py", "line": 9},
    ]
    assert [one["name"] for one in reported["profiles"]] == ["gateway: MainThread", "engine 0: MainThread"]
    for one in reported["profiles"]:
        assert (one["type"], one["unit"], one["endValue"]) == ("sampled", "seconds", 0.04)
        assert (one["samples"], one["weights"]) == ([[0, 1], [0]], [0.03, 0.01])


def test_old_files_make_room_for_new_ones(tmp_path: Path) -> None:
    written = [write(tmp_path / "profiles", [("gateway", SMALL)]) for _ in range(MOST_FILES + 5)]
    assert sorted((tmp_path / "profiles").iterdir()) == written[-MOST_FILES:]


async def test_a_second_wish_is_told_that_the_first_is_under_way(tmp_path: Path) -> None:
    profiler = Profiler(tmp_path, ScriptedEngine(), seconds=0.1)
    with capture_logs() as log:
        assert (profiler.request(), profiler.request()) == (True, False)
    assert [line["event"] for line in log] == ["profile already running"]


def test_a_signal_has_gateway_and_engine_profiled(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        os.kill(
            server.engine_pid(), signal.SIGUSR1
        )  # systemd sends it to all processes, unless told otherwise
        server.send(signal.SIGUSR1)
        line = logged(server, "profile written")
        path = Path(line["file"])
        assert path.parent == tmp_path / "data" / "profiles"
        reported = json.loads(path.read_bytes())
        names = {one["name"] for one in reported["profiles"]}
        assert {"gateway: MainThread", "engine 0: MainThread", "engine 0: dispatcher"} <= names
        seen = {frame["name"] for frame in reported["shared"]["frames"]}
        assert "StepLoop.run_once" in seen
        longest = max(one["endValue"] for one in reported["profiles"])
        assert longest > 8.0, "ten seconds, where a look of a busy machine may come late"
        assert server.is_ready()


async def test_a_folder_that_can_not_be_written_is_told_and_the_next_wish_is_heard(tmp_path: Path) -> None:
    (tmp_path / "profiles").write_text("in the way")
    profiler = Profiler(tmp_path / "profiles", ScriptedEngine(), seconds=0.05)
    running = asyncio.create_task(profiler.run())
    with capture_logs() as log:
        for _ in range(2):
            while not profiler.request():  # noqa: ASYNC110 - the log is its event
                await asyncio.sleep(0.01)
        while sum(line["event"] == "profile failed" for line in log) < 2:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)
    running.cancel()
    assert next(line for line in log if "reason" in line)["reason"].endswith("profiles")


async def test_whatever_goes_wrong_ends_nothing_and_the_next_wish_is_heard(tmp_path: Path) -> None:
    profiler = Profiler(tmp_path / "no\0name", ScriptedEngine(), seconds=0.05)
    running = asyncio.create_task(profiler.run())
    with capture_logs() as log:
        assert profiler.request()
        while not profiler.request():
            await asyncio.sleep(0.01)
            assert not running.done()
    running.cancel()
    assert [line["log_level"] for line in log if line["event"] == "profile failed"] == ["error"]


def logged(server: ServerProcess, event: str) -> dict[str, Any]:
    """Wait for a line of the log."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for line in server.log.read_text().splitlines():
            if line.startswith("{") and (found := json.loads(line))["event"] == event:
                return dict(found)
        time.sleep(0.1)  # another process has no event to wait for
    raise AssertionError(server.log.read_text())
