"""What is shipped for Prometheus and Grafana, run over real servers: every expression, and alerts in small disasters."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import urllib.request
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from app.settings import option_kinds
from tests.chaos.gateway import UNHURRIED, Script, command
from tests.chaos.minimal_websocket import MinimalWebSocket
from tests.deploy.prometheus import (
    PROMETHEUS,
    PROMTOOL,
    RULES,
    WAIT_S,
    Prometheus,
    hurried,
    rules,
    running_prometheus,
)
from tests.deploy.reverse_proxy import DEPLOY
from tests.deploy.test_alert_times import LEVELS
from tests.e2e.websocket_client import WebSocketClient, connect_client, has_text, is_end_of
from tests.server_process import ServerProcess, child_of, serving

RUNBOOK = DEPLOY.parent / "docs" / "runbook.md"
DASHBOARD = DEPLOY / "grafana" / "dashboards" / "midstream.json"
GRAFANAS_COLUMNS = 24
SEEN_IN_TROUBLE = "midstream_closes_total"
"""What has no series before the first is counted."""
OF_A_BUSY_MACHINE = {
    *("MidstreamStoreSlow", "MidstreamFirstTokenLate", "MidstreamDeltasLate", "MidstreamEventLoopLate"),
    "MidstreamRepliesWait",
}
"""What a test can't exclude, as others may work beside it."""
SCRIPT = Script(words=20_000, word="x" * 4_000, pace_s=0.02, hurry=1.0)
SLOW_READERS = 8
LONG = "Count from 1 to 500."

pytestmark = pytest.mark.skipif(
    PROMETHEUS is None,
    reason="prometheus is NOT INSTALLED: alerts and dashboard go untested (apt install prometheus)",
)


class Watched(NamedTuple):
    """A Prometheus over a server with the demo model, and over one whose engine follows a script."""

    prometheus: Prometheus
    server: ServerProcess
    scripted: ServerProcess


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory, restartable_server: ServerProcess) -> Iterator[Watched]:
    folder, theirs = tmp_path_factory.mktemp("prometheus"), tmp_path_factory.mktemp("scripted")
    few = {
        "MIDSTREAM_MAX_TURNS": "12",
        "MIDSTREAM_MAX_CLIENT_CONNECTIONS": "50",
        "MIDSTREAM_DRAIN_TIMEOUT": "60",
    }
    restartable_server.bring_back()
    with serving(theirs, UNHURRIED | few, command=command(SCRIPT)) as scripted:
        targets = [f"127.0.0.1:{one.port}" for one in (restartable_server, scripted)]
        with running_prometheus(folder, targets) as prometheus:
            yield Watched(prometheus, restartable_server, scripted)
        if scripted.process is not None and scripted.process.poll() is None:
            scripted.kill()  # its replies are long


def expressions() -> dict[str, str]:
    """What the panels ask, by the panel's title; variables are filled in as Grafana does."""
    found = {}
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"].replace("$__rate_interval", "30s").replace("$instance", ".*")
            found[f"{panel['title']} {target['refId']}"] = hurried(expression)
    return found


def test_promtool_takes_the_rules_and_the_configuration() -> None:
    for what, file in (("rules", RULES), ("config", RULES.with_name("prometheus.yml"))):
        checked = subprocess.run(
            [str(PROMTOOL), "check", what, file], capture_output=True, text=True, check=False
        )
        assert checked.returncode == 0, checked.stdout + checked.stderr


def test_every_alert_says_what_to_do() -> None:
    for rule in rules():
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert set(rule["annotations"]) == {"summary", "description"}


def test_the_runbook_has_an_entry_for_each_alert() -> None:
    entries = re.findall(r"^### (Midstream\w+)$", RUNBOOK.read_text(), re.MULTILINE)
    assert sorted(entries) == sorted(rule["alert"] for rule in rules())


def test_the_runbook_names_metrics_and_settings_that_are_there() -> None:
    metrics_page = RUNBOOK.with_name("metrics.md").read_text()
    named = set(re.findall(r"`(midstream_\w+)", RUNBOOK.read_text()))
    assert named
    assert {name for name in named if f"`{name}`" not in metrics_page} == set()
    settings = set(re.findall(r"MIDSTREAM_(\w+)", RUNBOOK.read_text()))
    assert {name.lower() for name in settings} <= option_kinds().keys()


