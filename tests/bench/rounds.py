"""Gives each server its turn, in rounds, and reports progress. One server runs at a time."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence

import msgspec

from tests.bench.processes import MeasurementFailed, observe, running
from tests.bench.records import Job, Measure, Observed, ServerApi
from tests.bench.report import Turn
from tests.bench.servers import Contender, ServerLocation
from tests.bench.statistics import Figures, figures
from tests.bench.workload import Level, Workload
from tests.server_process import free_port

JOB_S = 90.0
STOPPED_TOKENS = 512
"""Requested tokens of a reply that is cancelled: more than are made until then."""

Progress = Callable[[str], None]


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """The conditions that all servers share. `model` is a folder."""

    model: str
    device: str
    dtype: str


def rounds(
    contenders: Sequence[Contender], workload: Workload, setup: Setup, *, progress: Progress
) -> tuple[Turn, ...]:
    """Give every contender a turn, then again, as often as the workload says and its budget allows."""
    turns: list[Turn] = []
    started = time.monotonic()
    for number in range(workload.rounds):
        elapsed = time.monotonic() - started
        if number and elapsed * (number + 1) / number > workload.budget_s:
            progress(f"No time for another round: {number} of {workload.rounds} are done.")
            break
        for contender in contenders:
            progress(f"Round {number + 1} of {workload.rounds}: {contender.title}")
            turns.append(_turn(contender, workload, setup, number, progress))
    return tuple(turns)


def _turn(contender: Contender, workload: Workload, setup: Setup, number: int, progress: Progress) -> Turn:
    levels: dict[int, Figures] = {}
    failures: list[str] = []
    start_s = None
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="midstream-bench-") as folder:
        place = ServerLocation(port=free_port(), folder=folder, **msgspec.structs.asdict(setup))
        try:
            with running(contender, place) as pid:
                start_s = round(time.monotonic() - started, 1)
                server = _RunningServer(contender, workload, place, pid)
                server.warm_up()
                for level in workload.levels:
                    progress(f"  {server.measure(level, levels)}")
        except MeasurementFailed as failure:
            failures.append(str(failure))
            progress(f"  failed: {failure}")
    return Turn(
        contender=contender.name, round=number, start_s=start_s, levels=levels, failures=tuple(failures)
    )


class _RunningServer:
    """A running server and its jobs. Every method raises MeasurementFailed."""

    def __init__(self, contender: Contender, workload: Workload, place: ServerLocation, pid: int) -> None:
        self._contender = contender
        self._workload = workload
        self._place = place
        self._pid = pid

    def warm_up(self) -> None:
        """Run the first, slow steps of all sizes."""
        self._do(Measure.LOAD, Level(1, 1), self._workload.warm_up_tokens)
        self._do(Measure.LOAD, Level(self._workload.most_clients, 1), self._workload.warm_up_tokens)

    def measure(self, level: Level, levels: dict[int, Figures]) -> str:
        """Measure a level into `levels`, so that what was measured before a failure is kept; say how it went."""
        silenced = stopped = Observed()
        load = self._do(Measure.LOAD, level, self._workload.max_new_tokens)
        levels[level.clients] = figures(load, stopped, silenced)
        silenced = self._do(Measure.STOP_ALL, level, STOPPED_TOKENS)
        levels[level.clients] = figures(load, stopped, silenced)
        if self._contender.api is ServerApi.WEBSOCKET:  # nothing answers a closed HTTP connection
            stopped = self._do(Measure.STOP_ONE, level, STOPPED_TOKENS)
            levels[level.clients] = figures(load, stopped, silenced)
        return _summary(level, levels[level.clients])

    def _do(self, measure: Measure, level: Level, tokens: int) -> Observed:
        return observe(
            Job(
                measure=measure,
                api=self._contender.api,
                url=self._place.url,
                model=self._place.model,
                pid=self._pid,
                clients=level.clients,
                replies=level.replies,
                max_new_tokens=tokens,
                cancel_after_texts=self._workload.cancel_after_texts,
                limit_s=JOB_S,
            )
        )


def _summary(level: Level, shown: Figures) -> str:
    first, silent = shown.first_token_p50_ms, shown.silent_ms
    return (
        f"{level.clients:>2} at once: {shown.tokens_per_s or 0:,.0f} tokens/s, "
        f"first token {'n/a' if first is None else f'{first:,.0f} ms'}, "
        f"idle after a stop {'n/a' if silent is None else f'{silent:,.0f} ms'}"
    )
