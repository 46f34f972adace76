"""A reply is shown in whole characters, ends before its stop string, and is sampled as somebody asked."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.messages import REPLY_TOKENS, Params
from engine.text.reply_text import Piece, ReplyStep, ReplyText, ShownText, resolve_sampling
from tests.engine.text.letters import Cut, Letters
from tests.engine.text.parse import cut


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


@pytest.mark.parametrize(
    ("reply", "text", "shown"),
    [
        (ReplyText(Letters()), "hi👍", ["h", "i", "", "👍"]),
        (ReplyText(Letters(), ["END"]), "a👍END", ["a", "", "", "", "👍", ""]),
        (ReplyText(Letters(), ["END"]), "👍EN", ["", "", "", "👍EN"]),
        (ReplyText(Cut()), "a", ["a", "\ufffd"]),
        (ReplyText(Cut(), ["b\ufffd"]), "ab", ["a", "", ""]),
    ],
    ids=["it waits", "before a stop string", "and before its beginning", "a cut character", "one that stops"],
)
def test_a_character_waits_until_it_is_whole(reply: ReplyText, text: str, shown: list[str]) -> None:
    assert emitted_pieces(reply, text) == shown
    assert ReplyText(Letters(), ["."]).push(ord(".")) == ReplyStep((), stopped=True)


def play(stops: list[str], pieces: list[str]) -> tuple[str, str | None]:
    """Return all the text that was shown, and the stop string that ended it."""
    text, shown = ShownText(stops), ""
    for piece in pieces:
        shown += text.push(piece)
        if text.stop is not None:
            return shown, text.stop
    return shown + text.flush(), None


def test_a_stop_string_over_three_pushes_never_leaks_and_the_one_complete_first_wins() -> None:
    text = ShownText(["<end>"])
    assert [text.push(part) for part in ("hi <e", "n", "d> more")] == ["hi ", "", ""]
    assert text.stop == "<end>"
    assert play(["abcd", "bc"], ["abcd"]) == ("a", "bc")
    assert play(["bc", "abc"], ["xabc"]) == ("x", "abc")


@given(
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=4),
    st.text("abc👍\u200d"),
    st.lists(st.integers(0), max_size=6),
)
def test_any_split_shows_the_same(stops: list[str], text: str, cuts: list[int]) -> None:
    assert play(stops, cut(text, cuts)) == play(stops, list(text)) == play(stops, [text])


@given(
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=4),
    st.text(st.sampled_from("abc👍🏽\u200d🇩🇪中\u094d")),
)
def test_what_is_shown_is_all_before_a_stop_string(stops: list[str], text: str) -> None:
    shown, stop = play(stops, list(text))
    assert not any(one in shown for one in stops)
    assert (stop is not None) == any(one in text for one in stops)
    assert text == shown if stop is None else text.startswith(shown + stop)


def test_the_request_wins_over_the_model_and_zero_is_a_value() -> None:
    requested = Params(
        max_new_tokens=5, do_sample=True, temperature=0.5, top_p=0.4, top_k=0, seed=1, max_time_s=2.0,
        min_p=0.1, logit_bias=((3, 1.0),), min_tokens=2, ignore_eos=True,
    )  # fmt: skip
    model = Params(
        max_new_tokens=9, do_sample=False, temperature=0.9, top_p=0.8, top_k=7, repetition_penalty=1.2,
        min_p=0.2, presence_penalty=0.5,
    )  # fmt: skip
    got = resolve_sampling(requested, model)
    for name in requested.__struct_fields__:
        if hasattr(got, name) and getattr(requested, name) is not None:
            assert getattr(got, name) == getattr(requested, name), name
    assert (got.repetition_penalty, got.presence_penalty) == (1.2, 0.5)


def test_where_nobody_says_anything_transformers_does_and_all_else_is_off() -> None:
    got = resolve_sampling(Params(), Params())
    assert (got.max_new_tokens, got.do_sample, got.temperature) == (REPLY_TOKENS, False, 1.0)
    assert (got.top_p, got.top_k, got.repetition_penalty, got.seed) == (1.0, 50, 1.0, None)
    assert (got.min_p, got.presence_penalty, got.frequency_penalty) == (0.0, 0.0, 0.0)
    assert (got.logit_bias, got.min_tokens, got.ignore_eos) == ((), 0, False)


@pytest.mark.parametrize(
    ("requested", "model", "samples"),
    [
        (Params(), Params(do_sample=True), True),
        (Params(temperature=0.0), Params(do_sample=True), False),
        (Params(), Params(do_sample=True, temperature=0.0), False),
        (Params(temperature=0.7), Params(do_sample=False), True),
        (Params(temperature=0.7, do_sample=False), Params(do_sample=True), False),
    ],
)
def test_a_temperature_asks_for_sampling_and_zero_for_none(
    requested: Params, model: Params, *, samples: bool
) -> None:
    assert resolve_sampling(requested, model).do_sample is samples
