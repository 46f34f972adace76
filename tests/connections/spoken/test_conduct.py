"""What is done about what is heard."""

from __future__ import annotations

from connections.spoken.conduct import Act, Agreement, Conduct, Do, Say, Spoke, Understood
from speech.contract import Partly, Paused, Resumed, Started, Stopped


def conduct() -> Conduct:
    return Conduct(interrupts=True, interrupt_ms=300, guesses=True)


def acts(of: list[Act]) -> list[Act]:
    """Without what is only told."""
    return [act for act in of if not isinstance(act, Spoke | Understood)]


def test_a_turn_begins_at_a_pause_and_is_confirmed_at_its_end() -> None:
    one = conduct()
    assert one.heard(Started(0), talking=False) == [Spoke(began=True, at_ms=0)]
    assert acts(one.heard(Paused(900, "count to ten"), talking=False)) == [Say("count to ten", is_guess=True)]
    end = one.heard(Stopped(0, 900, "count to ten"), talking=True)
    assert end == [Spoke(began=False, at_ms=900), Understood("count to ten", final=True), Do.CONFIRM]


def test_a_pause_that_was_no_end_takes_the_turn_back() -> None:
    one = conduct()
    one.heard(Started(0), talking=False)
    one.heard(Paused(900, "count to"), talking=False)
    assert acts(one.heard(Resumed(1200), talking=True)) == [Do.TAKE_BACK]
    assert acts(one.heard(Stopped(0, 2000, "count to ten"), talking=False)) == [
        Say("count to ten", is_guess=False)
    ]


def test_no_turn_begins_at_a_pause_inside_a_sentence() -> None:
    one = conduct()
    one.heard(Started(0), talking=False)
    assert acts(one.heard(Paused(900, "count to", is_whole=False), talking=False)) == []
    assert acts(one.heard(Resumed(1200), talking=False)) == []
    assert acts(one.heard(Paused(2000, "count to ten"), talking=False)) == [
        Say("count to ten", is_guess=True)
    ]


def test_speech_over_a_reply_holds_it_at_once_and_cuts_it_once_it_lasts() -> None:
    one = conduct()
    assert acts(one.heard(Started(0), talking=True)) == [Do.HOLD]
    assert acts(one.heard(Partly(210, ""), talking=True)) == []
    assert acts(one.heard(Partly(300, "what"), talking=True)) == [Do.CUT]
    assert acts(one.heard(Partly(390, "what"), talking=False)) == []
    assert acts(one.heard(Stopped(0, 900, "what now"), talking=False)) == [Say("what now", is_guess=False)]


def test_a_cough_and_a_nod_let_the_reply_go_on() -> None:
    for event in (Stopped(0, 200, "ten"), Stopped(0, 600, "yes"), Stopped(0, 600, "")):
        one = conduct()
        one.heard(Started(0), talking=True)
        assert acts(one.heard(event, talking=True)) == [Do.LET_GO]


def test_sound_without_words_lets_the_reply_go_on_however_long_it_lasts() -> None:
    one = conduct()
    one.heard(Started(0), talking=True)
    assert acts(one.heard(Partly(2000, ""), talking=True)) == []
    assert acts(one.heard(Paused(2400, ""), talking=True)) == []
    assert acts(one.heard(Stopped(0, 2400, ""), talking=True)) == [Do.LET_GO]


def test_a_long_nod_wants_the_word_and_a_nod_into_silence_is_an_answer() -> None:
    one = conduct()
    one.heard(Started(0), talking=True)
    assert acts(one.heard(Partly(900, "yes"), talking=True)) == []
    assert acts(one.heard(Partly(1000, "yes"), talking=True)) == [Do.CUT]
    other = conduct()
    other.heard(Started(0), talking=False)
    assert acts(other.heard(Stopped(0, 400, "yes"), talking=False)) == [Say("yes", is_guess=False)]


def test_words_that_were_not_recognized_anew_agree_with_nothing() -> None:
    """They cut a reply all the same: what counts there is how long somebody speaks."""
    one = conduct()
    one.heard(Started(0), talking=True)
    assert one.heard(Partly(210, "could"), talking=True) == []
    assert one.heard(Partly(390, "could", is_new=False), talking=True) == [Do.CUT]
    assert one.heard(Partly(480, "could"), talking=False) == [Understood("could", final=False)]


def test_what_was_told_of_words_is_never_taken_back() -> None:
    agreement = Agreement()
    told = [
        agreement.take(text) for text in ("what", "what is", "what is my", "that is my", "what is my name")
    ]
    assert told == [None, "what", "what is", None, "what is my"]
    assert agreement.take("what is my name is") == "what is my name"
