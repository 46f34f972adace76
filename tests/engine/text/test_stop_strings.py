"""Stop strings end a reply and never leak, however the text is split."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from engine.text.reply_text import StopStrings


def play(stops: list[str], pieces: list[str]) -> tuple[str, str | None]:
    """Return all the text that was shown, and the stop string that ended it."""
    machine, shown = StopStrings(stops), ""
    for piece in pieces:
        text, stop = machine.push(piece)
        shown += text
        if stop is not None:
            return shown, stop
    return shown + machine.flush(), None


def split(text: str, cuts: list[int]) -> list[str]:
    places = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[a:b] for a, b in pairwise(places)]


def test_a_stop_string_over_three_pushes_never_leaks() -> None:
    machine = StopStrings(["<end>"])
    assert [machine.push(text) for text in ("hi <e", "n", "d> more")] == [
        ("hi ", None),
        ("", None),
        ("", "<end>"),
    ]


def test_a_false_alarm_is_given_out() -> None:
    machine = StopStrings(["<end>"])
    assert machine.push("a<e")[0] + machine.push("lse")[0] == "a<else"


def test_what_begins_a_stop_string_at_the_end_is_flushed() -> None:
    assert play(["###"], ["a##"]) == ("a##", None)


def test_the_stop_string_complete_first_wins() -> None:
    assert play(["abcd", "bc"], ["abcd"]) == ("a", "bc")
    assert play(["bc", "abc"], ["xabc"]) == ("x", "abc")


def test_without_stop_strings_all_text_passes() -> None:
    assert play([], ["a", "b"]) == ("ab", None)


letters = st.text("abc")


@given(
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=4),
    letters,
    st.lists(st.integers(0), max_size=6),
)
def test_any_split_shows_the_same(stops: list[str], text: str, cuts: list[int]) -> None:
    assert play(stops, split(text, cuts)) == play(stops, list(text)) == play(stops, [text])


@given(st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=4), letters)
def test_what_is_shown_holds_no_stop_string(stops: list[str], text: str) -> None:
    shown, stop = play(stops, list(text))
    assert not any(one in shown for one in stops)
    assert text.startswith(shown)
    assert (stop is not None) == any(one in text for one in stops)
    assert stop is None or text.startswith(shown + stop)
