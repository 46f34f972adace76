"""Turns as Realtime events. A client that follows `previous_item_id` has the order that the session has."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from connections.api.realtime.encoder import RealtimeEventEncoder, RealtimeFrame
from connections.api.realtime.events import (
    Event,
    InvalidEvent,
    ItemCreate,
    ItemRetrieve,
    NewItem,
    Part,
    ResponseCreate,
)
from connections.api.realtime.session import ItemState, RealtimeSession
from connections.outbox import Outbox
from connections.protocol import frames
from sessions.events import Failure, Gap, Reason, Removed
from tests.connections.factory import accepted, call, call_state, delta, done
from tests.connections.realtime.client_mirror import LIMITS, ClientMirror


def known_by(requests: tuple[frames.Send | frames.ToolResult, ...]) -> str:
    (send,) = requests
    assert isinstance(send, frames.Send)
    return send.client_msg_id


class Session:
    """Both halves, and a client that hears what is told."""

    def __init__(self) -> None:
        self.session = RealtimeSession(conversation_id="c", model="m", limits=LIMITS)
        self.items = self.session.items
        self.encoder = RealtimeEventEncoder(self.session)
        self.mirror = ClientMirror()

    def deliver(self, frame: frames.Frame) -> list[Event]:
        sent = list(self.encoder.encode(frame))
        self.mirror.apply(*sent)
        return sent

    def create(self, text: str, *, after: str | None = None) -> str:
        item = NewItem(role="user", content=[Part("input_text", text)])
        sent = self.session.create(ItemCreate(item=item, previous_item_id=after))
        self.mirror.apply(*sent)
        return str(sent[0]["item"]["id"])

    def run(self, turn_id: str, text: str = "Hello!", **end: Any) -> dict[str, Any]:
        """A whole turn of another's; return its response."""
        self.deliver(accepted(turn_id, "theirs", "Hi!"))
        self.deliver(delta(text, turn_id=turn_id))
        return response_of(self.deliver(done(turn_id, end.pop("chars", len(text)), **end)))


def response_of(events: list[Event]) -> dict[str, Any]:
    (response,) = [event["response"] for event in events if event["type"] == "response.done"]
    assert isinstance(response, dict)
    return response


