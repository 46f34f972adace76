"""A reply is shown in whole characters and ends before its stop string."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from engine.text.reply_text import Piece, ReplyStep, ReplyText


class Letters:
    """A detokenizer whose tokens are code points."""

    def push(self, token_id: int) -> str:
        return chr(token_id)

    def flush(self) -> str:
        return ""


class Cut(Letters):
    """Ends in the middle of a character."""

    def flush(self) -> str:
        return "\ufffd"


def emitted_pieces(reply: ReplyText, text: str) -> list[str]:
    steps = []
    for character in text:
        step = reply.push(ord(character))
        steps.append(text_of(step.pieces))
        if step.stopped:
            break
    return [*steps, text_of(reply.flush())]


def text_of(pieces: Sequence[Piece]) -> str:
    """All pieces of a reply that is not parsed are text, and none is empty."""
    assert all(isinstance(piece, str) and piece for piece in pieces)
    return "".join(map(str, pieces))


def test_an_emoji_waits_and_is_flushed_at_the_end() -> None:
    assert emitted_pieces(ReplyText(Letters()), "hi👍") == ["h", "i", "", "👍"]


def test_what_is_before_a_stop_string_is_shown_even_if_it_waited() -> None:
    assert emitted_pieces(ReplyText(Letters(), ["END"]), "a👍END") == ["a", "", "", "", "👍", ""]


def test_a_beginning_of_a_stop_string_comes_behind_the_emoji_at_the_end() -> None:
    assert emitted_pieces(ReplyText(Letters(), ["END"]), "👍EN")[-1] == "👍EN"


def test_a_cut_character_ends_the_reply_or_completes_a_stop_string() -> None:
    assert emitted_pieces(ReplyText(Cut()), "a") == ["a", "\ufffd"]
    assert emitted_pieces(ReplyText(Cut(), ["b\ufffd"]), "ab") == ["a", "", ""]


def test_a_step_tells_that_it_stopped() -> None:
    assert ReplyText(Letters(), ["."]).push(ord(".")) == ReplyStep((), stopped=True)


@given(st.text(st.sampled_from("ab👍🏽\u200d🇩🇪中\u094d")))
def test_without_a_stop_string_all_text_comes_out(text: str) -> None:
    assert "".join(emitted_pieces(ReplyText(Letters(), ["never"]), text)) == text
