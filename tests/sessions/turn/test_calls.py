"""Calls of a reply, moved in any order by anybody: each is settled once, and what was said is answered the same again."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sessions.errors import Conflict
from sessions.events import CallState
from sessions.records import CallRecord, digest
from sessions.store.codec import decode_call, encode_call
from sessions.turn.tool_calls import (
    CallAnswer,
    Decision,
    Result,
    ToolCalls,
    answered,
    cancelled,
    claimed,
    done,
    expired,
    is_runnable,
    lost,
    result_text,
)

SETTLED = {state for state in CallState if state.is_settled}
WHEN = st.sampled_from([0, 999, 1000, 5000])
TEXTS = st.sampled_from(["Rain.", "Sun."])
ARGS = st.sampled_from([None, '{"a": 2}'])


def call(number: int, where: str, needs: str) -> CallRecord:
    return msgspec.convert(
        {
            "call_id": f"call-{number}",
            "index": number,
            "name": "look",
            "args": '{"a": 1}',
            "where": where,
            "needs": needs,
            "off": 0,
            "tokens": 1,
            "seq": number + 1,
            "expires_at": 1000 if where == "client" or needs == "approval" else None,
        },
        CallRecord,
    )


KINDS = st.tuples(st.sampled_from(["client", "server"]), st.sampled_from(["none", "approval"]))


class OpenCalls(RuleBasedStateMachine):
    """Clients, tools, clocks, cancels and deaths, in any order."""

    @initialize(kinds=st.lists(KINDS, min_size=1, max_size=4))
    def begin(self, kinds: list[tuple[str, str]]) -> None:
        self.calls = ToolCalls(call(number, *kind) for number, kind in enumerate(kinds))
        self.settled: dict[str, CallRecord] = {}
        self.started: dict[str, int] = {}
        self.accepted: list[CallAnswer] = []

    def _answer(self, answer: CallAnswer) -> None:
        before = self.calls.get(answer.call_id)
        try:
            moved = self.calls.answered(answer, runner="here")
        except Conflict:
            return
        if moved != before:
            self.accepted.append(answer)
        self.calls.put(moved)

    def _move(self, place: int, change: Callable[[CallRecord], CallRecord]) -> None:
        """As whoever writes moves does it: what is settled stays."""
        one = self.calls.records[place % len(self.calls)]
        if not one.state.is_settled:
            self.calls.put(change(one))

    @rule(place=st.integers(0, 3), text=TEXTS, failed=st.booleans())
    def result(self, place: int, text: str, failed: bool) -> None:  # noqa: FBT001 - drawn
        one = self.calls.records[place % len(self.calls)]
        outcome = {"error" if failed else "content": text}
        self._answer(Result(call_id=one.call_id, **outcome))

    @rule(place=st.integers(0, 3), allow=st.booleans(), args=ARGS, is_sound=st.booleans())
    def decision(self, place: int, allow: bool, args: str | None, is_sound: bool) -> None:  # noqa: FBT001 - drawn
        one = self.calls.records[place % len(self.calls)]
        seen = digest(one.args) if is_sound else digest("other")
        self._answer(Decision(call_id=one.call_id, args_sha256=seen, allow=allow, args=args))

    @rule(place=st.integers(0, 3))
    def start(self, place: int) -> None:
        one = self.calls.records[place % len(self.calls)]
        if is_runnable(one):
            self.calls.put(claimed(one, runner="here"))
            self.started[one.call_id] = self.started.get(one.call_id, 0) + 1

    @rule(place=st.integers(0, 3), text=TEXTS)
    def tool_ends(self, place: int, text: str) -> None:
        one = self.calls.records[place % len(self.calls)]
        if one.where == "server" and one.state is CallState.RUNNING:
            self._move(place, lambda running: done(running, content=text))

    @rule(place=st.integers(0, 3))
    def replica_dies(self, place: int) -> None:
        one = self.calls.records[place % len(self.calls)]
        if one.where == "server" and one.state is CallState.RUNNING:
            self._move(place, lost)

    @rule(now_ms=WHEN)
    def time_passes(self, now_ms: int) -> None:
        for place in range(len(self.calls)):
            self._move(place, lambda one: expired(one, now_ms=now_ms))

    @rule()
    def cancel(self) -> None:
        for place in range(len(self.calls)):
            self._move(place, cancelled)

    @invariant()
    def nothing_moves_a_settled_call(self) -> None:
        for one in self.calls.records if hasattr(self, "calls") else ():
            if one.call_id in self.settled:
                assert one == self.settled[one.call_id]
            elif one.state.is_settled:
                self.settled[one.call_id] = one

    @invariant()
    def each_is_started_once_at_most(self) -> None:
        assert all(times == 1 for times in getattr(self, "started", {}).values())

    @invariant()
    def what_counted_is_answered_the_same_again(self) -> None:
        """Unless the call went on since: then it is refused, and changes nothing."""
        for answer in getattr(self, "accepted", []):
            one = self.calls.get(answer.call_id)
            assert one is not None
            try:
                assert answered(one, answer) == one
            except Conflict:
                assert one.state not in (CallState.DONE, CallState.DENIED)

    @invariant()
    def the_store_gives_back_what_it_was_given(self) -> None:
        for one in self.calls.records if hasattr(self, "calls") else ():
            assert decode_call(encode_call(one), call_id=one.call_id) == one

    @invariant()
    def every_call_has_something_for_the_model_to_read(self) -> None:
        assert all(result_text(one) for one in (self.calls.records if hasattr(self, "calls") else ()))


TestOpenCalls = OpenCalls.TestCase


def test_a_tool_that_runs_does_not_expire() -> None:
    allowed = msgspec.structs.replace(call(0, "server", "approval"), state=CallState.RUNNING)
    assert expired(allowed, now_ms=10**15) == allowed
    assert expired(call(0, "server", "approval"), now_ms=1000).state is CallState.EXPIRED


@pytest.mark.parametrize("chars", [0, 1, 2, 3])
def test_calls_behind_what_is_kept_are_forgotten(chars: int) -> None:
    calls = ToolCalls(
        msgspec.structs.replace(call(number, "client", "none"), off=number) for number in range(3)
    )
    calls.keep(chars)
    assert [one.off for one in calls.records] == list(range(min(chars + 1, 3)))
