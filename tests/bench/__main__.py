"""`make bench`: Midstream and three other servers of the same model, in turns, then our endpoints; a table, and JSON."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
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
    Measure,
    Observed,
    figures,
    medians,
    observe,
)
from tests.bench.report import RESULTS, TIMES, Failure, Measured, MeasurementFailed, Report, Target, say
from tests.bench.servers import CONTENDERS, MIDSTREAM, Contender, model_of, running

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
    """The workload of every server. `levels`: by the number of clients, how many replies each asks for, one after the other.

    `cancel_after_texts`: what a reader has seen when it cancels; each of several readers waits a little longer than the last.
    """

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


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One server's turn in one round: seconds until it was ready, and its figures by the number of clients."""

    contender: str
    round: int
    start_s: float
    levels: dict[int, Figures]


class Bench:
    """Measures; its report fills up. All servers have the same `setup`: model, device and dtype."""

    def __init__(self, workload: Workload, setup: dict[str, str]) -> None:
        self.report = Report(details={"workload": workload, "setup": setup})
        self.turns: list[Turn] = []
        self._workload, self._setup = workload, setup

    def rounds(self, contenders: Sequence[Contender]) -> None:
        """Give every contender a turn, then again, as often as the workload says."""
        work = self._workload
        for index in range(work.rounds):
            for contender in contenders:
                say(f"Round {index + 1} of {work.rounds}: {contender.title}")
                levels: dict[int, Figures] = {}
                begun, start_s = time.monotonic(), 0.0
                try:
                    with running(contender, **self._setup) as url:
                        start_s = round(time.monotonic() - begun, 1)
                        self._turn(contender, url, levels)
                except MeasurementFailed as failure:
                    self._failed(contender.title, failure)
                self.turns.append(Turn(contender=contender.name, round=index, start_s=start_s, levels=levels))
        self.report.details["turns"] = self.turns
        self.report.findings += _beside(contenders, self.turns, list(work.levels))

    def _turn(self, contender: Contender, url: str, levels: dict[int, Figures]) -> None:
        """Measure into `levels`, so that what was measured before a failure is kept. Raises MeasurementFailed."""
        work = self._workload

        def do(measure: Measure, clients: int, tokens: int, replies: int = 1) -> Observed:
            texts = work.cancel_after_texts
            return observe(Job(
                measure=measure, api=contender.api, url=url, model=self._setup["model"], clients=clients,
                replies=replies, max_new_tokens=tokens, cancel_after_texts=texts, limit_s=JOB_S,
            ))  # fmt: skip

        for clients in (1, max(work.levels)):  # the first, slow steps of all sizes
            do(Measure.LOAD, clients, WARM_UP_TOKENS)
        for clients, replies in work.levels.items():
            load = do(Measure.LOAD, clients, work.max_new_tokens, replies)
            levels[clients] = figures(load)
            if contender.api is NATIVE:  # nothing answers a closed HTTP connection
                stopped = do(Measure.STOP_ONE, clients, STOPPED_TOKENS)
                levels[clients] = figures(load, stopped)
            say(f"  {clients:>2} at once: {levels[clients]}")

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
            self._failed(ENDPOINTS, failure)
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

    def _failed(self, what: str, failure: MeasurementFailed) -> None:
        self.report.failures.append(Failure(what, str(failure)))
        say(f"  failed: {failure}")


def _beside(
    contenders: Sequence[Contender], turns: Sequence[Turn], levels: Sequence[int]
) -> Iterator[Measured]:
    """Return each figure at each number of clients: ours, with the medians of all servers."""
    for clients in levels:
        columns = {
            one.title: medians([
                turn.levels[clients] for turn in turns if turn.contender == one.name and clients in turn.levels
            ])
            for one in contenders
        }  # fmt: skip
        for name in dict.fromkeys(name for column in columns.values() for name in column):
            readings = {title: column[name] for title, column in columns.items() if name in column}
            yield Measured(
                label=f"{clients} at once: {name}", value=readings.get(MIDSTREAM.title), readings=readings
            )


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


def main() -> int:
    """Measure; return 0 if everything was measured."""
    options = _options()
    contenders = [one for one in CONTENDERS if one.name in options.only]
    if missing := sorted({name for one in contenders for name in one.missing()}):
        install = f"{sys.executable} -m pip install --constraint constraints.txt --group bench"
        print(f"Not installed: {', '.join(missing)}. Run: {install}", file=sys.stderr)
        return 2
    device = choose_device(options.device)
    dtype = str(choose_dtype(options.dtype, device)).removeprefix("torch.")
    workload = QUICK if options.quick else FULL
    bench = Bench(
        workload, {"model": str(Path(options.model).resolve()), "device": str(device), "dtype": dtype}
    )
    bench.rounds(contenders)
    if ENDPOINTS in options.only:
        bench.endpoints()
    bench.report.conclude(options.out and options.out / ("bench.json" if contenders else "endpoints.json"))
    return 1 if bench.report.failures else 0


def _options() -> argparse.Namespace:
    names = [*(one.name for one in CONTENDERS), ENDPOINTS]
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round, to see that all of it works")
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="servers, and our endpoints")
    parser.add_argument("--model", default=str(DEMO_MODEL), help="folder of the model (the demo model)")
    parser.add_argument("--device", default="auto", help="as Midstream's --device")
    parser.add_argument("--dtype", default="auto", help="as Midstream's --dtype; the same for all servers")
    parser.add_argument("--out", type=Path, help="folder for results (docs/bench; with --quick: none)")
    options = parser.parse_args()
    if options.out is None and not options.quick and options.model == str(DEMO_MODEL):
        options.out = RESULTS
    return options


if __name__ == "__main__":
    sys.exit(main())
