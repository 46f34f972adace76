"""Draws what the dashboard's panels ask, of a real run: `python -m tests.deploy.dashboard_panels` writes `docs/pictures/panels.webp`.

A real Prometheus watches two replicas with the demo model for some minutes, while people talk, stop replies, and some are
refused. Grafana is not asked: its panels' own expressions are, and matplotlib draws the answers in the same places.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import count
from math import isnan
from pathlib import Path
from random import Random
from typing import Any

import matplotlib as mpl
from matplotlib import dates
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from tests.chaos.store_server import store_server
from tests.deploy.prometheus import running_prometheus
from tests.deploy.test_monitoring import DASHBOARD
from tests.e2e.websocket_client import WebSocketClient, connect_client, has_text, is_end_of
from tests.server_process import serving

PICTURE = Path(__file__).parents[2] / "docs" / "pictures" / "panels.webp"
PEOPLE = 10
LOOK_BACK = "15s"
STEP_S = 1.0
UNITS = {"s": EngFormatter("s"), "bytes": EngFormatter("B"), "Bps": EngFormatter("B/s"), "short": EngFormatter()}  # fmt: skip
COLUMNS, UNIT_INCHES = 24, (0.62, 0.34)
QUESTIONS = ("What is {} plus 4?", "Count from 1 to {}.", "Name {} birds.")
MOST_SERIES = 8


def main() -> None:
    """Run, ask, draw."""
    parser = argparse.ArgumentParser(prog="python -m tests.deploy.dashboard_panels", description=__doc__)
    parser.add_argument("--seconds", type=float, default=150.0, help="how long people talk (150)")
    parser.add_argument("--into", type=Path, default=PICTURE)
    options = parser.parse_args()
    panels = json.loads(DASHBOARD.read_text())["panels"]
    draw(panels, watched(panels, options.seconds), options.into)


def watched(panels: Sequence[Mapping[str, Any]], seconds: float) -> dict[str, list[dict[str, Any]]]:
    """What each expression gave over the run, by the expression."""
    with tempfile.TemporaryDirectory(prefix="midstream-panels-") as name, ExitStack() as stack:
        folders = [Path(name) / part for part in ("one", "two", "prometheus")]
        for folder in folders:
            folder.mkdir()
        store = stack.enter_context(store_server(Path(name) / "store"))
        environ = {"MIDSTREAM_REDIS_URL": store.url, "MIDSTREAM_MAX_BATCH": "4", "MIDSTREAM_LIMITS": "key_messages_per_minute=12"}  # fmt: skip
        servers = [stack.enter_context(serving(folder, environ)) for folder in folders[:2]]
        targets = [f"127.0.0.1:{server.port}" for server in servers]
        prometheus = stack.enter_context(running_prometheus(folders[2], targets))
        prometheus.until(lambda: len(prometheus.query("up offset 3s")) == len(targets), "nothing was scraped")
        started = time.time()
        asyncio.run(_run_clients([server.ws_url for server in servers], seconds))
        return {
            expression: prometheus.query_range(expression, started, time.time(), STEP_S)
            for panel in panels
            for expression in map(expression_of, panel.get("targets", ()))
        }


def expression_of(target: Mapping[str, Any]) -> str:
    """A panel's expression, with its variables filled in as Grafana does."""
    return str(target["expr"]).replace("$__rate_interval", LOOK_BACK).replace("$instance", ".*")


