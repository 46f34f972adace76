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
                job = msgspec.structs.replace(job, clients=clients)
                load = observe(
                    msgspec.structs.replace(job, replies=replies, max_new_tokens=work.max_new_tokens)
                )
                if api is NATIVE:  # nothing answers a closed HTTP connection
                    stop = msgspec.structs.replace(
                        job, cancel_after_texts=work.cancel_after_texts, max_new_tokens=STOPPED_TOKENS
                    )
                    yield f"{clients} at once", figures(load, observe(stop))
                else:
                    yield f"{clients} at once", figures(load)

    def endpoints(self) -> None:
        """Send the same prompts through each endpoint and the native one, in turns, on one server.

        Shares are ratios to the native endpoint in the same round. A failure ends the measurement and is reported.
        """
        work = self._workload
        samples: dict[int, dict[ServerApi, list[Figures]]] = {
            clients: {api: [] for api in APIS} for clients in work.levels
        }
        try:
            with running(MIDSTREAM, **self._setup) as url:
                for number in range(-1, work.endpoint_rounds):  # the first round warms up
                    say(f"Endpoints, round {number + 1} of {work.endpoint_rounds}")
                    for clients, api, sample in self._endpoint_round(url, number % len(APIS)):
                        if number >= 0:
                            samples[clients][api].append(sample)
        except MeasurementFailed as failure:
            self.report.fail(ENDPOINTS, failure)
        for clients, by_api in samples.items():
            self.report.findings += _shares(clients, by_api)

    def _endpoint_round(self, url: str, turn: int) -> Iterator[tuple[int, ServerApi, Figures]]:
        work, model = self._workload, model_of(url)
        for clients, replies in work.levels.items():
            times = max(1, min(replies, SAMPLES // clients)) if work.endpoint_rounds > 1 else 1
            for api in (*APIS[turn:], *APIS[:turn]):
                job = Job(
                    api=api, url=url, model=model, clients=clients, max_new_tokens=work.max_new_tokens,
                    limit_s=JOB_S, greets=True,
                )  # fmt: skip
                yield clients, api, medians([figures(observe(job)) for _ in range(times)])


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
    for api, some in by_api.items():
        pairs = list(zip(by_api[NATIVE], some, strict=False))
        for name, share in (
            (TOKENS_PER_S, [here[TOKENS_PER_S] / beside[TOKENS_PER_S] for beside, here in pairs]),
            (FIRST_TOKEN, [beside[FIRST_TOKEN] / here[FIRST_TOKEN] for beside, here in pairs]),
        ):
            if api is not NATIVE and pairs:
                yield Measured(
                    label=f"{clients} at once, {api}: speed of {name}, beside the native endpoint's",
                    value=median(share),
                    unit=TIMES,
                    readings={
                        api: median(one[name] for _, one in pairs),
                        NATIVE: median(one[name] for one, _ in pairs),
                    },
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
