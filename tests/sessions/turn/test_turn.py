"""The turn as a state machine: whatever is asked of it in whatever order, it ends once, and a cut keeps a beginning."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.text.detokenizer import floor_boundary
from sessions.events import Cause, Delta, Failure, KeptLength, Reason, Reasoning
from sessions.records import digest
from sessions.turn.turn_state import (
    EngineCount,
    IllegalTransition,
    ReplyPieces,
    TurnIds,
    TurnPhase,
    TurnState,
)

IDS = TurnIds(conversation_id="room", turn_id="turn", reply_id="reply")
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
TEXTS = st.lists(st.sampled_from(["a", " word", "é", "e\u0301", "你好", "🇫🇷", "👩‍👧", "\r\n"]), min_size=1)

PIECES = ["extend", "think", "called"]
STEPS = ["accept", "start", *PIECES, "cancel", "end"]


def running(*texts: str, tokens: int = 1) -> TurnState:
    turn = TurnState(IDS)
    turn.accept(now=10.0)
    turn.start(prompt_tokens=5, cached_tokens=2, now=10.1)
    for seq, text in enumerate(texts, start=2):
        turn.extend(text, tokens=tokens, seq=seq, now=10.0 + seq / 10)
    return turn


def apply_step(turn: TurnState, step: str) -> str:
    """One thing that can happen to a turn; says how it went."""
    try:
        match step:
            case "accept":
                turn.accept(now=1.0)
            case "start":
                turn.start(prompt_tokens=1, cached_tokens=0, now=1.0)
            case "extend":
                turn.extend("text", tokens=1, seq=1, now=1.0)
            case "think":
                turn.add_reasoning(tokens=1, seq=1, now=1.0)
            case "called":
                turn.called(tokens=1, seq=1, now=1.0)
            case "cancel":
                cut = turn.cancel(Cause.CLIENT, sent_off=2, seen_off=None, now=1.0)
                return "done" if cut else "too late"
            case _:
                turn.end(Reason.STOP, seq=1, now=1.0)
    except IllegalTransition:
        return "refused"
    return "done"


@patient
@given(st.lists(st.sampled_from(STEPS)))
def test_any_sequence_has_at_most_one_end_and_nothing_behind_it(steps: list[str]) -> None:
    turn = TurnState(IDS)
    went = [(step, apply_step(turn, step)) for step in steps]
    assert went.count(("accept", "done")) == min(1, steps.count("accept"))
    assert went.count(("end", "done")) <= 1
    assert went.count(("cancel", "done")) <= 1
    if ("end", "done") in went:
        behind = went[went.index(("end", "done")) + 1 :]
        assert turn.state is TurnPhase.ENDED
        assert all(outcome in ("refused", "too late") for step, outcome in behind if step != "start")
    if ("cancel", "done") in went:
        behind = went[went.index(("cancel", "done")) :]
        assert not any((piece, "done") in behind for piece in PIECES)


@patient
@given(st.lists(st.sampled_from(STEPS)))
def test_any_sequence_can_still_be_brought_to_its_end(steps: list[str]) -> None:
    turn = TurnState(IDS)
    ended = ("end", "done") in [(step, apply_step(turn, step)) for step in [*steps, "accept"]]
    assert apply_step(turn, "end") == ("refused" if ended else "done")


@patient
@given(TEXTS, st.integers(0, 60), st.none() | st.integers(0, 60))
def test_the_cut_is_what_was_handed_or_seen_down_to_a_character(
    texts: list[str], sent_off: int, seen: int | None
) -> None:
    turn, whole = running(*texts), "".join(texts)
    assert turn.cancel(Cause.CLIENT, sent_off=sent_off, seen_off=seen, now=20.0)
    furthest = min(sent_off, len(whole), len(whole) if seen is None else seen)
    done = turn.end(Reason.STOP, seq=99, now=20.5)
    assert turn.text == whole[: done.chars] == whole[: floor_boundary(whole, furthest)]
    assert done.text_sha256 == digest(turn.text)
    assert done.reason is Reason.CANCELLED


@patient
@given(TEXTS, st.integers(0, 60), st.none() | st.integers(0, 60), st.integers(0, 5))
def test_every_generated_token_is_kept_or_wasted(
    texts: list[str], sent_off: int, seen: int | None, more: int
) -> None:
    turn = running(*texts, tokens=2)
    turn.cancel(Cause.CLIENT, sent_off=sent_off, seen_off=seen, now=20.0)
    generated = 2 * len(texts) + more
    turn.count = EngineCount(prompt_tokens=5, generated_tokens=generated)
    usage = turn.end(Reason.CANCELLED, seq=99, now=20.5).usage
    kept = turn.pieces.tokens_of(KeptLength(len(turn.text), turn.pieces.end.reasoning_off))
    assert usage.wasted_tokens == generated - kept
    assert kept <= usage.sent_tokens <= 2 * len(texts)


@patient
@given(TEXTS)
def test_offsets_follow_each_other(texts: list[str]) -> None:
    turn = TurnState(IDS)
    turn.accept(now=0.0)
    deltas = [turn.extend(text, tokens=1, seq=seq, now=1.0) for seq, text in enumerate(texts)]
    assert [delta.off for delta in deltas] == [len("".join(texts[:place])) for place in range(len(texts))]
    assert turn.text == "".join(delta.text for delta in deltas)


def test_a_turn_that_thinks_or_calls_has_begun_and_its_tokens_and_times_count() -> None:
    """What it took to think is summed up to what came behind each thought. A preemption behind it changes no count."""
    turn = running()
    assert not turn.has_begun
    for now in (10.2, 10.5, 11.0):
        turn.add_reasoning("Hm.", tokens=1, seq=2, now=now)
    assert turn.has_begun
    turn.extend("So:", tokens=1, seq=3, now=12.0)
    turn.start(prompt_tokens=6, cached_tokens=6, now=13.0)
    turn.add_reasoning("Or?", tokens=1, seq=4, now=20.0)
    turn.called(tokens=4, seq=5, now=20.25)
    done = turn.end(Reason.STOP, seq=6, now=30.0)
    assert (done.chars, turn.text_seq) == (3, 3)
    usage = done.usage
    assert (usage.generated_tokens, usage.reasoning_tokens, usage.wasted_tokens) == (9, 4, 0)
    assert (usage.prompt_tokens, usage.cached_tokens) == (5, 2)
    assert usage.reasoning_ms == pytest.approx(2050)
    assert done.timing.queued_ms == pytest.approx(100)
    assert done.timing.first_token_ms == pytest.approx(200)
    assert done.timing.total_ms == pytest.approx(20_000)
    assert running("So:").end(Reason.STOP, seq=3, now=13.0).usage.reasoning_ms is None


@pytest.mark.parametrize(
    ("engine_reason", "reason"),
    [(Reason.STOP, Reason.TOOLS), (Reason.LENGTH, Reason.LENGTH), (Reason.FILTERED, Reason.FILTERED)],
)
def test_a_turn_that_stopped_with_calls_waits_for_its_tools(engine_reason: Reason, reason: Reason) -> None:
    turn = running("So:")
    turn.called(tokens=4, seq=4, now=10.4)
    assert turn.end(engine_reason, seq=5, now=10.5).reason is reason


def test_a_drain_is_a_failure_of_ours_and_a_rollback_keeps_nothing() -> None:
    turn = running("This")
    turn.cancel(Cause.DRAIN, sent_off=4, seen_off=None, now=20.0)
    error = Failure(code="engine_unavailable", message="gone")
    done = turn.end(Reason.ERROR, seq=9, now=20.0, error=error)
    assert (done.reason, done.error) == (Reason.INTERRUPTED, None)
    turn = running("This", " reply")
    turn.cancel(Cause.ROLLBACK, sent_off=10, seen_off=None, now=20.0)
    done = turn.end(Reason.STOP, seq=9, now=20.0)
    assert (done.chars, done.removed, done.usage.sent_tokens, done.usage.wasted_tokens) == (0, True, 2, 2)
    turn = running("one", " two")
    turn.add_reasoning(tokens=5, seq=4, now=10.4)
    turn.extend(" three", tokens=1, seq=5, now=10.5)
    turn.cancel(Cause.CLIENT, sent_off=3, seen_off=None, now=20.0)
    assert turn.end(Reason.CANCELLED, seq=6, now=20.5).usage.wasted_tokens == 7


@pytest.mark.parametrize(
    ("reason", "generated", "wasted"),
    [(Reason.STOP, 2, 0), (Reason.ERROR, 4, 3), (Reason.INTERRUPTED, None, 0)],
)
def test_tokens_that_never_became_text_are_wasted_unless_the_reply_ended_well(
    reason: Reason, generated: int | None, wasted: int
) -> None:
    """An engine that died left its prompt's count."""
    turn = running("This")
    if generated is not None:
        turn.count = EngineCount(prompt_tokens=5, cached_tokens=2, generated_tokens=generated)
    usage = turn.end(reason, seq=9, now=20.0).usage
    assert (usage.prompt_tokens, usage.cached_tokens, usage.sent_tokens) == (5, 2, 1)
    assert (usage.generated_tokens, usage.wasted_tokens) == (generated or 1, wasted)