async def _run_clients(urls: Sequence[str], seconds: float) -> None:
    people = [
        asyncio.create_task(_client(urls[number % len(urls)], number, Random(number)))
        for number in range(PEOPLE)
    ]
    await asyncio.wait(people, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    for one in people:
        one.cancel()
    ended = await asyncio.gather(*people, return_exceptions=True)
    if failures := [failure for failure in ended if isinstance(failure, Exception)]:
        raise failures[0]


async def _client(url: str, number: int, draw: Random) -> None:
    """Comes some seconds behind the others, asks, reads, stops now and then, rests, and leaves at the end."""
    await asyncio.sleep(3.0 * number)
    async with connect_client(url, f"person-{number}") as line:
        for turn in count():
            question = draw.choice(QUESTIONS).format(draw.randrange(20, 200))
            await _turn(line, question, stops=draw.random() < 0.25)
            await asyncio.sleep(draw.uniform(0.5, 5.0) if turn % 6 else 15.0)


async def _turn(line: WebSocketClient, question: str, *, stops: bool) -> None:
    answer = await line.send_message(question)
    if answer["type"] == "error":  # it has sent too many in this minute
        return
    turn_id = answer["turn_id"]
    if stops:
        await line.until(has_text(turn_id, 10))
        await line.put(type="cancel", turn_id=turn_id)
    await line.until(is_end_of(turn_id))


def draw(
    panels: Sequence[Mapping[str, Any]], answers: Mapping[str, list[dict[str, Any]]], into: Path
) -> None:
    """Lay the panels out as the dashboard does."""
    mpl.rcParams.update({"font.size": 8, "axes.spines.top": False, "axes.spines.right": False})
    lines = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    figure = Figure(figsize=(COLUMNS * UNIT_INCHES[0], lines * UNIT_INCHES[1]), layout=None)
    for panel in panels:
        place = panel["gridPos"]
        left, top = place["x"] / COLUMNS, 1 - place["y"] / lines
        if panel["type"] == "row":
            figure.text(0.01, top - 0.8 / lines, panel["title"], weight="bold", size=12)
            continue
        box = (left + 0.035, top - (place["h"] - 1.1) / lines, place["w"] / COLUMNS - 0.05, (place["h"] - 2.6) / lines)  # fmt: skip
        _panel(figure.add_axes(box), panel, answers)
    figure.savefig(into, dpi=110, pil_kwargs={"quality": 80, "method": 6})


def _panel(axes: Axes, panel: Mapping[str, Any], answers: Mapping[str, list[dict[str, Any]]]) -> None:
    axes.set_title(panel["title"], loc="left", size=9)
    series = [
        (_legend(target["legendFormat"], one["metric"]), one["values"])
        for target in panel["targets"]
        for one in answers[expression_of(target)]
    ]
    if panel["type"] == "stat":
        words = "  ".join(f"{float(values[-1][1]):.3g} {label}" for label, values in series)
        axes.text(0.5, 0.5, words, ha="center", va="center", size=20)
        axes.set_axis_off()
        return
    axes.set_xticks([])
    axes.set_yticks([])
    if not series:
        axes.text(0.5, 0.5, "nothing was counted", ha="center", color="gray")
        return
    for label, points in sorted(series, key=_height, reverse=True)[:MOST_SERIES]:
        moments = [dates.date2num(datetime.fromtimestamp(at, UTC)) for at, _ in points]
        shown = label if _height((label, points)) else "_"
        axes.plot(moments, [float(value) for _, value in points], label=shown, linewidth=1.2)
    axes.xaxis.set_major_formatter(dates.DateFormatter("%H:%M"))
    axes.xaxis.set_major_locator(dates.MinuteLocator())  # type: ignore[no-untyped-call]
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(UNITS[panel["fieldConfig"]["defaults"]["unit"]])
    axes.set_ylim(0, None if any(map(_height, series)) else 1)
    axes.grid(alpha=0.3)
    if any(map(_height, series)):
        axes.legend(fontsize=6, loc="upper left", frameon=False)


def _height(series: tuple[str, Sequence[tuple[float, str]]]) -> float:
    """The highest value; rates of too few calls are NaN, and count for nothing."""
    return max((value for _, text in series[1] if not isnan(value := float(text))), default=0.0)


def _legend(shape: str, labels: Mapping[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), shape)


if __name__ == "__main__":
    main()
