"""Cancels overtake what is still being prepared."""

from __future__ import annotations

import threading

from engine.messages import Finished, FinishReason, Message, Params, Request
from engine.process.inbox import Lanes, Work
from engine.text.prepared import PreparedRequest, resolve_sampling
from engine.text.reply_text import ReplyText

REQUEST = Request("r", (Message("user", "hi"),))
CANCELLED = Finished("r", FinishReason.CANCELLED, 0, 0, 0, steps_after=0)
NOTHING = Work([], [], [])


class NoText:
    def push(self, token_id: int) -> str:
        return ""

    def flush(self) -> str:
        return ""


PREPARED = PreparedRequest("r", [1, 2], resolve_sampling(Params(), Params()), ReplyText(NoText()))


def test_a_prepared_request_is_handed_over_once() -> None:
    lanes = Lanes()
    lanes.arrive(REQUEST)
    lanes.deliver(REQUEST, PREPARED)
    assert lanes.take(0) == Work([PREPARED], [], [])
    assert lanes.take(0) == NOTHING


def test_a_cancel_during_preparation_ends_the_request_at_once() -> None:
    lanes = Lanes()
    lanes.arrive(REQUEST)
    assert lanes.wants(REQUEST)
    assert lanes.arriving == 1
    lanes.cancel("r")
    assert not lanes.wants(REQUEST)
    lanes.deliver(REQUEST, PREPARED)
    assert lanes.take(0) == Work([], [], [CANCELLED])
    assert lanes.cancelled_early == 1


def test_a_cancel_of_a_prepared_request_is_left_to_the_core() -> None:
    lanes = Lanes()
    lanes.arrive(REQUEST)
    lanes.deliver(REQUEST, PREPARED)
    lanes.cancel("r")
    assert lanes.take(0) == Work([PREPARED], ["r"], [])


def test_a_refusal_is_an_end() -> None:
    lanes = Lanes()
    refused = Finished("r", FinishReason.ERROR, 0, 0, 0, error="no")
    lanes.arrive(REQUEST)
    lanes.deliver(REQUEST, refused)
    assert lanes.take(0).ends == [refused]


def test_work_wakes_the_loop_that_waits() -> None:
    lanes = Lanes()
    canceller = threading.Thread(target=lanes.cancel, args=("r",))
    canceller.start()
    assert lanes.take(None).cancels == ["r"]
    canceller.join()
