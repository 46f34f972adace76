"""Words are told once two hypotheses say them, or so many words behind the source."""

from __future__ import annotations

from sessions.translation.interpretation import agreed_end, wait_k_end
from sessions.translation.sentences import joint, whole_words


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


def test_waiting_stays_so_many_words_behind_the_source() -> None:
    now = "eins zwei drei vier fünf"
    assert now[: wait_k_end(now, 0, read=5, wait=3, finished=True)] == "eins zwei"
    assert now[: wait_k_end(now, len("eins zwei"), read=5, wait=3, finished=True)] == "eins zwei"
    assert wait_k_end(now, 0, read=2, wait=3, finished=True) == 0


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
