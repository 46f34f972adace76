"""A crowd in front of real servers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

import pytest
from click.testing import CliRunner
from redis.asyncio import Redis

from engine.scripted import ScriptedEngine
from midstream.bench.command_line import bench as command
from midstream.bench.load_generator import LoadGenerator
from midstream.bench.plan import Plan
from midstream.bench.runner import BenchError, bench
from midstream.client import connect
from midstream.errors import Refused
from tests.app.in_process_service import InProcessService, serving
from tests.server_process import ServerProcess, free_port

SHORT = Plan(concurrency=3, turns=2, think_s=0.05, duration_s=1.5, drain_s=30)
LONG_REPLY = " ".join(["word"] * 400)


async def test_all_that_a_crowd_asked_is_in_the_report(running: InProcessService) -> None:
    report, curves = await bench(running.url, None, SHORT)
    replies = report["replies"]["stop"]
    assert report["errors"] == {}
    assert replies == len(running.engine.requests)
    assert report["tokens"] == replies * 10
    for name in ("accepted", "first_token", "reply"):
        assert report["durations"][name]["count"] == replies
    assert report["durations"]["ready"]["count"] == report["conversations"]
    assert replies > report["conversations"] >= 3
    assert report["unfinished"] == 0
    assert len(curves["first_token"]) == 99


async def test_a_share_of_the_replies_is_stopped_and_that_is_timed(tmp_path: Path) -> None:
    engine = ScriptedEngine(reply=LONG_REPLY, pace_s=0.002)
    async with serving(tmp_path, engine) as running:
        plan = Plan(concurrency=4, turns=3, think_s=0, cancels=1.0, duration_s=0.5, drain_s=10)
        report, _ = await bench(running.url, None, plan)
    stopped = report["replies"].pop("cancelled")
    assert report["replies"] == {}
    assert report["errors"] == {}
    assert report["durations"]["cancelled"]["count"] == report["durations"]["stopped"]["count"] == stopped
    assert report["durations"]["gap"]["count"] <= 24 * stopped


async def test_conversations_are_deleted_unless_they_are_to_be_kept(
    tmp_path: Path, store_url: str, store: Redis
) -> None:
    async with serving(tmp_path, redis_url=store_url) as running:
        await bench(running.url, None, SHORT)
        assert await stored_conversations(store) == set()
        report, _ = await bench(running.url, None, Plan(concurrency=2, duration_s=0.2, keeps=True, think_s=0))
        assert (
            0 < len(await stored_conversations(store)) <= report["conversations"]
        )  # the last ones may have said nothing


async def stored_conversations(store: Redis) -> set[str]:
    """The conversations of a crowd that the store has."""
    keys = [str(key, "utf-8") async for key in store.scan_iter(match="ms:{*/bench-*}")]
    return {key for key in keys if key.endswith("}")}


@pytest.mark.parametrize("lag_s", [0, 1.2], ids=["quick", "lagging"])
async def test_conversations_come_as_often_as_asked_however_slow_the_server_is(
    tmp_path: Path, lag_s: float
) -> None:
    """That holds for this program too: who was due meanwhile comes late, even when the time is over."""
    async with serving(tmp_path, ScriptedEngine(by_hand=True)) as running:  # it never answers
        plan = Plan(rate=100, at_most=5, duration_s=1.0, drain_s=0)
        asyncio.get_running_loop().call_later(0.5, time.sleep, lag_s)
        report, _ = await bench(running.url, None, plan)
    assert report["conversations"] == report["unfinished"] == 5
    assert report["left_out"] == 90  # 95 come within a second by the plan's seed
    assert report["replies"] == {}
    assert any("left out" in warning for warning in report["warnings"])


async def test_refusals_are_counted_by_their_codes_and_make_no_storm(tmp_path: Path) -> None:
    async with serving(tmp_path, messages_per_minute=1) as running:
        report, _ = await bench(running.url, None, Plan(concurrency=2, turns=5, think_s=0, duration_s=1.0))
    assert report["replies"] == {"stop": 2}
    assert report["errors"] == {"rate_limited": 2}


async def test_nobody_at_an_address_is_told_before_anything_begins() -> None:
    with pytest.raises(BenchError, match="Nothing listens"):
        await bench(f"127.0.0.1:{free_port()}", None, SHORT)


async def test_who_is_refused_is_told_how_to_give_a_key(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("ann:" + "0" * 64 + ":personal\n")
    async with serving(tmp_path / "data", api_keys=str(keys)) as running:
        with pytest.raises(BenchError, match=r"unauthenticated.*--key"):
            await bench(running.url, None, SHORT)
        with pytest.raises(BenchError, match="unauthenticated"):
            await bench(running.url, "wrong", SHORT)


async def test_a_model_that_is_not_served_is_told(running: InProcessService) -> None:
    with pytest.raises(BenchError, match="serves no model 'other'"):
        await bench(running.url, None, Plan(concurrency=1, model="other"))


async def test_a_server_that_goes_is_counted_as_lost_connections(tmp_path: Path) -> None:
    async with serving(tmp_path, ScriptedEngine(by_hand=True)) as running:
        crowd = LoadGenerator(running.ws_url, None, Plan(concurrency=3, duration_s=5, drain_s=5))
        task = asyncio.create_task(crowd.run())
        while len(running.engine.requests) < 3:  # noqa: ASYNC110 - an engine has no event for it
            await asyncio.sleep(0)
        running.service.stop()
        while crowd.results.errors.total() + crowd.results.replies < 3:  # noqa: ASYNC110 - nor has a tally
            await asyncio.sleep(0.01)
        crowd.stop()
        await task
    assert crowd.results.ends["interrupted"] + crowd.results.errors.total() >= 3


def test_the_command_writes_its_report_wherever_it_is_told(server: ServerProcess, tmp_path: Path) -> None:
    files = {"--json": tmp_path / "report.json", "--html": tmp_path / "report.html"}
    named = [part for option, path in files.items() for part in (option, str(path))]
    plan = ["--duration-s", "1", "--think-s", "0", "--cancel", "0.5", "--max-new-tokens", "40"]
    ended = CliRunner().invoke(command, ["--url", server.url, *plan, *named], catch_exceptions=False)
    assert ended.exit_code == 0, ended.output
    report = json.loads(files["--json"].read_text())
    assert report["model"] == "midstream-demo"
    assert sum(report["replies"].values()) > 0
    assert f"{report['tokens']:,} tokens" in ended.output
    assert files["--html"].read_text().startswith("<!doctype html>")


def test_ctrl_c_ends_it_with_the_report(server: ServerProcess, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    options = ["--url", server.url, "--duration-s", "600", "--json", str(file), "--max-new-tokens", "8"]
    with subprocess.Popen(
        [sys.executable, "-m", "app", "bench", *options, "--think-s", "0", "--concurrency", "1"],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ,
    ) as process:
        asyncio.run(talked(server))
        process.send_signal(signal.SIGINT)
        reported, complained = process.communicate(timeout=60)
    assert process.returncode == 0, complained
    assert "stopping" in complained
    assert json.loads(file.read_text())["lasted_s"] < 100
    assert "tokens/s of a reply" in reported


async def talked(server: ServerProcess) -> None:
    """Waits until a bench has had replies."""

    def count() -> float:
        page = urlopen(f"{server.url}/metrics").read().decode()
        line = next(
            one for one in page.splitlines() if one.startswith('midstream_turns_total{reason="length"}')
        )
        return float(line.split()[1])

    before = count()
    while count() < before + 3:  # noqa: ASYNC110 - another process has no event for it
        await asyncio.sleep(0.1)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--rate", "1", "--concurrency", "2"], "give one"),
        (["--prompts", "/nowhere"], "can't be read"),
        (["--html", "/nowhere/report.html"], "/nowhere/report.html"),
        (["--cancel", "2"], "--cancel"),
    ],
)
def test_what_can_not_be_done_is_told_before_anything_begins(options: list[str], complaint: str) -> None:
    ended = CliRunner().invoke(command, options)
    assert ended.exit_code != 0
    assert complaint in ended.output


async def test_what_a_crowd_leaves_is_gone(running: InProcessService) -> None:
    before = asyncio.all_tasks()
    await bench(running.url, None, SHORT)
    await asyncio.sleep(0)
    assert {task for task in asyncio.all_tasks() - before if "bench" in str(task.get_coro())} == set()
    async with connect(running.ws_url) as client:
        with pytest.raises(Refused):
            await client.delete("bench-0")