def test_a_turn_cancelled_before_it_was_accepted_never_started() -> None:
    turn = TurnState(IDS)
    assert turn.cancel(Cause.CLIENT, sent_off=0, seen_off=None, now=0.5)
    with pytest.raises(IllegalTransition):
        turn.end(Reason.STOP, seq=1, now=1.0)
    turn.accept(now=1.0)
    done = turn.end(Reason.STOP, seq=2, now=1.0)
    assert (done.timing.queued_ms, done.timing.first_token_ms) == (None, None)


PIECE = st.tuples(st.sampled_from(["text", "thought", "call"]), st.text("abc ", min_size=1, max_size=5))
REPLIES = st.lists(PIECE, max_size=12)


def reply_parts(reply: list[tuple[str, str]]) -> ReplyPieces:
    pieces = ReplyPieces(conversation_id="room", turn_id="t")
    for seq, (kind, text) in enumerate(reply, start=2):
        if kind == "text":
            pieces.extend(text, tokens=1, seq=seq)
        elif kind == "thought":
            pieces.add_reasoning(text, tokens=1, seq=seq)
        else:
            pieces.call(tokens=1, seq=seq)
    return pieces


@given(REPLIES, st.data())
def test_what_is_told_behind_any_seq_is_the_rest(reply: list[tuple[str, str]], data: st.DataObject) -> None:
    pieces = reply_parts(reply)
    first, last = data.draw(st.integers(0, len(reply) + 1)), len(reply) + 1
    reported = pieces.merged_after(first, until=last)
    behind = reply[max(0, first - 1) :]
    for kind, event in (("text", Delta), ("thought", Reasoning)):
        parts = [one for one in reported if isinstance(one, event)]
        assert "".join(one.text for one in parts) == "".join(text for what, text in behind if what == kind)
        whole = pieces.text if event is Delta else pieces.reasoning
        assert all(whole[one.off : one.off + len(one.text)] == one.text for one in parts)
    assert sum(one.tokens for one in reported) == sum(kind != "call" for kind, _ in behind)
    assert [one.seq for one in reported] == sorted(one.seq for one in reported)


