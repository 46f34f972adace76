"""`make bench`: Midstream and two other servers of the same model, in turns; a table, and JSON.

`--only` may also name our other endpoints, to be compared with the native one (`midstream`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from functools import partial

import msgspec

from app.settings import DEMO_MODEL
from engine.model.devices import choose_device, choose_dtype
from tests.bench.clients import ServerApi
from tests.bench.load_generator import Figures, Job, figures, medians, observe
from tests.bench.report import Measured, NotInstalled, Report, run_lab
from tests.bench.servers import MIDSTREAM, SERVE, SERVE_BATCHED, Entry, Run, in_turns, model_of, running

USUAL = (MIDSTREAM, SERVE, SERVE_BATCHED)
ENDPOINTS = {
    ServerApi.CHAT: "Chat Completions",
    ServerApi.REALTIME: "Realtime",
    ServerApi.RESPONSES: "Responses",
    ServerApi.MESSAGES: "Messages",
    ServerApi.AI_SDK: "AI SDK",
}
CONTENDERS = {one.name: one for one in USUAL} | {
    str(api): msgspec.structs.replace(MIDSTREAM, name=str(api), title=title, api=api)
    for api, title in ENDPOINTS.items()
}
JOB_S = 90.0
STOPPED_TOKENS = 512
"""Requested tokens of a reply that is cancelled: more than are made until then."""
WARM_UP_TOKENS = 8


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """The workload of every server. `levels`: by the number of clients, how often all ask for a reply at once."""

    levels: dict[int, int] = msgspec.field(default_factory=lambda: {1: 8, 8: 2, 32: 1})
    max_new_tokens: int = 128
    rounds: int = 3
    cancel_after_texts: int = 8


QUICK = Workload(levels={1: 1, 4: 1}, max_new_tokens=32, rounds=1, cancel_after_texts=4)


def _loads(work: Workload, setup: dict[str, str], entry: Entry, _round: int) -> Iterator[tuple[str, Figures]]:
    """Yield a server's figures at each number of clients. Raises MeasurementFailed."""
    api = entry.server.api
    with running(entry.server, **setup) as url:
        model = setup["model"] if api is ServerApi.SSE else model_of(url)
        job = Job(api=api, url=url, model=model, clients=1, max_new_tokens=WARM_UP_TOKENS, limit_s=JOB_S)
        for clients in (1, max(work.levels)):  # the first, slow steps of all sizes
            observe(msgspec.structs.replace(job, clients=clients))
        for clients, times in work.levels.items():
            job = msgspec.structs.replace(job, clients=clients, max_new_tokens=work.max_new_tokens)
            found = medians([figures(observe(job)) for _ in range(times)])
            if api is ServerApi.WEBSOCKET:  # nothing answers a closed HTTP connection
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
    """Measure the chosen servers, all with the same model, device and dtype. Raises NotInstalled."""
    names = [name for name in CONTENDERS if name in options.only]
    if missing := sorted({need for name in names for need in CONTENDERS[name].missing()}):
        install = f"{sys.executable} -m pip install --constraint constraints.txt --group bench"
        raise NotInstalled(f"Not installed: {', '.join(missing)}. Run: {install}")
    device = choose_device("auto")
    dtype = str(choose_dtype("auto", device)).removeprefix("torch.")
    setup = {"model": str(DEMO_MODEL.resolve()), "device": str(device), "dtype": dtype}
    work = QUICK if options.quick else Workload()
    report = Report(details={"workload": work, "setup": setup})
    entries = [Entry(CONTENDERS[name], "demo") for name in names]
    report.findings += beside(in_turns(entries, work.rounds, report, partial(_loads, work, setup)))
    return report


if __name__ == "__main__":
    usual = [one.name for one in USUAL]
    sys.exit(
        run_lab("tests.bench", __doc__, measure, file="bench.json", parts=tuple(CONTENDERS), usual=usual)
    )
