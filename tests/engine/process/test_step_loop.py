"""One turn of the loop: what came in, a step, one message."""

from __future__ import annotations

from engine.messages import (
    EngineStatistics,
    Finished,
    FinishReason,
    Message,
    Output,
    Params,
    Request,
    Started,
    StepOutputs,
)
from engine.process.dispatcher import Inbox, StepLoop
from engine.text.reply_text import DuplicateRequest, PreparedRequest, ReplyText, resolve_sampling

REQUEST = Request("r", (Message("user", "hi"),))


class NoText:
    def push(self, token_id: int) -> str:
        return ""

    def flush(self) -> str:
        return ""


def prepared(request_id: str = "r") -> PreparedRequest:
    return PreparedRequest(request_id, [1], resolve_sampling(Params(), Params()), ReplyText(NoText()))


class OneStepCore:
    """Starts each request and ends it in one step."""

    def __init__(self) -> None:
        self.waiting: list[str] = []
        self.cancelled: list[str] = []
        self.steps = 0

    @property
    def busy(self) -> bool:
        return bool(self.waiting)

    @property
    def made_at(self) -> float:
        return float(self.steps)

    def submit(self, request: PreparedRequest) -> None:
        if request.request_id in self.waiting:
            raise DuplicateRequest
        self.waiting.append(request.request_id)

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)

    def step(self) -> list[Output]:
        self.steps += 1
        started, self.waiting = self.waiting, []
        return [Started(request_id, 1) for request_id in started]

    @property
    def gives_back_in_s(self) -> float | None:
        return None

    def give_back(self) -> None:
        pass

    def statistics(self) -> EngineStatistics:
        return EngineStatistics(steps=self.steps)


class Bench:
    """A loop with its lanes, its clock and what it sent."""

    def __init__(self) -> None:
        self.now = 0.0
        self.core = OneStepCore()
        self.inbox = Inbox()
        self.sent: list[StepOutputs | EngineStatistics] = []
        self.loop = StepLoop(self.core, self.inbox, self.sent.append, clock=lambda: self.now)

    def register(self, *outcomes: PreparedRequest | Finished) -> None:
        for outcome in outcomes:
            request = Request(outcome.request_id, REQUEST.messages)
            self.inbox.register(request)
            self.inbox.deliver(request, outcome)


def test_a_step_sends_one_message_for_all() -> None:
    bench = Bench()
    refused = Finished("s", FinishReason.ERROR, 0, 0, 0, error="no")
    bench.register(prepared("r"), refused, prepared("t"))
    bench.loop.run_once()
    assert bench.sent == [StepOutputs((refused, Started("r", 1), Started("t", 1)), made_at=1.0)]


def test_a_request_is_known_to_the_core_before_its_cancel() -> None:
    bench = Bench()
    bench.register(prepared())
    bench.inbox.cancel("r")
    bench.loop.run_once()
    assert bench.core.cancelled == ["r"]


def test_a_second_request_of_an_id_does_not_touch_the_first() -> None:
    bench = Bench()
    bench.register(prepared())
    bench.register(prepared())
    bench.loop.run_once()
    assert bench.sent == [StepOutputs((Started("r", 1),), made_at=1.0)]


def test_statistics_follow_once_a_second_while_something_changes() -> None:
    bench = Bench()
    bench.now = 1.0
    bench.register(prepared())
    bench.loop.run_once()
    assert bench.sent[1:] == [EngineStatistics(steps=1)]
    bench.register(prepared())
    bench.loop.run_once()
    assert len(bench.sent) == 3
    bench.now = 2.0
    bench.loop.run_once()
    assert bench.sent[3:] == [EngineStatistics(steps=2)]


def test_a_cancel_during_preparation_ends_the_request_at_once() -> None:
    bench = Bench()
    bench.now = 1.0
    bench.inbox.register(REQUEST)
    bench.inbox.cancel("r")
    assert not bench.inbox.is_wanted(REQUEST)
    bench.inbox.deliver(REQUEST, prepared())
    bench.loop.run_once()
    cancelled = Finished("r", FinishReason.CANCELLED, 0, 0, 0, steps_after=0)
    outputs, statistics = bench.sent
    assert isinstance(outputs, StepOutputs)
    assert outputs.outputs == (cancelled,)
    assert statistics == EngineStatistics(cancels=1)