@pytest.mark.parametrize(
    ("reason", "status", "details"),
    [
        (Reason.STOP, "completed", {}),
        (Reason.LENGTH, "incomplete", {"reason": "max_output_tokens"}),
        (Reason.TIMEOUT, "incomplete", {"reason": "max_output_tokens"}),
        (Reason.FILTERED, "incomplete", {"reason": "content_filter"}),
        (Reason.CANCELLED, "cancelled", {"reason": "client_cancelled"}),
        (Reason.INTERRUPTED, "failed", None),
        (Reason.ERROR, "failed", None),
    ],
)
def test_every_end_has_its_status(reason: Reason, status: str, details: dict[str, str] | None) -> None:
    response = Session().run("turn_1", reason=reason)
    assert response["status"] == status
    if details is not None:
        assert response["status_details"] == {"type": status} | details
    else:
        assert response["status_details"]["error"]
    assert response["output"][0]["status"] == ("completed" if status == "completed" else "incomplete")
    usage = response["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (7, 5, 12)
    assert usage["input_token_details"]["cached_tokens"] == 3


def test_a_failure_says_why() -> None:
    why = Failure(code="context_overflow", message="Too long.")
    error = Session().run("turn_1", reason=Reason.ERROR, error=why)["status_details"]["error"]
    assert error == {
        "type": "invalid_request_error",
        "code": "context_length_exceeded",
        "message": "Too long.",
    }


def test_a_call_behind_text_that_was_withdrawn_is_withdrawn_too() -> None:
    session = Session()
    session.deliver(accepted("turn_1", "theirs", "Hi!"))
    session.deliver(delta("Hello, world!", turn_id="turn_1"))
    for place, off in enumerate((5, 13)):
        session.deliver(call(f"call_{place}", "turn_1", off=off, index=place))
    output = session.deliver(done("turn_1", 5, Reason.CANCELLED))
    assert [item["id"] for item in response_of(output)["output"]] == ["item_1", "item_1_0"]
    assert session.mirror.order == ["msg_turn_1", "item_1", "item_1_0", "item_1_0_output"]


@pytest.mark.parametrize("mine", [True, False])
def test_what_came_of_a_call_stands_behind_it_whatever_was_told_since(*, mine: bool) -> None:
    session = Session()
    session.deliver(accepted("turn_1", "theirs", "Hi!"))
    session.deliver(call("call_1", "turn_1"))
    session.deliver(accepted("turn_2", "theirs", "And?"))
    if mine:
        output = NewItem(type="function_call_output", call_id="call_1", output="Rain.")
        session.mirror.apply(*session.session.create(ItemCreate(item=output)))
    else:
        session.deliver(done("turn_1", 0))
    session.deliver(delta("Hello.", turn_id="turn_2"))
    (status,) = [item for item in session.items if item.role == "tool"]
    assert session.mirror.order == ["msg_turn_1", "item_1_0", status.item_id, "msg_turn_2", "item_2"]


def test_a_reply_on_a_branch_that_is_left_goes_once_it_has_ended() -> None:
    session = Session()
    session.run("turn_1")
    session.deliver(accepted("turn_2", "theirs", "And?", parent_id="reply_turn_1"))
    session.deliver(
        accepted("turn_3", "theirs", "Or?", parent_id="reply_turn_2")
    )  # whose name nobody has said yet
    for turn_id in ("turn_2", "turn_3"):
        session.deliver(delta("Hello.", turn_id=turn_id))
    assert session.mirror.order[-4:] == ["msg_turn_2", "item_2", "msg_turn_3", "item_3"]
    session.deliver(accepted("turn_4", "theirs", "Hi there!", parent_id=None))
    session.deliver(delta("Hello.", turn_id="turn_4"))
    for turn_id in ("turn_2", "turn_3"):
        session.deliver(done(turn_id, 0))
    assert session.mirror.ended == ["resp_1", "resp_2", "resp_3"]
    assert session.mirror.order == ["msg_turn_4", "item_4"]


def test_a_token_that_ends_is_told_in_words_that_a_client_here_can_follow() -> None:
    expired = frames.Error(code="unauthenticated", message="send auth.refresh", retryable=True)
    (event,) = Session().deliver(expired)
    assert (event["error"]["type"], event["error"]["code"]) == ("authentication_error", "session_expired")
    assert "auth.refresh" not in event["error"]["message"]


def test_what_waits_to_be_told_counts_with_its_text() -> None:
    """A client that asks for a long item again and again, and does not read, is cut off as any other."""
    session, outbox = Session(), Outbox(max_bytes=10_000)
    item_id = session.create("x" * 190)
    for _ in range(20):
        outbox.put_nowait(RealtimeFrame(events=(session.session.retrieve(ItemRetrieve(item_id=item_id)),)))
    assert outbox.is_over_limit


def test_a_hole_is_told() -> None:
    (event,) = Session().deliver(Gap(conversation_id="c", epoch="e", min_seq=3))
    assert (event["error"]["type"], event["error"]["code"]) == ("server_error", "events_lost")


class Sessions(RuleBasedStateMachine):
    """Whatever happens in whichever order, the client has the session's items in the session's order, and each reply ends once."""

    @initialize()
    def open(self) -> None:
        self.session = Session()
        self.pending_request_id: str | None = None
        self.running: dict[str, int] = {}
        self.over: list[str] = []
        self.gone: set[str] = set()  # exchanges that were taken back
        self.turns = 0
        self.calling: str | None = None  # an ended turn whose calls are open
        self.exchanges: dict[str, str] = {}
        self.calls: dict[str, str] = {}
        self.new_item = 0

    def next_turn(self, follows: str | None = None) -> str:
        self.turns += 1
        turn_id = f"turn_{self.turns}"
        self.exchanges[turn_id] = self.exchanges[follows] if follows else turn_id
        return turn_id

    def of_calling(self) -> list[str]:
        return [call_id for call_id, turn_id in self.calls.items() if turn_id == self.calling]

    @rule(place=st.none() | st.just("root") | st.integers(0, 20))
    def create(self, place: int | str | None) -> None:
        order = self.session.mirror.order
        after = order[place % len(order)] if isinstance(place, int) and order else place
        try:
            self.session.create("Hi?", after=None if isinstance(after, int) else after)
        except InvalidEvent:
            assert after is not None or len(self.session.items.waiting()) > 20

    @rule(place=st.integers(0, 20))
    def delete(self, place: int) -> None:
        order = self.session.mirror.order
        if not order:
            return
        try:
            sent = self.session.session.delete(order[place % len(order)])
        except InvalidEvent:
            return
        if not isinstance(sent, str):
            self.session.mirror.apply(sent)
        elif self.is_last(sent) and not self.running and not self.calling:
            self.gone.add(gone := self.exchanges[sent])
            self.over = [one for one in self.over if self.exchanges[one] != gone]
            self.session.encoder.on_removed[sent] = lambda: None
            self.session.deliver(Removed(conversation_id="c", turn_id=sent, seq=9))

    def is_last(self, turn_id: str) -> bool:
        """The store has nothing behind it, so it can be taken back."""
        last = self.session.items.stored()[-1].turn_id
        return self.over[-1:] == [turn_id] and self.exchanges[last] == self.exchanges[turn_id]

    @rule()
    def ask(self) -> None:
        waiting = self.session.items.waiting()
        if self.session.items.open_calls():
            self.go_on()
            return
        try:
            self.pending_request_id = known_by(self.session.session.ask(ResponseCreate()))
        except InvalidEvent:
            assert self.pending_request_id or not waiting or self.session.session.asked

    def go_on(self) -> None:
        open_calls = [item.call_id for item in self.session.items.open_calls()]
        try:
            results = self.session.session.ask(ResponseCreate())
        except InvalidEvent:
            waiting = {item.call_id for item in self.session.items.waiting("tool")}
            assert self.running or self.session.session.asked or not waiting.issuperset(open_calls)
            return
        sent = [one for one in results if isinstance(one, frames.ToolResult)]
        for one in sent:
            self.session.deliver(call_state(one.call_id, self.calls[one.call_id], content=one.content))
            self.calls[one.call_id] = ""
        assert {one.call_id for one in sent} == set(open_calls)

    @precondition(lambda self: self.session.items.open_calls())
    @rule(place=st.integers(0, 5), mine=st.booleans())
    def settle(self, place: int, *, mine: bool) -> None:
        """An output from here, or from elsewhere."""
        calls = [item.call_id for item in self.session.items.open_calls()]
        call_id = calls[place % len(calls)]
        if not mine:
            self.session.deliver(call_state(call_id, self.calls[call_id], content="Theirs."))
            self.calls[call_id] = ""
            return
        item = NewItem(type="function_call_output", call_id=call_id, output="Mine.")
        try:
            self.session.mirror.apply(*self.session.session.create(ItemCreate(item=item)))
        except InvalidEvent:
            assert self.session.items.outcome(call_id) is not None

    @precondition(lambda self: self.running)
    @rule()
    def call(self) -> None:
        turn_id = next(iter(self.running))
        self.new_item += 1  # a call is named once, whatever became of those before
        sent = call(f"call_{self.new_item}", turn_id, off=self.running[turn_id], index=len(self.calls))
        self.calls[sent.call_id] = turn_id
        self.session.deliver(sent)

    @precondition(lambda self: self.calling and not self.of_calling())
    @rule()
    def follow(self) -> None:
        """All calls are settled: the next turn begins by itself."""
        follows, self.calling = str(self.calling), None
        turn_id = self.next_turn(follows)
        self.session.deliver(
            accepted(
                turn_id, "theirs", message_id=f"reply_{follows}", follows=follows, parent_id=msgspec.UNSET
            )
        )
        self.running[turn_id] = 0

    @precondition(lambda self: self.pending_request_id)
    @rule(taken=st.booleans())
    def answer(self, *, taken: bool) -> None:
        client_msg_id, self.pending_request_id = str(self.pending_request_id), None
        if taken and not self.running and not self.calling:
            turn_id = self.next_turn()
            self.session.deliver(accepted(turn_id, client_msg_id))
            self.running[turn_id] = 0
        else:
            self.session.session.requeue(client_msg_id)

    @precondition(lambda self: not self.calling)
    @rule()
    def others_turn(self) -> None:
        turn_id = self.next_turn()
        self.session.deliver(accepted(turn_id, "theirs", "Hi!"))
        self.running[turn_id] = 0

    @precondition(lambda self: not self.calling)
    @rule(again=st.booleans(), place=st.none() | st.integers(0, 20))
    def others_branch(self, *, again: bool, place: int | None) -> None:
        """An edit, or another reply."""
        turn_id, role = self.next_turn(), "user" if again else "assistant"
        known = [one.message_id for one in self.session.items.stored() if one.role == role and one.message_id]
        which = known[place % len(known)] if known and place is not None else None
        names = {"message_id": which} if again and which else {}
        self.session.deliver(accepted(turn_id, "theirs", "Hi!", parent_id=None if again else which, **names))
        self.running[turn_id] = 0
        there = {one.turn_id for one in self.session.items if one.role == "assistant"}
        self.over = [one for one in self.over if one in there]

    @precondition(lambda self: self.running)
    @rule(text=st.text(min_size=1, max_size=3))
    def speech_message(self, text: str) -> None:
        turn_id = next(iter(self.running))
        self.session.deliver(delta(text, turn_id=turn_id))
        self.running[turn_id] += len(text)

    @precondition(lambda self: self.running)
    @rule(kept=st.integers(0, 9), reason=st.sampled_from(Reason), removed=st.booleans())
    def end(self, kept: int, reason: Reason, *, removed: bool) -> None:
        turn_id = next(iter(self.running))
        removed = removed and reason is Reason.CANCELLED
        chars = self.running.pop(turn_id)
        if reason is not Reason.TOOLS:
            chars = min(kept, chars)
            self.calls = {one: turn for one, turn in self.calls.items() if turn != turn_id}
        self.session.deliver(done(turn_id, chars, reason, removed=removed))
        assert self.session.mirror.ended[-1] == f"resp_{turn_id.removeprefix('turn_')}"
        mine = [item for item in self.session.items.of_turn(turn_id) if item.role == "assistant"]
        self.calling = turn_id if reason is Reason.TOOLS and mine and not self.running else None
        if not removed:
            self.over.append(turn_id)
        else:
            self.gone.add(gone := self.exchanges[turn_id])
            self.over = [one for one in self.over if self.exchanges[one] != gone]

    @invariant()
    def the_client_knows_the_items(self) -> None:
        assert self.session.mirror.order == [item.item_id for item in self.session.items if item.sent]

    @invariant()
    def what_is_answered_comes_before_what_waits(self) -> None:
        order = [ItemState.STORED, ItemState.PENDING, ItemState.WAITING]
        places = [0 if item.role == "tool" else order.index(item.state) for item in self.session.items]
        assert places == sorted(places)

    @invariant()
    def an_exchange_stands_together_and_is_taken_back_as_one(self) -> None:
        turns = [self.exchanges[item.turn_id] for item in self.session.items.stored()]
        assert len([*groupby(turns)]) == len(set(turns))
        assert self.gone.isdisjoint(self.exchanges.get(item.turn_id, "") for item in self.session.items)

    @invariant()
    def the_client_knows_what_runs(self) -> None:
        assert self.session.mirror.open == {f"resp_{turn.removeprefix('turn_')}" for turn in self.running}


TestSessions = Sessions.TestCase
TestSessions.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
