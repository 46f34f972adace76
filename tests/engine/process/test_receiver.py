"""What the gateway sends is sorted beside the step loop, and one bad prompt breaks nothing."""

from __future__ import annotations

import logging
import socket
import threading
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec
import pytest

from engine.errors import PromptRejected
from engine.messages import (
    BlockingChannel,
    Cancel,
    CancelCount,
    CountRequest,
    CountResult,
    FromEngine,
    Message,
    Params,
    Ping,
    Pong,
    ReplySpec,
    Request,
    ToEngine,
    Tool,
    Unpacker,
    pack,
)
from engine.process.dispatcher import Dispatcher, Inbox, RequestBuilder
from engine.prompts.jobs import LOST, Answer, DecodeImage, Job, Prompt, Rejected, Stopped
from engine.prompts.prompt import JobHandler, PromptBuilder
from engine.text.detokenizer import ByteLevelDetokenizer, Vocabulary
from engine.text.parser import ReplyPrefix
from engine.text.reply_text import ReplyText
from engine.vision.image import NOT_SEEN
from tests.engine.conftest import small_tokenizer
from tests.sample_images import PNG


class Brittle(PromptBuilder):
    """Counts letters, refuses a word, breaks at another."""

    def __init__(self) -> None:
        pass

    def prompt(self, messages: Sequence[Message], *_: object) -> Prompt:
        content = messages[0].content
        if content == "refused":
            raise PromptRejected("no")
        if content == "broken":
            raise RuntimeError("a defect")
        return Prompt([1] * len(content))


class InlinePromptBuilder:
    """Makes prompts on the thread that asks."""

    def __init__(self) -> None:
        self._builder = JobHandler(Brittle())
        self.stops = threading.Event()
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
            return Stopped()
        assert self.goes_on.wait(30)
        return self._builder.build(job, self.stops.is_set)

    def stop(self) -> None:
        self.stops.set()


class NoText:
    """Begins replies that have no text."""

    def begin(self, request: Request, beginning: ReplyPrefix) -> ReplyText:
        return ReplyText(ByteLevelDetokenizer(Vocabulary(small_tokenizer())))


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

    def run_job(self, message: CountRequest | Ping) -> FromEngine:
        self.end.sendall(pack(message))
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


def saying(content: str) -> tuple[Message, ...]:
    return (Message("user", content),)


def test_pings_are_answered(gateway: Gateway) -> None:
    """They tell whether the step loop, which takes the work, is at work, and how often it took some."""
    gateway.inbox.take(0)
    gateway.inbox.take(0)
    assert gateway.run_job(Ping(7)) == Pong(7, busy=True, turns=2)


def test_a_step_loop_that_waits_for_work_is_told_as_idle(gateway: Gateway) -> None:
    waits = threading.Thread(target=gateway.inbox.take, args=(None,))
    waits.start()
    while (pong := gateway.run_job(Ping(7))) == Pong(7, busy=True, turns=0):
        pass
    assert pong == Pong(7, busy=False, turns=0)
    gateway.end.sendall(pack(Cancel("r")))
    waits.join()
    assert gateway.run_job(Ping(8)) == Pong(8, busy=True, turns=1)


