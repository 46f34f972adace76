"""What the gateway sends is sorted beside the step loop; one turn of that: what came in, a step, one message."""

from __future__ import annotations

import logging
import socket
import threading
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec
import pytest

from engine.messages import (
    BlockingChannel,
    Cancel,
    CancelCount,
    CountRequest,
    CountResult,
    EngineStatistics,
    Finished,
    FinishReason,
    FromEngine,
    Message,
    Output,
    Params,
    Ping,
    Pong,
    ReplySpec,
    Request,
    StepOutputs,
    ToEngine,
    Tool,
    Unpacker,
    pack,
)
from engine.process.dispatcher import Dispatcher, Inbox, RequestBuilder, StepLoop
from engine.prompts.jobs import LOST, Answer, DecodeImage, Job, Postponed, Prompt, Rejected
from engine.prompts.prompt import JobHandler, PromptBuilder
from engine.scheduling.core import EngineCore
from engine.text.detokenizer import Detokenizer, Vocabulary
from engine.text.parser import ReplyPrefix
from engine.text.reply_text import PreparedRequest, ReplyText
from engine.vision.image import NOT_SEEN
from tests.engine.conftest import small_tokenizer
from tests.engine.tiny_models import end_of, prepared_request, served, tokens_of
from tests.sample_images import PNG


class LetterCounter(PromptBuilder):
    def __init__(self) -> None:
        pass

    def prompt(self, messages: Sequence[Message], *_: object) -> Prompt:
        return Prompt([1] * len(messages[0].content))


class InlinePromptBuilder:
    """Makes prompts on the thread that asks."""

    def __init__(self) -> None:
        self._builder = JobHandler(LetterCounter())
        self.tried: Counter[str] = Counter()
        self.received: list[str] = []
        self.begun = threading.Event()
        self.goes_on = threading.Event()
        self.goes_on.set()

    def start(self) -> None:
        pass

    def run_job(self, job: Job) -> Answer:
        if isinstance(job, DecodeImage):
            self.received.append(job.image.digest)
            return Rejected(LOST)
        self.received.append(job.messages[0].content)
        self.begun.set()
        if self.tried[job.messages[0].content] > 0:
            self.tried[job.messages[0].content] -= 1
            return Postponed()
        assert self.goes_on.wait(30)
        return self._builder.build(job)


class NoText:
    """Begins replies that have no text."""

    def begin(self, request: Request, beginning: ReplyPrefix) -> ReplyText:
        return ReplyText(Detokenizer(Vocabulary(small_tokenizer())))


class Gateway:
    """The other end of a dispatcher's socket."""

    def __init__(self) -> None:
        self.end, theirs = socket.socketpair()
        self.inbox = Inbox()
        self.gone = threading.Event()
        self._engine_end = theirs
        self._decoder: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)
        self.made = InlinePromptBuilder()
        decoder: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
        self.dispatcher = Dispatcher(BlockingChannel(theirs, decoder), self.inbox, self.made)
        self.dispatcher.start(self.gone.set)
        self.dispatcher.set_request_builder(RequestBuilder(NoText(), Params(), context_tokens=100))

    def send(self, *messages: ToEngine) -> None:
        self.end.sendall(b"".join(map(pack, messages)))

    def run_job(self, message: CountRequest | Ping) -> FromEngine:
        self.send(message)
        (body,) = Unpacker().feed(self.end.recv(10_000))
        return self._decoder.decode(body)

    def decode(self, body: bytes) -> FromEngine:
        return self._decoder.decode(body)

    def close(self) -> None:
        self.end.close()
        assert self.gone.wait(30)
        self._engine_end.close()


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    gateway = Gateway()
    yield gateway
    gateway.close()


HELD = ReplySpec(tools=(Tool("a", parameters="{}"),))
"""A spec whose grammar takes a while to try."""


def saying(content: str) -> tuple[Message, ...]:
    return (Message("user", content),)


