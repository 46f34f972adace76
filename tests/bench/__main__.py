"""`make bench`: Midstream and two other servers of the same model, in turns, then our endpoints; a table, and JSON."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from statistics import median

import msgspec

from app.settings import DEMO_MODEL
from engine.model.devices import choose_device, choose_dtype
from tests.bench.clients import ServerApi
from tests.bench.load_generator import (
    FIRST_TOKEN,
    TOKENS_PER_S,
    Figures,
    Job,
    figures,
    medians,
    observe,
)
from tests.bench.report import TIMES, Measured, MeasurementFailed, NotInstalled, Report, Target, run_lab, say
from tests.bench.servers import MIDSTREAM, SERVE, SERVE_BATCHED, Entry, Run, in_turns, model_of, running

CONTENDERS = {one.name: one for one in (MIDSTREAM, SERVE, SERVE_BATCHED)}
ENDPOINTS = "endpoints"
JOB_S = 90.0
STOPPED_TOKENS = 512
"""Requested tokens of a reply that is cancelled: more than are made until then."""
WARM_UP_TOKENS = 8
SAMPLES = 24
"""The least replies of each measurement of an endpoint: few clients ask through several processes, one after the other."""
NATIVE = ServerApi.WEBSOCKET
APIS = (
    NATIVE, ServerApi.CHAT, ServerApi.REALTIME, ServerApi.RESPONSES, ServerApi.MESSAGES, ServerApi.AI_SDK,
)  # fmt: skip
ENDPOINT = Target(0.9)
"""Share of the native endpoint's figure that another endpoint must reach."""


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """The workload of every server. `levels`: by the number of clients, how many replies each asks for, one after the other."""

    levels: dict[int, int]
    max_new_tokens: int
    rounds: int
    endpoint_rounds: int
    cancel_after_texts: int


FULL = Workload(
    levels={1: 8, 8: 2, 32: 1},
    max_new_tokens=128,
    rounds=3,
    endpoint_rounds=7,
    cancel_after_texts=8,
)
QUICK = Workload(levels={1: 1, 4: 1}, max_new_tokens=32, rounds=1, endpoint_rounds=1, cancel_after_texts=4)


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

    def endpoints(self) -> None:
        """Send the same prompts through each endpoint and the native one, in turns, on one server.

        Shares are ratios to the native endpoint in the same round. A failure ends the measurement and is reported.
        """
        try:
            with running(MIDSTREAM, **self._setup) as url:
                for clients, replies in self._workload.levels.items():
                    self.report.findings += _shares(clients, self._by_endpoint(url, clients, replies))
        except MeasurementFailed as failure:
            self.report.fail(ENDPOINTS, failure)

    def _by_endpoint(self, url: str, clients: int, replies: int) -> dict[ServerApi, list[Figures]]:
        """Return the figures of each endpoint, round by round. Raises MeasurementFailed."""
        work, model = self._workload, model_of(url)
        times = max(1, min(replies, SAMPLES // clients)) if work.endpoint_rounds > 1 else 1
        samples: dict[ServerApi, list[Figures]] = {api: [] for api in APIS}
        for number in range(-1, work.endpoint_rounds):  # the first round warms up
            say(f"Endpoints, {clients} at once, round {number + 1} of {work.endpoint_rounds}")
            turn = number % len(APIS)
            for api in (*APIS[turn:], *APIS[:turn]):
                job = Job(
                    api=api, url=url, model=model, clients=clients, max_new_tokens=work.max_new_tokens,
                    limit_s=JOB_S, greets=True,
                )  # fmt: skip
                samples[api].append(medians([figures(observe(job)) for _ in range(times)]))
        return {api: found[1:] for api, found in samples.items()}


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


def _shares(clients: int, by_api: dict[ServerApi, list[Figures]]) -> Iterator[Measured]:
    """Return the median shares of the native endpoint's speed that each other endpoint reaches."""
    native = by_api.pop(NATIVE)
    for api, some in by_api.items():
        for name, power in ((TOKENS_PER_S, 1), (FIRST_TOKEN, -1)):  # a shorter time is a higher speed
            shares = [(own[name] / base[name]) ** power for own, base in zip(some, native, strict=True)]
            readings = {api: median(one[name] for one in some), NATIVE: median(one[name] for one in native)}
            yield Measured(
                label=f"{clients} at once, {api}: speed of {name}, beside the native endpoint's",
                value=median(shares),
                unit=TIMES,
                readings={str(who): value for who, value in readings.items()},
                target=ENDPOINT,
            )


def measure(options: argparse.Namespace) -> Report:
    """Measure the chosen servers and our endpoints. Raises NotInstalled."""
    names = [name for name in CONTENDERS if name in options.only]
    if missing := sorted({need for name in names for need in CONTENDERS[name].missing()}):
        install = f"{sys.executable} -m pip install --constraint constraints.txt --group bench"
        raise NotInstalled(f"Not installed: {', '.join(missing)}. Run: {install}")
    device = choose_device("auto")
    dtype = str(choose_dtype("auto", device)).removeprefix("torch.")
    setup = {"model": str(DEMO_MODEL.resolve()), "device": str(device), "dtype": dtype}
    bench = Bench(QUICK if options.quick else FULL, setup)
    bench.servers(names)
    if ENDPOINTS in options.only:
        bench.endpoints()
    return bench.report


if __name__ == "__main__":
    sys.exit(run_lab("tests.bench", __doc__, measure, file="bench.json", parts=(*CONTENDERS, ENDPOINTS)))
