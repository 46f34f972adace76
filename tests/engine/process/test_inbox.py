"""Cancels overtake what is still being prepared."""

from __future__ import annotations

import threading

from engine.messages import Finished, FinishReason, Message, Params, Request
from engine.process.dispatcher import Inbox, Work
from engine.text.reply_text import PreparedRequest, ReplyText, resolve_sampling

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
    inbox = Inbox()
    inbox.register(REQUEST)
    inbox.deliver(REQUEST, PREPARED)
    assert inbox.take(0) == Work([PREPARED], [], [])
    assert inbox.take(0) == NOTHING


def test_a_cancel_during_preparation_ends_the_request_at_once() -> None:
    inbox = Inbox()
    inbox.register(REQUEST)
    assert inbox.is_wanted(REQUEST)
    assert inbox.arriving == 1
    inbox.cancel("r")
    assert not inbox.is_wanted(REQUEST)
    inbox.deliver(REQUEST, PREPARED)
    assert inbox.take(0) == Work([], [], [CANCELLED])
    assert inbox.cancelled_early == 1


def test_a_cancel_of_a_prepared_request_is_left_to_the_core() -> None:
    inbox = Inbox()
    inbox.register(REQUEST)
    inbox.deliver(REQUEST, PREPARED)
    inbox.cancel("r")
    assert inbox.take(0) == Work([PREPARED], ["r"], [])


def test_a_refusal_is_an_end() -> None:
    inbox = Inbox()
    refused = Finished("r", FinishReason.ERROR, 0, 0, 0, error="no")
    inbox.register(REQUEST)
    inbox.deliver(REQUEST, refused)
    assert inbox.take(0).ends == [refused]


def test_work_wakes_the_loop_that_waits() -> None:
    inbox = Inbox()
    canceller = threading.Thread(target=inbox.cancel, args=("r",))
    canceller.start()
    assert inbox.take(None).cancels == ["r"]
    canceller.join()
