"""Requests wait for a process, are lost with it, and counts are asked again."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from engine.channel import Unpacker
from engine.errors import PromptRejected
from engine.messages import (
    CancelCount,
    CountRequest,
    Finished,
    FinishReason,
    Message,
    Request,
    ToEngine,
)
from engine.process.client import PendingRequests

HELLO = (Message("user", "hello"),)


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
def board() -> PendingRequests:
    return PendingRequests()


async def test_a_count_that_nobody_waits_for_is_given_up(
    board: PendingRequests, wire: RecordingChannel
) -> None:
    board.connect(wire)
    requested = asyncio.ensure_future(board.count(HELLO, "client"))
    await asyncio.sleep(0)
    requested.cancel()
    with pytest.raises(asyncio.CancelledError):
        await requested
    assert wire.sent == [CountRequest(0, HELLO, "client"), CancelCount(0)]


async def test_text_with_a_lone_surrogate_is_refused_for_its_sender_alone(board: PendingRequests) -> None:
    broken = (Message("user", "\ud800"),)
    end = board.request(Request("r", broken)).get_nowait()
    assert isinstance(end, Finished)
    assert end.reason is FinishReason.ERROR
    with pytest.raises(PromptRejected):
        await board.count(broken)


def test_what_a_process_was_told_of_is_not_handed_over(
    board: PendingRequests, wire: RecordingChannel
) -> None:
    other = PendingRequests()
    board.connect(wire)
    board.request(Request("r", HELLO))
    board.move_waiting_to(other)
    assert ("r" in board, "r" in other) == (True, False)