def test_every_alert_is_seen_to_fire() -> None:
    """In a disaster of its own, or over made-up values if it is for slow ones."""
    here = set(re.findall(r'"(Midstream\w+)"', Path(__file__).read_text().partition("fires(watched")[2]))
    assert here | LEVELS.keys() == {rule["alert"] for rule in rules()}


def test_alerts_ask_for_metrics_that_are_there() -> None:
    metrics_page = RUNBOOK.with_name("metrics.md").read_text()
    named = {name for rule in rules() for name in re.findall(r"midstream_\w+", rule["expr"])}
    metrics = {re.sub("_(bucket|count)$", "", name) for name in named}
    assert {name for name in metrics if f"`{name}`" not in metrics_page} == set()


def test_panels_have_their_own_places_and_say_what_they_show() -> None:
    panels = [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]
    assert all(panel["description"] and panel["title"] for panel in panels)
    taken = [
        (column, line)
        for place in (panel["gridPos"] for panel in panels)
        for column in range(place["x"], place["x"] + place["w"])
        for line in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(taken)) == len(taken)


def test_the_dashboard_keeps_to_what_grafana_takes() -> None:
    """Its own check can't be run here: ids are unique, rows among them, each query has a letter and a source."""
    dashboard = json.loads(DASHBOARD.read_text())
    panels, variables = dashboard["panels"], {one["name"] for one in dashboard["templating"]["list"]}
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= GRAFANAS_COLUMNS
        assert panel["type"] in {"row", "stat", "timeseries"}
        targets = panel.get("targets", [])
        assert (panel["type"] == "row") == (not targets)
        assert len({target["refId"] for target in targets}) == len(targets)
        if targets:
            assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            assert panel["fieldConfig"]["defaults"]["unit"] in {"s", "short", "bytes", "Bps"}
        for target in targets:
            used = set(re.findall(r"\$(\w+)", target["expr"])) - {"__rate_interval"}
            assert used <= variables


def test_grafana_is_told_where_both_are() -> None:
    provisioning = DEPLOY / "grafana" / "provisioning"
    source = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())["datasources"][0]
    provider = yaml.safe_load((provisioning / "dashboards" / "midstream.yaml").read_text())["providers"][0]
    services = yaml.safe_load((DEPLOY / "compose.monitoring.yaml").read_text())["services"]
    assert source["url"] == "http://prometheus:9090"
    assert f"./grafana/dashboards:{provider['options']['path']}:ro" in services["grafana"]["volumes"]


def test_names_are_as_promtool_wants_them(watched: Watched) -> None:
    checked = subprocess.run(
        [str(PROMTOOL), "check", "metrics"],
        input=metrics(watched.server),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def metrics(server: ServerProcess) -> str:
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=30) as answer:
        return str(answer.read().decode())


async def test_a_calm_service_has_data_in_every_panel_and_no_alert(watched: Watched) -> None:
    async with connect_client(watched.server.ws_url, "calm") as alice:
        for turn in range(3):
            await alice.chat(f"What is {turn} plus 4?")
        accepted = await alice.send_message(LONG)
        await alice.until(has_text(accepted["turn_id"], 20))
        await alice.put(type="cancel", turn_id=accepted["turn_id"])
        await alice.until(is_end_of(accepted["turn_id"]))
    prometheus, queries = watched.prometheus, expressions()
    await asyncio.to_thread(
        prometheus.until,
        lambda: empty(prometheus, queries) <= in_trouble(queries),
        "panels without data",
    )
    for rule in rules():
        prometheus.query(rule["expr"])
    assert prometheus.alerts() <= OF_A_BUSY_MACHINE


def empty(prometheus: Prometheus, queries: dict[str, str]) -> set[str]:
    """The expressions that return nothing now."""
    return {name for name, expression in queries.items() if not prometheus.query(expression)}


def in_trouble(queries: dict[str, str]) -> set[str]:
    return {name for name, expression in queries.items() if SEEN_IN_TROUBLE in expression}


