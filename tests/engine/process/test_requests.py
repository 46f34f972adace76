"""Ids of requests, counts that are given up, and a socket that splits anywhere."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import PromptRejected
from engine.machine import EngineOptions
from engine.messages import (
    Cancel,
    CancelCount,
    CountRequest,
    Finished,
    FinishReason,
    Message,
    Ping,
    Request,
    StepOutputs,
    ToEngine,
    Unpacker,
    pack,
)
from engine.process.client import EngineClient

HELLO = (Message("user", "hello"),)
END = Finished("r", FinishReason.STOP, 1, 0, 1)


class RecordingChannel:
    """Notes what was sent."""

    def __init__(self) -> None:
        self.sent: list[ToEngine] = []
        self._unpacker = Unpacker()
        self._decoder = msgspec.msgpack.Decoder(ToEngine)

    def __call__(self, packed: bytes) -> None:
        self.sent += [self._decoder.decode(body) for body in self._unpacker.feed(packed)]


@pytest.fixture
def wire() -> RecordingChannel:
    return RecordingChannel()


@pytest.fixture
def board() -> EngineClient:
    return EngineClient(EngineOptions(model="none"))


def test_an_id_may_be_used_again_after_its_end_only(board: EngineClient, wire: RecordingChannel) -> None:
    board._connect(wire)
    board.generate(Request("r", HELLO))
    with pytest.raises(ValueError, match="still open"):
        board.generate(Request("r", HELLO))
    board._receive(StepOutputs((END,)))
    board.generate(Request("r", HELLO))


async def test_a_count_that_nobody_waits_for_is_given_up(board: EngineClient, wire: RecordingChannel) -> None:
    board._connect(wire)
    requested = asyncio.ensure_future(board.count_tokens(HELLO, client="client"))
    await asyncio.sleep(0)
    requested.cancel()
    with pytest.raises(asyncio.CancelledError):
        await requested
    [sent, cancel] = wire.sent
    assert isinstance(sent, CountRequest)
    assert (sent, cancel) == (CountRequest(sent.count_id, HELLO, "client"), CancelCount(sent.count_id))


async def test_text_with_a_lone_surrogate_is_refused_for_its_sender_alone(board: EngineClient) -> None:
    broken = (Message("user", "\ud800"),)
    end = board.generate(Request("r", broken)).get_nowait()
    assert isinstance(end, Finished)
    assert end.reason is FinishReason.ERROR
    with pytest.raises(PromptRejected):
        await board.count_tokens(broken)


def test_what_a_process_was_told_of_is_not_handed_over(board: EngineClient, wire: RecordingChannel) -> None:
    other = EngineClient(EngineOptions(model="none"))
    board._connect(wire)
    board.generate(Request("r", HELLO))
    board.move_waiting_to(other)
    assert (board.has_open("r"), other.has_open("r")) == (True, False)


messages = st.one_of(
    st.builds(Cancel, st.text()),
    st.builds(Ping, st.integers(0, 1 << 60)),
    st.builds(CountRequest, st.integers(0, 9), st.tuples(st.builds(Message, st.just("user"), st.text()))),
)
decoder: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)


@given(st.lists(messages), st.integers(1, 50))
def test_any_split_of_the_bytes_gives_the_same_messages(sent: list[ToEngine], size: int) -> None:
    stream = b"".join(pack(message) for message in sent)
    unpacker = Unpacker()
    received = [
        decoder.decode(body)
        for start in range(0, len(stream), size)
        for body in unpacker.feed(stream[start : start + size])
    ]
    assert received == sent
