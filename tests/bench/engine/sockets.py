"""Tokens per second over many sockets of a real server, compared with the engine alone on the same model."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import NamedTuple

from tests.bench.engine.contender import TEMPERATURE, TOP_P
from tests.bench.engine.plan import Plan
from tests.bench.engine.records import Observed as Alone
from tests.bench.engine.registry import Name
from tests.bench.engine.report import Figure, Finding
from tests.bench.engine.session import Session
from tests.bench.engine.shapes import Shape
from tests.bench.engine.statistics import tokens_per_s
from tests.bench.engine.targets import OVER_SOCKETS
from tests.bench.processes import MeasurementFailed, observe, running
from tests.bench.records import Job, Measure, Observed, ServerApi
from tests.bench.servers import CONTENDERS, ServerLocation
from tests.bench.statistics import figures
from tests.server_process import free_port

SERVER = CONTENDERS[0]
CONTENT = "xyz" * 16
"""Letters that these tokenizers never join: with the template about 64 tokens, as long as the engine's own prompts."""

LIMIT_S = 120.0
WARM_UP_TOKENS = 8


class Pair(NamedTuple):
    """Tokens per second, measured one directly after the other."""

    alone: float
    over_sockets: float


def measure(session: Session) -> None:
    """Measure, for each model, the engine alone and a server of the same model, in turns."""
    for shape in session.plan.models:
        what = f"{shape.name}, {session.plan.sockets} sockets: tokens/s against the engine alone"
        pairs = session.once(what, partial(_pairs, session, shape, what))
        if pairs:
            alone, over = (median(values) for values in zip(*pairs, strict=True))
            session.progress(f"  {what}: {over:,.0f} of {alone:,.0f}")
            session.found(
                Finding(
                    figure=Figure.SOCKETS,
                    label=what,
                    value=over / alone,
                    readings={"alone": alone, "over sockets": over},
                    target=OVER_SOCKETS.get(shape.name),
                )
            )


def _pairs(session: Session, shape: Shape, what: str) -> list[Pair]:
    plan = session.plan
    with _server(str(session.crew.model(shape)), plan.dtype) as (url, pid):
        _over_sockets(plan, url, pid, WARM_UP_TOKENS)
        return session.rounds(
            f"{what}, rounds",
            lambda number: Pair(
                _alone(session, shape, number), _over_sockets(plan, url, pid, plan.new_tokens)
            ),
        )


@contextmanager
def _server(model: str, dtype: str) -> Iterator[tuple[str, int]]:
    """Run a server of a model inside the block: (its http address, its process). Raises MeasurementFailed."""
    with tempfile.TemporaryDirectory(prefix="midstream-bench-") as folder:
        place = ServerLocation(port=free_port(), folder=folder, model=model, device="cpu", dtype=dtype)
        with running(SERVER, place) as pid:
            yield place.url, pid


def _alone(session: Session, shape: Shape, number: int) -> float:
    """Return the engine's tokens per second without a server around it. Raises MeasurementFailed."""
    load = session.plan.load(session.plan.sockets, number)
    return tokens_per_s(session.crew.ask(Name.OURS, shape, session.plan.dtype, load, Alone))


def _over_sockets(plan: Plan, url: str, pid: int, tokens: int) -> float:
    """Return the tokens per second that all clients together read. Raises MeasurementFailed."""
    observed = observe(
        Job(
            measure=Measure.LOAD,
            api=ServerApi.WEBSOCKET,
            url=url,
            model="",
            pid=pid,
            clients=plan.sockets,
            replies=1,
            max_new_tokens=tokens,
            cancel_after_texts=0,
            limit_s=LIMIT_S,
            prompt=CONTENT,
            temperature=TEMPERATURE,
            top_p=TOP_P,
        )
    )
    shown = figures(observed, Observed(), Observed())
    if shown.tokens_per_s is None or shown.tokens_per_reply != tokens:
        raise MeasurementFailed(f"a reply had {shown.tokens_per_reply} of {tokens} tokens")
    return shown.tokens_per_s
