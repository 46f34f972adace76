# ruff: noqa: RUF001 - punctuation of many scripts
"""A source falls into sentences, grows, and is translated: what was told stays, and all of it is told once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.records import PublishPolicy
from sessions.translation.interpretation import GrowingText, Target, agreed_end
from sessions.translation.sentences import MAX_SEGMENT_CHARS, joint, next_segment, whole_words
from sessions.turn.interfaces import Growth

TEXTS = st.text(st.sampled_from('ab 1.?!。？，你はกู\n"”」\u0301👩🏽'), max_size=60)


def parts(text: str, *, final: bool = True) -> list[str]:
    """The closed segments of a text."""
    found, start = [], 0
    while (segment := next_segment(text, start, final=final)) is not None and segment.is_closed:
        found.append(text[segment.start : segment.end])
        start = segment.end
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Good morning. How are you? Fine!", ["Good morning.", "How are you?", "Fine!"]),
        ("你好。你好吗？很好", ["你好。", "你好吗？", "很好"]),
        ("「はい。」そう？！ ええ", ["「はい。」", "そう？！", "ええ"]),
        ("It costs 3.50 today. Dr. J. Smith said so.", ["It costs 3.50 today.", "Dr. J. Smith said so."]),
        ("नमस्ते। कैसे हो?", ["नमस्ते।", "कैसे हो?"]),
        ("كيف حالك؟ بخير", ["كيف حالك؟", "بخير"]),
        ("one line\nanother\n\n", ["one line", "another"]),
        ('He said "no." Then he left.', ['He said "no."', "Then he left."]),
    ],
)
def test_a_text_falls_into_its_sentences(text: str, expected: list[str]) -> None:
    assert parts(text) == expected


def test_a_full_stop_at_the_end_may_become_a_decimal_point() -> None:
    assert parts("It costs 3.", final=False) == []
    assert parts("It costs 3. ", final=False) == ["It costs 3."]


def test_what_has_no_end_is_parted_where_it_has_a_blank_or_anywhere() -> None:
    words = parts("word " * 1000)
    assert max(map(len, words)) <= MAX_SEGMENT_CHARS
    assert all(part.split()[-1] == "word" for part in words)
    endless = parts("x" * 100_000)
    assert {len(part) for part in endless} == {MAX_SEGMENT_CHARS}


@given(TEXTS)
def test_nothing_is_lost_but_the_white_space_between_segments(text: str) -> None:
    assert "".join("".join(parts(text)).split()) == "".join(text.split())


@given(TEXTS, st.data())
def test_no_growth_changes_a_segment_that_was_closed(text: str, data: st.DataObject) -> None:
    grown = data.draw(st.integers(0, len(text)))
    before = parts(text[:grown], final=False)
    assert parts(text)[: len(before)] == before


def take(source: GrowingText, off: int, text: str, *, final: bool = False) -> bool:
    """Whether anything was new."""
    growth = Growth(off=off, text=text, final=final)
    if (new := source.news(growth)) is None:
        return False
    source.grow(new, final=final)
    return True


@given(st.text(max_size=40), st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40))))
def test_repeated_and_overlapping_growth_is_taken_once(text: str, spans: list[tuple[int, int]]) -> None:
    source = GrowingText()
    for start, end in spans:
        if start <= len(source.text):
            take(source, start, text[start:end])
        assert text.startswith(source.text)
    take(source, len(source.text), text[len(source.text) :], final=True)
    assert (source.text, source.is_final) == (text, True)
    assert not take(source, 0, text, final=True)


def agreed(*before: str, published: str = "", finished: bool = True) -> str:
    *older, now = before
    return now[: agreed_end(older, now, len(published), finished=finished)]


def test_what_three_hypotheses_in_a_row_say_is_agreed_word_by_word() -> None:
    assert agreed("Guten Morgen", "Guten Tag", "Guten Abend ihr") == "Guten"
    assert agreed("Guten Tag", "Guten Morgen", "Guten Morgen ihr") == "Guten"
    assert agreed("Guten Morgen", "Guten Morgen ihr", "Guten Morgen euch") == "Guten Morgen"
    assert agreed("alt", "Guten Tag", "Guten Tag", "Guten Tag") == "Guten Tag"
    assert agreed("", "Guten Morgen", "Guten Morgen") == ""
    assert agreed("Guten Morgen", "Guten Morgen") == agreed("Guten Morgen") == ""


def test_scripts_without_blanks_agree_character_by_character() -> None:
    assert agreed("我想喝茶", "我想喝水", "我想喝奶") == "我想喝"
    assert agreed("สวัสดี", "สวัสดีครับ", "สวัสดีค่ะ") == "สวัสดี"


def test_a_word_that_may_go_on_is_not_agreed() -> None:
    assert agreed("Guten Morgen", "Guten Morgen", "Guten Morgen", finished=False) == "Guten"
    assert agreed("Guten Mor", "Guten Mor", "Guten Mor", finished=False) == "Guten"
    assert agreed("我想喝茶", "我想喝水", "我想", finished=False) == "我想"


def test_the_end_of_a_sentence_that_grows_is_nothing_to_agree_on() -> None:
    assert agreed(*["Guten Morgen."] * 3) == "Guten"
    assert agreed(*["早上好。"] * 3) == "早上好"


def test_an_unfinished_word_of_the_source_waits() -> None:
    assert "I want tea"[: whole_words("I want tea")] == "I want "
    assert whole_words("我想喝茶") == 4
    assert whole_words("x" * 50) == 0


def test_segments_are_joined_as_their_scripts_are() -> None:
    assert joint("Hello.", " ") == " "
    assert joint("你好。", " ") == ""
    assert joint("你好", " ") == " "
    assert joint("Hello.", "") == " "
    assert joint("Hello.", "\n\n\n") == "\n\n"
    assert joint("", " ") == ""


ALPHABET = "ab .?。你好\n"
POLICIES = st.sampled_from(["agreement", "segment"])


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
    source, translation = GrowingText(), Target(policy)
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
    translation = Target("agreement")
    decode(translation, grown("one "), "eins zwei drei")
    decode(translation, grown("one two "), "eins zwei drei vier")
    decode(translation, grown("one two three "), "ei", cut=2)
    reported = decode(translation, grown("one two three four "), "eins zwei drei vier")
    assert "".join(reported or []) == "eins zwei drei"


def test_a_hypothesis_of_which_enough_was_made_counts_as_far_as_it_goes() -> None:
    translation = Target("agreement")
    decode(translation, grown("one "), "eins zwei drei")
    decode(translation, grown("one two "), "eins zwei", enough=True)
    reported = decode(translation, grown("one two three "), "eins zwei drei")
    assert "".join(reported or []) == "eins zwei"


def test_a_pause_behind_a_sentences_end_closes_it() -> None:
    translation = Target("segment")
    assert translation.next(grown("Good morning.")) is None
    ask = translation.next(grown("Good morning."), paused=True)
    assert ask is not None
    assert ask.is_closed
    assert translation.next(grown("Good morning"), paused=True) is None


def test_of_a_sentence_that_grows_enough_is_made_once() -> None:
    translation = Target("agreement")
    decode(translation, grown("one two three "), "eins zwei", cut=9, enough=True)
    assert translation.next(grown("one two three ")) is None
    assert translation.next(grown("one two three four ")) is not None
