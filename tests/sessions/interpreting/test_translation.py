"""Whatever a source and its hypotheses do, what was told stays, and at the end all of it is told once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sessions.interpreting.source import Growth, Source
from sessions.interpreting.translation import Translation
from sessions.records import Told

ALPHABET = "ab .?。你好\n"
POLICIES = st.sampled_from(["agreement", "wait", "segment"])


def decode(
    translation: Translation, source: Source, words: str, *, cut: int | None = None, paused: bool = False
) -> list[str] | None:
    """One decode that says `words` behind what is forced, or the beginning of them; what it told. None: there is nothing to do."""
    if (ask := translation.next(source, paused=paused)) is None:
        return None
    translation.begin(ask)
    told = [translation.hear(character, source) for character in words[:cut]]
    told.append(translation.end(source, finished=cut is None))
    if cut is None and ask.is_closed:
        translation.settle(ask)
    return told


GROWTHS = st.lists(
    st.tuples(st.integers(0, 20), st.text("xy 好。", max_size=8), st.none() | st.integers(0, 8)), max_size=6
)
"""By how much the source grows, what a hypothesis says then, and after how much of that it is cut off."""


@given(st.text(ALPHABET, max_size=60), POLICIES, GROWTHS)
def test_what_was_told_is_never_revised_and_all_is_translated_once(
    text: str, policy: Told, growths: list[tuple[int, str, int | None]]
) -> None:
    source, translation = Source(), Translation(policy, wait=2)
    told, src_off = "", 0
    for more, words, cut in [*growths, (len(text), "z", None)]:
        off = len(source.text)
        growth = Growth(off=off, text=text[off : off + more], final=more == len(text))
        source.grow(source.news(growth) or "", final=growth.final)
        told += "".join(decode(translation, source, words, cut=cut) or [])
        assert translation.text == told
        assert src_off <= translation.src_off <= len(source.text)
        src_off = translation.src_off
    while (new := decode(translation, source, " z")) is not None:
        told += "".join(new)
    assert translation.text == told
    assert not text[translation.places[-1].src :].strip()
    assert [place.src for place in translation.places] == sorted({place.src for place in translation.places})


def grown(text: str, *, final: bool = False) -> Source:
    return Source(text, is_final=final)


def test_words_are_told_once_two_hypotheses_agree() -> None:
    translation = Translation("agreement", wait=0)
    assert decode(translation, grown("Good morning "), "Guten Tag")[-1:] == [""]  # type: ignore[index]
    told = decode(translation, grown("Good morning to "), "Guten Morgen an")
    assert "".join(told or []) == "Guten"
    ask = translation.next(grown("Good morning to all. "))
    assert ask is not None
    assert (ask.prefix, ask.is_closed, ask.src_end) == ("Guten", True, 20)


def test_a_hypothesis_that_was_cut_off_says_nothing_against_the_one_before() -> None:
    translation = Translation("agreement", wait=0)
    decode(translation, grown("one two "), "eins zwei drei")
    decode(translation, grown("one two three "), "ei", cut=2)
    told = decode(translation, grown("one two three four "), "eins zwei drei vier")
    assert "".join(told or []) == "eins zwei drei"


def test_a_pause_behind_a_sentences_end_closes_it() -> None:
    translation = Translation("segment", wait=0)
    assert translation.next(grown("Good morning.")) is None
    ask = translation.next(grown("Good morning."), paused=True)
    assert ask is not None
    assert ask.is_closed
    assert translation.next(grown("Good morning"), paused=True) is None


def test_who_goes_on_later_goes_on_within_the_segment() -> None:
    first = Translation("segment", wait=0)
    source = grown("One. Two three. Four", final=True)
    decode(first, source, "Eins.")
    decode(first, source, " Zwei", cut=5)
    place = first.place_within(len(first.text))
    assert (place.src, place.off) == (4, 5)
    second = Translation("segment", wait=0, text=first.text, place=place)
    ask = second.next(source)
    assert ask is not None
    assert (ask.text, ask.prefix) == ("Two three.", "Zwei")
    told = decode(second, source, " drei.")
    assert first.text + "".join(told or []) == second.text == "Eins. Zwei drei."
