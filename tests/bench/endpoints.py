"""The cost of the other endpoints: the same prompts through each and through the native one, in turns, on one server."""

from __future__ import annotations

import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from statistics import median

import msgspec

from tests.bench.processes import MeasurementFailed, observe, running
from tests.bench.records import Job, Measure, Observed, ServerApi
from tests.bench.report import EndpointFigures, EndpointResults
from tests.bench.servers import Contender, ServerLocation
from tests.bench.statistics import figures
from tests.bench.workload import Level, Workload
from tests.server_process import free_port

NATIVE = ServerApi.WEBSOCKET
APIS = (
    NATIVE,
    ServerApi.CHAT,
    ServerApi.REALTIME,
    ServerApi.RESPONSES,
    ServerApi.MESSAGES,
    ServerApi.AI_SDK,
)
SAMPLES = 24
"""The least replies of each measurement: few clients ask through several processes, one after the other."""
JOB_S = 90.0


class _Sample(msgspec.Struct, frozen=True):
    """One endpoint at one level in one round."""

    tokens_per_s: float
    first_token_ms: float


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


Samples = dict[int, dict[ServerApi, list[_Sample]]]


def measure_endpoints(
    server: Contender, workload: Workload, setup: dict[str, str], *, progress: Callable[[str], None]
) -> EndpointResults:
    """Measure all endpoints of a server; a failure ends the measurement and is reported."""
    samples: Samples = {level.clients: {api: [] for api in APIS} for level in workload.levels}
    failure = None
    with tempfile.TemporaryDirectory(prefix="midstream-bench-") as folder:
        place = ServerLocation(port=free_port(), folder=folder, **setup)
        try:
            with running(server, place) as pid:
                for number in range(-1, workload.door_rounds):  # the first round warms up
                    progress(f"Doors, round {number + 1} of {workload.door_rounds}")
                    for level, api, sample in _round(workload, place, pid, number):
                        if number >= 0:
                            samples[level.clients][api].append(sample)
        except MeasurementFailed as failed:
            failure = str(failed)
            progress(f"  failed: {failure}")
    return EndpointResults(levels=dict(_figures(samples)), failure=failure)


def _round(
    workload: Workload, place: ServerLocation, pid: int, number: int
) -> Iterator[tuple[Level, ServerApi, _Sample]]:
    model = model_of(place.url)
    turn = number % len(APIS)
    for level in workload.levels:
        for api in (*APIS[turn:], *APIS[:turn]):
            job = Job(
                measure=Measure.LOAD,
                api=api,
                url=place.url,
                model=model,
                pid=pid,
                clients=level.clients,
                replies=1,
                max_new_tokens=workload.max_new_tokens,
                cancel_after_texts=0,
                limit_s=JOB_S,
                greets=True,
            )
            yield level, api, _sample([observe(job) for _ in range(_times(level, workload))])


def _times(level: Level, workload: Workload) -> int:
    return max(1, min(level.replies, SAMPLES // level.clients)) if workload.door_rounds > 1 else 1


def _sample(observed: Sequence[Observed]) -> _Sample:
    """Return the medians of some jobs."""
    found = [figures(one, Observed(), Observed()) for one in observed]
    return _Sample(
        median(one.tokens_per_s or 0.0 for one in found),
        median(one.first_token_p50_ms or 0.0 for one in found),
    )


def _figures(samples: Samples) -> Iterator[tuple[int, dict[str, EndpointFigures]]]:
    for clients, by_api in samples.items():
        rounds = min(len(some) for some in by_api.values())
        if rounds:
            native = by_api[NATIVE][:rounds]
            yield clients, {str(api): _compare(native, some[:rounds]) for api, some in by_api.items()}


def _compare(native: Sequence[_Sample], here: Sequence[_Sample]) -> EndpointFigures:
    pairs = list(zip(native, here, strict=True))
    return EndpointFigures(
        tokens_per_s=median(one.tokens_per_s for one in here),
        first_token_ms=median(one.first_token_ms for one in here),
        tokens_share=median(one.tokens_per_s / beside.tokens_per_s for beside, one in pairs),
        first_token_share=median(beside.first_token_ms / one.first_token_ms for beside, one in pairs),
    )


def model_of(url: str) -> str:
    """Return a server's name for its model."""
    with urllib.request.urlopen(f"{url}/v1/models", timeout=JOB_S) as answer:
        return msgspec.json.decode(answer.read(), type=_Models).data[0].id
