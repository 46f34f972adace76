"""Stop strings end a reply and never leak, however the text is split."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from engine.text.stop_strings import StopStep, StopStrings


def play(stops: list[str], pieces: list[str]) -> tuple[str, bool]:
    """Return all the text that was shown, and whether a stop string ended it."""
    machine, shown = StopStrings(stops), ""
    for piece in pieces:
        step = machine.push(piece)
        shown += step.text
        if step.stopped:
            return shown, True
    return shown + machine.flush(), False


def split(text: str, cuts: list[int]) -> list[str]:
    places = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[a:b] for a, b in pairwise(places)]


def test_a_stop_string_over_three_pushes_never_leaks() -> None:
    machine = StopStrings(["<end>"])
    assert [machine.push(text) for text in ("hi <e", "n", "d> more")] == [
        StopStep("hi ", stopped=False),
        StopStep("", stopped=False),
        StopStep("", stopped=True),
    ]


def test_a_false_alarm_is_given_out() -> None:
    machine = StopStrings(["<end>"])
    assert machine.push("a<e").text + machine.push("lse").text == "a<else"


def test_what_begins_a_stop_string_at_the_end_is_flushed() -> None:
    assert play(["###"], ["a##"]) == ("a##", False)


def test_the_stop_string_complete_first_wins() -> None:
    assert play(["abcd", "bc"], ["abcd"]) == ("a", True)
    assert play(["bc", "abc"], ["xabc"]) == ("x", True)


def test_without_stop_strings_all_text_passes() -> None:
    assert play([], ["a", "b"]) == ("ab", False)


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
    shown, stopped = play(stops, list(text))
    assert not any(stop in shown for stop in stops)
    assert text.startswith(shown)
    assert stopped == any(stop in text for stop in stops)
