"""A reply of text, thoughts and calls, cut anywhere: what is kept is its beginning, and what is told again is all of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sessions.events import Delta, KeptLength, Reasoning
from sessions.turn.turn_state import ReplyPieces

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