@given(REPLIES, st.integers(0, 40), st.integers(0, 40))
def test_a_cut_keeps_a_beginning(reply: list[tuple[str, str]], seen: int, reasoning_off: int) -> None:
    """Whoever saw a word saw what was thought before it."""
    pieces = reply_parts(reply)
    kept = pieces.kept(seen=seen, reasoning_off=reasoning_off)
    assert kept.chars <= min(seen, len(pieces.text))
    assert kept.reasoning <= len(pieces.reasoning)
    chars = before = 0
    for kind, text in reply:
        if kind == "thought":
            before += len(text)
        elif kind == "text":
            if chars < kept.chars:
                assert kept.reasoning >= before
            chars += len(text)
        elif chars <= kept.chars:
            assert kept.reasoning >= before


@given(REPLIES)
def test_tokens_are_those_of_the_pieces_that_are_kept_whole(reply: list[tuple[str, str]]) -> None:
    pieces = reply_parts(reply)
    assert pieces.tokens_of(KeptLength(len(pieces.text), len(pieces.reasoning))) == len(reply)
    assert pieces.tokens_until(len(reply) + 1) == len(reply)
    assert pieces.tokens_until(1) == 0
    nothing = next((place for place, (kind, _) in enumerate(reply) if kind != "call"), len(reply))
    assert pieces.tokens_of(KeptLength(0)) == nothing