def test_prompts_are_counted_and_refused_and_defects_do_not_spread(
    gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    assert gateway.run_job(CountRequest(1, saying("refused"))) == CountResult(1, 0, "no")
    assert gateway.run_job(CountRequest(2, saying("broken"))) == CountResult(
        2, 0, "The prompt could not be prepared."
    )
    assert gateway.run_job(CountRequest(3, saying("abc"))) == CountResult(3, 3)
    assert "a defect" in caplog.text


def test_requests_are_prepared_or_ended(gateway: Gateway, caplog: pytest.LogCaptureFixture) -> None:
    for content in ("abc", "refused", "broken"):
        gateway.end.sendall(pack(Request(content, saying(content))))
    prepared, errors = [], []
    while len(prepared) + len(errors) < 3:
        work = gateway.inbox.take(10)
        prepared += [len(request.prompt) for request in work.prepared]
        errors += [end.error for end in work.ends]
    assert prepared == [3]
    assert errors == ["no", "The prompt could not be prepared."]
    assert "a defect" in caplog.text


def test_a_cancel_is_passed_on(gateway: Gateway) -> None:
    gateway.end.sendall(pack(Cancel("r")))
    assert gateway.inbox.take(10).cancels == ["r"]


def test_bytes_that_are_no_message_end_the_process(
    gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    gateway.end.sendall(b"\x00\x00\x00\x01\xc1")
    assert gateway.gone.wait(30)
    assert "reading messages of the gateway failed" in caplog.text


def test_a_broken_line_is_the_gateways_end(gateway: Gateway, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    gateway.end.sendall(pack(Ping(1)))
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
    for place, client in enumerate(("first", "greedy", "greedy", "greedy", "modest")):
        gateway.end.sendall(pack(Request(f"{client}{place}", saying(f"{client}{place}"), client=client)))
    gateway.run_job(Ping(1))
    gateway.made.goes_on.set()
    assert _arrived(gateway, 5) == ["first0", "greedy1", "modest4", "greedy2", "greedy3"]


def test_a_grammar_counts_as_the_work_that_it_is(gateway: Gateway) -> None:
    """However short: a prompt with one is not made before longer prompts of others."""
    gateway.made.goes_on.clear()
    held = ReplySpec(tools=(Tool("a", parameters="{}"),))
    gateway.end.sendall(pack(Request("first", saying("first"), client="first")))
    for place in range(2):
        gateway.end.sendall(pack(Request(f"held{place}", saying("a"), client="held", spec=held)))
    for place in range(2):
        gateway.end.sendall(pack(Request(f"long{place}", saying("a" * 50), client="long")))
    gateway.run_job(Ping(1))
    gateway.made.goes_on.set()
    assert _arrived(gateway, 5) == ["first", "long0", "long1", "held0", "held1"]


def test_a_prompt_whose_asker_left_is_made_no_further_or_not_at_all(gateway: Gateway) -> None:
    gateway.made.goes_on.clear()
    gateway.end.sendall(pack(CountRequest(1, saying("current"))))
    assert gateway.made.begun.wait(30)
    gateway.end.sendall(pack(CountRequest(2, saying("left"))) + pack(Request("r", saying("gone"))))
    gateway.end.sendall(pack(CancelCount(2)) + pack(Cancel("r")))
    gateway.run_job(Ping(1))
    assert not gateway.made.stops.is_set()
    gateway.end.sendall(pack(CancelCount(1)))
    assert gateway.made.stops.wait(30)
    gateway.made.goes_on.set()
    (_stopped,) = Unpacker().feed(gateway.end.recv(10_000))
    assert gateway.run_job(CountRequest(3, saying("abc"))) == CountResult(3, 3)
    assert gateway.made.received == ["current", "abc"]


HELD = ReplySpec(tools=(Tool("a", parameters="{}"),))


def test_who_needs_no_grammar_does_not_wait_for_the_trial_of_one(gateway: Gateway) -> None:
    gateway.made.tried["a"] = 1_000_000
    gateway.end.sendall(pack(Request("held", saying("a"), client="held", spec=HELD)))
    assert gateway.made.begun.wait(30)
    gateway.end.sendall(pack(Request("plain", saying("plain"), client="plain")))
    assert _arrived(gateway, 1) == ["plain"]
    gateway.made.tried["a"] = 0
    assert _arrived(gateway, 1) == ["held"]


def test_what_is_less_urgent_waits_for_a_trial(gateway: Gateway) -> None:
    """A title is written when nobody waits."""
    gateway.made.goes_on.clear()
    gateway.end.sendall(pack(Request("first", saying("first"), client="first")))
    gateway.end.sendall(pack(Request("held", saying("a"), client="held", spec=HELD)))
    gateway.end.sendall(pack(Request("title", saying("title"), client="plain", priority=-1)))
    gateway.run_job(Ping(1))
    gateway.made.tried["a"] = 1
    gateway.made.goes_on.set()
    assert _arrived(gateway, 3) == ["first", "held", "title"]


def test_a_trial_that_goes_on_is_asked_for_now_and_then_while_others_wait(gateway: Gateway) -> None:
    """Each time takes as long as many prompts: one whose requests come one after the other waits for few of them."""
    received = gateway.made.received
    gateway.made.tried["a"] = 1_000_000
    gateway.end.sendall(pack(Request("held", saying("a"), client="held", spec=HELD)))
    assert gateway.made.begun.wait(30)
    gateway.end.sendall(pack(Request("plain", saying("plain"), client="plain")))
    assert _arrived(gateway, 1) == ["plain"]
    while received[-1] != "a":  # nobody else waits: it is level with the others from here on
        gateway.run_job(Ping(1))
    gateway.made.goes_on.clear()
    for place in range(9):
        gateway.end.sendall(pack(Request(f"plain{place}", saying("plain"), client="plain")))
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
    gateway.end.sendall(pack(CountRequest(1, saying("a"), spec=HELD)))
    assert gateway.made.begun.wait(30)
    gateway.end.sendall(pack(CancelCount(1)) + pack(CountRequest(2, saying("plain"))))
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
