"""A contender's process: `python -m … WORKER`, with WORKER as JSON. Jobs and answers are lines of JSON.

The main thread drives all work. The process ends when its standard input does.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import traceback
from typing import assert_never

import msgspec

from tests.bench.engine import cancels, memory, next_turn, roofline
from tests.bench.engine.contender import Contender, ContenderFailed
from tests.bench.engine.json_lines import own_output, put
from tests.bench.engine.load import WARM_UP, observe
from tests.bench.engine.records import (
    Answer,
    Bound,
    Cancels,
    Failed,
    Job,
    Load,
    Memory,
    NextTurn,
    Ready,
)
from tests.bench.engine.registry import Name, Worker


def main() -> None:
    """Serve jobs until standard input ends."""
    logging.basicConfig(level=logging.ERROR, stream=sys.stderr)
    answers = own_output()
    worker = msgspec.json.decode(sys.argv[1], type=Worker)
    contender = _make(worker)
    serving = _Serving(contender, worker)
    for load in WARM_UP:
        serving.answer(load)
    put(answers, Ready())
    for line in sys.stdin.buffer:
        put(answers, serving.guarded(msgspec.json.decode(line, type=Job)))
    contender.close()


class _Serving:
    """A contender, and the number of jobs that it had."""

    def __init__(self, contender: Contender, worker: Worker) -> None:
        self._contender = contender
        self._vocabulary = worker.vocabulary
        self._turn = 0

    def guarded(self, job: Job) -> Answer | Failed:
        """Run a job; a failure of any kind is its answer."""
        try:
            return self.answer(job)
        except ContenderFailed as error:
            return Failed(str(error))
        except Exception as error:  # noqa: BLE001 - the boundary of a job: its answer is the failure
            traceback.print_exc(file=sys.stderr)
            return Failed(f"{type(error).__name__}: {error}")

    def answer(self, job: Job) -> Answer:
        """Run a job. Raises ContenderFailed, or what the contender raises."""
        self._turn += 1
        if isinstance(job, Load):
            return observe(
                self._contender, job, vocabulary=self._vocabulary, clock=time.perf_counter, turn=self._turn
            )
        return _answer_ours(self._contender, job)


def _answer_ours(contender: Contender, job: NextTurn | Cancels | Bound | Memory) -> Answer:
    """Run a job for our engine alone. Raises ContenderFailed."""
    from tests.bench.engine.midstream_contender import MidstreamEngine  # noqa: PLC0415 - the others load no engine of ours

    if not isinstance(contender, MidstreamEngine):
        raise ContenderFailed("only Midstream is measured so")
    match job:
        case NextTurn():
            return next_turn.measure(contender, job)
        case Cancels():
            return cancels.measure(contender, job)
        case Bound():
            return roofline.measure(contender, job)
        case Memory():
            return memory.measure(contender, job)
        case _:
            assert_never(job)


def _make(worker: Worker) -> Contender:
    """Load the model. Raises what loading raises."""
    match worker.contender:
        case Name.OURS:
            from tests.bench.engine.midstream_contender import MidstreamEngine  # noqa: PLC0415 - each process loads its own contender

            return MidstreamEngine(worker)
        case Name.BATCHING:
            from tests.bench.engine.continuous_batching import ContinuousBatching  # noqa: PLC0415

            return ContinuousBatching(worker.folder, worker.dtype, worker.device)
        case Name.THREADS:
            from tests.bench.engine.thread_per_request import ThreadPerRequest  # noqa: PLC0415

            return ThreadPerRequest(worker.folder, worker.dtype)
        case _:
            assert_never(worker.contender)


if __name__ == "__main__":
    main()
    os._exit(0)  # taking torch down piece by piece takes a second; the kernel does it at once