def test_pings_tell_whether_the_step_loop_is_at_work_and_how_often_it_took_some(gateway: Gateway) -> None:
    gateway.inbox.take(0)
    gateway.inbox.take(0)
    assert gateway.run_job(Ping(7)) == Pong(7, busy=True, turns=2)
    waits = threading.Thread(target=gateway.inbox.take, args=(None,))
    waits.start()
    while (pong := gateway.run_job(Ping(7))) == Pong(7, busy=True, turns=2):
        pass
    assert pong == Pong(7, busy=False, turns=2)
    gateway.send(Cancel("r"))
    waits.join()
    assert gateway.run_job(Ping(8)) == Pong(8, busy=True, turns=3)


def test_bytes_that_are_no_message_end_the_process(
    gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    gateway.end.sendall(b"\x00\x00\x00\x01\xc1")
    assert gateway.gone.wait(30)
    assert "reading messages of the gateway failed" in caplog.text


def test_a_broken_line_is_the_gateways_end(gateway: Gateway, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    gateway.send(Ping(1))
    gateway.close()
    assert "Traceback" not in caplog.text


def _arrived(gateway: Gateway, how_many: int) -> list[str]:
    arrived: list[str] = []
    while len(arrived) < how_many:
        work = gateway.inbox.take(10)
        arrived += [request.request_id for request in work.prepared]
        assert any(work)
    return arrived


def test_prompts_wait_fairly_between_clients(gateway: Gateway) -> None:
    """Whoever sends many at once waits behind himself."""
    gateway.made.goes_on.clear()
    clients = enumerate(("first", "greedy", "greedy", "greedy", "modest"))
    gateway.send(*(Request(f"{name}{n}", saying(f"{name}{n}"), client=name) for n, name in clients))
    gateway.run_job(Ping(1))
    gateway.made.goes_on.set()
    assert _arrived(gateway, 5) == ["first0", "greedy1", "modest4", "greedy2", "greedy3"]


def test_a_grammar_counts_as_the_work_that_it_is(gateway: Gateway) -> None:
    """However short: a prompt with one is not made before longer prompts of others."""
    gateway.made.goes_on.clear()
    gateway.send(Request("first", saying("first"), client="first"))
    for place in range(2):
        gateway.send(Request(f"held{place}", saying("a"), client="held", spec=HELD))
    for place in range(2):
        gateway.send(Request(f"long{place}", saying("a" * 50), client="long"))
    gateway.run_job(Ping(1))
    gateway.made.goes_on.set()
    assert _arrived(gateway, 5) == ["first", "long0", "long1", "held0", "held1"]


def test_a_prompt_whose_asker_left_is_not_made(gateway: Gateway) -> None:
    gateway.made.goes_on.clear()
    gateway.send(CountRequest(1, saying("current")))
    assert gateway.made.begun.wait(30)
    gateway.send(CountRequest(2, saying("left")), Request("r", saying("gone")))
    gateway.send(CancelCount(2), Cancel("r"))
    gateway.run_job(Ping(1))
    gateway.made.goes_on.set()
    (_current,) = Unpacker().feed(gateway.end.recv(10_000))
    assert gateway.run_job(CountRequest(3, saying("abc"))) == CountResult(3, 3)
    assert gateway.made.received == ["current", "abc"]


def test_a_trial_that_goes_on_is_asked_for_now_and_then_while_others_wait(gateway: Gateway) -> None:
    """Who needs no grammar does not wait for the trial of one, however many requests come one after the other."""
    received = gateway.made.received
    gateway.made.tried["a"] = 1_000_000
    gateway.send(Request("held", saying("a"), client="held", spec=HELD))
    assert gateway.made.begun.wait(30)
    gateway.send(Request("plain", saying("plain"), client="plain"))
    assert _arrived(gateway, 1) == ["plain"]
    while received[-1] != "a":  # nobody else waits: it is level with the others from here on
        gateway.run_job(Ping(1))
    gateway.made.goes_on.clear()
    for place in range(9):
        gateway.send(Request(f"plain{place}", saying("plain"), client="plain"))
    gateway.run_job(Ping(1))
    gateway.made.goes_on.set()
    assert _arrived(gateway, 9)[-1] == "plain8"
    between = received[received.index("plain") + 1 :]
    between = between[between.index("plain") : len(between) - between[::-1].index("plain")]
    assert between.count("a") <= 1
    gateway.made.tried["a"] = 0
    assert _arrived(gateway, 1) == ["held"]


def test_a_prompt_that_was_set_aside_is_not_made_for_one_who_left(gateway: Gateway) -> None:
    gateway.made.tried["a"] = 1_000_000
    gateway.send(CountRequest(1, saying("a"), spec=HELD))
    assert gateway.made.begun.wait(30)
    gateway.send(CancelCount(1), CountRequest(2, saying("plain")))
    unpacker, reported = Unpacker(), list[bytes]()
    while not reported or gateway.decode(reported[-1]) != CountResult(2, 5):
        reported += unpacker.feed(gateway.end.recv(10_000))
    assert gateway.made.received[-1] == "plain"


def test_an_image_with_which_a_process_was_lost_is_never_decoded_again(gateway: Gateway) -> None:
    """Later turns of its conversation are told that it can't be seen: the next process knows nothing of it."""
    for number in range(2):
        gateway.dispatcher.look(DecodeImage(f"r{number}", 0, PNG.image))
        (image_result,) = gateway.inbox.take(30).image_result
        assert image_result.answer == Rejected(LOST)
    assert gateway.made.received == [PNG.image.digest]
    later = Message("user", "What?", images=(PNG.image,))
    assert gateway.run_job(CountRequest(1, (later,))) == CountResult(1, len(f"{NOT_SEEN}\nWhat?"))


REQUEST = Request("r", (Message("user", "hi"),))


def prepared(request_id: str = "r") -> PreparedRequest:
    return prepared_request(request_id, [1])


class Bench:
    """A loop over a real core, with its inbox, its clock and what it sent."""

    def __init__(self) -> None:
        self.now = 0.0
        self.inbox = Inbox()
        self.sent: list[StepOutputs | EngineStatistics] = []
        core = EngineCore(served("llama"))
        self.loop = StepLoop(core, self.inbox, self.sent.append, clock=lambda: self.now)

    def register(self, *outcomes: PreparedRequest | Finished) -> None:
        for outcome in outcomes:
            request = Request(outcome.request_id, REQUEST.messages)
            self.inbox.register(request)
            self.inbox.deliver(request, outcome)

    @property
    def outputs(self) -> list[Output]:
        return [output for one in self.sent if isinstance(one, StepOutputs) for output in one.outputs]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_step_sends_one_message_for_all(bench: Bench) -> None:
    refused = Finished("s", FinishReason.ERROR, 0, 0, 0, error="no")
    bench.register(prepared("r"), refused, prepared("t"))
    bench.loop.run_once()
    (message,) = bench.sent
    assert isinstance(message, StepOutputs)
    assert message.made_at > 0
    assert message.outputs[0] == refused
    assert {output.request_id for output in message.outputs} == {"r", "s", "t"}


def test_a_request_is_known_to_the_core_before_its_cancel(bench: Bench) -> None:
    bench.register(prepared())
    bench.inbox.cancel("r")
    bench.loop.run_once()
    assert end_of(bench.outputs, "r").reason is FinishReason.CANCELLED


def test_a_second_request_of_an_id_does_not_touch_the_first(bench: Bench) -> None:
    bench.register(prepared())
    bench.register(prepared())
    while not any(isinstance(output, Finished) for output in bench.outputs):
        bench.loop.run_once()
    assert end_of(bench.outputs, "r").generated_tokens == len(tokens_of(bench.outputs, "r")) == 8


def test_statistics_follow_once_a_second_while_something_changes(bench: Bench) -> None:
    bench.register(prepared())
    for now in (1.0, 1.0, 2.0):
        bench.now = now
        bench.loop.run_once()
    assert [one.steps for one in bench.sent if isinstance(one, EngineStatistics)] == [1, 3]


def test_a_cancel_during_preparation_ends_the_request_at_once(bench: Bench) -> None:
    bench.now = 1.0
    bench.inbox.register(REQUEST)
    bench.inbox.cancel("r")
    assert not bench.inbox.is_wanted(REQUEST)
    bench.inbox.deliver(REQUEST, prepared())
    bench.loop.run_once()
    outputs, statistics = bench.sent
    assert isinstance(outputs, StepOutputs)
    assert outputs.outputs == (Finished("r", FinishReason.CANCELLED, 0, 0, 0, steps_after=0),)
    assert isinstance(statistics, EngineStatistics)
    assert statistics.cancels == 1