async def test_readers_that_do_not_read_and_messages_beyond_the_places_are_alerted_of(
    watched: Watched,
) -> None:
    """Slow readers are cut off; and who sends more than is served is told so. Then no panel is empty any more."""
    async with going_on(keep_reading_nothing(watched.scripted.port)):
        await fires(watched, "MidstreamReadersTooSlow")
    async with connect_client(watched.scripted.ws_url, "many") as many, going_on(keep_sending(many)):
        await fires(watched, "MidstreamSheds")


@asynccontextmanager
async def going_on(disaster: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Inside the block a disaster lasts: what happens once, a Prometheus on a busy machine may look away from."""
    task = asyncio.create_task(disaster)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def keep_sending(many: WebSocketClient) -> None:
    """Asks for more replies than there are places, for as long as this runs."""
    for number in count():
        await many.send_message("More.", conversation_id=f"c{number}")


async def keep_reading_nothing(port: int) -> None:
    """Devices that are attached to a long reply and read none of it. They are cut off, and come again."""
    for crowd in count():
        async with AsyncExitStack() as stack:
            readers = []
            for _ in range(SLOW_READERS):
                one = await MinimalWebSocket.connect(("127.0.0.1", port), receive_buffer=8 * 1024)
                stack.callback(one.close)
                readers.append(one)
                await one.send_hello(client_id="slow")
            first, *others = readers
            await begin(first, conversation_id=f"long-{crowd}")
            for one in others:
                await one.put(type="history", conversation_id=f"long-{crowd}", limit=1)
            for one in readers:
                await one.until_over(within_s=WAIT_S)


async def begin(one: MinimalWebSocket, **where: str) -> None:
    """Asks for a long reply, and reads the beginning of it."""
    await one.put(
        type="send", client_msg_id="long", content="Go.", params={"max_new_tokens": SCRIPT.words}, **where
    )
    while (await one.get())["type"] != "delta":
        pass


async def fires(watched: Watched, *names: str) -> None:
    """Waits until each of these alerts has fired; what the test has begun goes on meanwhile."""
    await asyncio.to_thread(watched.prometheus.until_fires, *names)


async def test_a_store_that_stalls_is_alerted_of_with_what_it_does_to_replies(watched: Watched) -> None:
    store = store_pid(watched.scripted)
    async with connect_client(watched.scripted.ws_url, "stalled") as alice:
        accepted = await alice.send_message("Go.")
        await alice.until(has_text(accepted["turn_id"]))
        os.kill(store, signal.SIGSTOP)
        try:
            await fires(watched, "MidstreamStoreStalled", "MidstreamRepliesUnsaved")
        finally:
            os.kill(store, signal.SIGCONT)


def store_pid(server: ServerProcess) -> int:
    assert server.process is not None
    pid = child_of(server.process.pid, "valkey|redis")
    assert pid is not None
    return pid


async def test_an_engine_that_is_killed_is_alerted_of_with_the_replies_that_fail(watched: Watched) -> None:
    async with connect_client(watched.server.ws_url, "killed") as alice:
        accepted = await alice.send_message(LONG)
        await alice.until(has_text(accepted["turn_id"], 5))
        os.kill(watched.server.engine_pid(), signal.SIGKILL)
        await alice.until(is_end_of(accepted["turn_id"]))
        await fires(watched, "MidstreamEngineDown", "MidstreamEngineRestarted", "MidstreamTurnsFail")


async def test_an_event_loop_that_stands_still_is_alerted_of(watched: Watched) -> None:
    async with going_on(keep_standing_still(watched.scripted)):
        await fires(watched, "MidstreamEventLoopLate")


async def keep_standing_still(server: ServerProcess) -> None:
    """A second in three: the disaster itself."""
    while True:
        server.send(signal.SIGSTOP)
        try:
            await asyncio.sleep(1.0)
        finally:
            server.send(signal.SIGCONT)
        await asyncio.sleep(2.0)


async def test_a_drain_that_lasts_and_a_service_that_is_gone_are_alerted_of(watched: Watched) -> None:
    async with connect_client(watched.scripted.ws_url, "draining", close_timeout=0.1) as alice:
        accepted = await alice.send_message("Go.", params={"max_new_tokens": SCRIPT.words})
        assert accepted["type"] == "accepted", accepted
        watched.scripted.send(signal.SIGTERM)
        await fires(watched, "MidstreamDrainsForLong")
        watched.scripted.kill()
    await fires(watched, "MidstreamDown")
