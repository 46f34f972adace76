"""`make bench`: Midstream and two other servers of the same model, in turns; a table, and JSON."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence

import msgspec

from app.settings import DEMO_MODEL
from engine.model.devices import choose_device, choose_dtype
from tests.bench.clients import ServerApi
from tests.bench.load_generator import (
    Figures,
    Job,
    figures,
    medians,
    observe,
)
from tests.bench.report import Measured, NotInstalled, Report, run_lab
from tests.bench.servers import MIDSTREAM, SERVE, SERVE_BATCHED, Entry, Run, in_turns, running

CONTENDERS = {one.name: one for one in (MIDSTREAM, SERVE, SERVE_BATCHED)}
JOB_S = 90.0
STOPPED_TOKENS = 512
"""Requested tokens of a reply that is cancelled: more than are made until then."""
WARM_UP_TOKENS = 8
NATIVE = ServerApi.WEBSOCKET


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """The workload of every server. `levels`: by the number of clients, how many replies each asks for, one after the other."""

    levels: dict[int, int]
    max_new_tokens: int
    rounds: int
    cancel_after_texts: int


FULL = Workload(
    levels={1: 8, 8: 2, 32: 1},
    max_new_tokens=128,
    rounds=3,
    cancel_after_texts=8,
)
QUICK = Workload(levels={1: 1, 4: 1}, max_new_tokens=32, rounds=1, cancel_after_texts=4)


class Bench:
    """Measures; its report fills up. All servers have the same `setup`: model, device and dtype."""

    def __init__(self, workload: Workload, setup: dict[str, str]) -> None:
        self.report = Report(details={"workload": workload, "setup": setup})
        self._workload, self._setup = workload, setup

    def servers(self, names: Sequence[str]) -> None:
        """Measure each server as often as the workload says."""
        entries = [Entry(CONTENDERS[name], "demo") for name in names]
        runs = in_turns(entries, self._workload.rounds, self.report, self._loads)
        self.report.findings += beside(runs)

    def _loads(self, entry: Entry, _round: int) -> Iterator[tuple[str, Figures]]:
        """Yield the figures at each number of clients. Raises MeasurementFailed."""
        work, api = self._workload, entry.server.api
        with running(entry.server, **self._setup) as url:
            job = Job(
                api=api, url=url, model=self._setup["model"], clients=1, max_new_tokens=WARM_UP_TOKENS, limit_s=JOB_S
            )  # fmt: skip
            for clients in (1, max(work.levels)):  # the first, slow steps of all sizes
                observe(msgspec.structs.replace(job, clients=clients))
            for clients, replies in work.levels.items():
                job = msgspec.structs.replace(job, clients=clients, max_new_tokens=work.max_new_tokens)
                found = figures(observe(msgspec.structs.replace(job, replies=replies)))
                if api is NATIVE:  # nothing answers a closed HTTP connection
                    stop = {"cancel_after_texts": work.cancel_after_texts, "max_new_tokens": STOPPED_TOKENS}
                    found |= figures(observe(msgspec.structs.replace(job, **stop)))
                yield f"{clients} at once", found


def beside(runs: Sequence[Run]) -> Iterator[Measured]:
    """Return each figure of each load: ours, with the medians of all servers."""
    for load in dict.fromkeys(run.load for run in runs):
        some = [run for run in runs if run.load == load]
        columns = {
            name: medians([run.figures for run in some if run.server == name])
            for name in dict.fromkeys(run.server for run in some)
        }
        for figure in dict.fromkeys(figure for column in columns.values() for figure in column):
            readings = {
                CONTENDERS[name].title: column[figure] for name, column in columns.items() if figure in column
            }
            yield Measured(label=f"{load}: {figure}", value=readings.get(MIDSTREAM.title), readings=readings)


def measure(options: argparse.Namespace) -> Report:
    """Measure the chosen servers. Raises NotInstalled."""
    names = [name for name in CONTENDERS if name in options.only]
    if missing := sorted({need for name in names for need in CONTENDERS[name].missing()}):
        install = f"{sys.executable} -m pip install --constraint constraints.txt --group bench"
        raise NotInstalled(f"Not installed: {', '.join(missing)}. Run: {install}")
    device = choose_device("auto")
    dtype = str(choose_dtype("auto", device)).removeprefix("torch.")
    setup = {"model": str(DEMO_MODEL.resolve()), "device": str(device), "dtype": dtype}
    bench = Bench(QUICK if options.quick else FULL, setup)
    bench.servers(names)
    return bench.report


if __name__ == "__main__":
    sys.exit(run_lab("tests.bench", __doc__, measure, file="bench.json", parts=tuple(CONTENDERS)))
