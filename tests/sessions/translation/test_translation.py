"""Whatever a source and its hypotheses do, what was told stays, and at the end all of it is told once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sessions.records import PublishPolicy
from sessions.translation.interpretation import GrowingText, Target
from sessions.turn.interfaces import Growth

ALPHABET = "ab .?。你好\n"
POLICIES = st.sampled_from(["agreement", "wait", "segment"])


def decode(
    translation: Target,
    source: GrowingText,
    words: str,
    *,
    cut: int | None = None,
    paused: bool = False,
    enough: bool = False,
) -> list[str] | None:
    """One decode that says `words` behind what is forced, or the beginning of them; what it told. None: there is nothing to do."""
    if (ask := translation.next(source, paused=paused)) is None:
        return None
    translation.begin(ask)
    reported = [translation.extend(character, source) for character in words[:cut]]
    reported.append(translation.end(source, finished=cut is None, enough=enough))
    if cut is None and ask.is_closed:
        translation.settle(ask)
    return reported


GROWTHS = st.lists(
    st.tuples(st.integers(0, 20), st.text("xy 好。", max_size=8), st.none() | st.integers(0, 8)), max_size=6
)
"""By how much the source grows, what a hypothesis says then, and after how much of that it is cut off."""


@given(st.text(ALPHABET, max_size=60), POLICIES, GROWTHS)
def test_what_was_told_is_never_revised_and_all_is_translated_once(
    text: str, policy: PublishPolicy, growths: list[tuple[int, str, int | None]]
) -> None:
    source, translation = GrowingText(), Target(policy, wait=2)
    reported, src_off = "", 0
    for more, words, cut in [*growths, (len(text), "z", None)]:
        off = len(source.text)
        growth = Growth(off=off, text=text[off : off + more], final=more == len(text))
        source.grow(source.news(growth) or "", final=growth.final)
        reported += "".join(decode(translation, source, words, cut=cut) or [])
        assert translation.text == reported
        assert src_off <= translation.src_off <= len(source.text)
        src_off = translation.src_off
    while (new := decode(translation, source, " z")) is not None:
        reported += "".join(new)
    assert translation.text == reported
    assert not text[translation.alignments[-1].src :].strip()
    assert [place.src for place in translation.alignments] == sorted(
        {place.src for place in translation.alignments}
    )


def grown(text: str, *, final: bool = False) -> GrowingText:
    return GrowingText(text, is_final=final)


def test_a_hypothesis_that_was_cut_off_says_nothing_against_the_one_before() -> None:
    translation = Target("agreement", wait=0)
    decode(translation, grown("one "), "eins zwei drei")
    decode(translation, grown("one two "), "eins zwei drei vier")
    decode(translation, grown("one two three "), "ei", cut=2)
    reported = decode(translation, grown("one two three four "), "eins zwei drei vier")
    assert "".join(reported or []) == "eins zwei drei"


def test_a_hypothesis_of_which_enough_was_made_counts_as_far_as_it_goes() -> None:
    translation = Target("agreement", wait=0)
    decode(translation, grown("one "), "eins zwei drei")
    decode(translation, grown("one two "), "eins zwei", enough=True)
    reported = decode(translation, grown("one two three "), "eins zwei drei")
    assert "".join(reported or []) == "eins zwei"


def test_a_pause_behind_a_sentences_end_closes_it() -> None:
    translation = Target("segment", wait=0)
    assert translation.next(grown("Good morning.")) is None
    ask = translation.next(grown("Good morning."), paused=True)
    assert ask is not None
    assert ask.is_closed
    assert translation.next(grown("Good morning"), paused=True) is None


def test_of_a_sentence_that_grows_enough_is_made_once() -> None:
    translation = Target("agreement", wait=0)
    decode(translation, grown("one two three "), "eins zwei", cut=9, enough=True)
    assert translation.next(grown("one two three ")) is None
    assert translation.next(grown("one two three four ")) is not None


def test_what_a_hypothesis_repeats_is_known_though_one_was_cut_off_between() -> None:
    translation, source = Target("agreement", wait=0), grown("one ")
    decode(translation, source, "eins zwei drei")
    decode(translation, grown("one two "), "ei", cut=2)
    assert translation.repeated_chars == 2
    decode(translation, grown("one two three "), "eins zwei vier")
    assert translation.repeated_chars == len("eins zwei ")
    decode(translation, grown("one two three.", final=True), "eins zwei vier.")
    assert translation.repeated_chars == 0  # another sentence begins
