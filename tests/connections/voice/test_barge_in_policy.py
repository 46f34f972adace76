"""What is done about what is heard."""

from __future__ import annotations

import pytest

from connections.turn_taking import (
    SUSTAINED_MS,
    Action,
    LocalAgreement,
    ReplyAction,
    SpeechEdge,
    SubmitMessage,
    TranscriptUpdate,
    TurnTakingPolicy,
)
from speech.interfaces import Partial, Paused, Resumed, Started, Stopped


def conduct() -> TurnTakingPolicy:
    return TurnTakingPolicy(interrupts=True, interrupt_ms=300, guesses=True)


def without_reports(of: list[Action]) -> list[Action]:
    """Without what is only told."""
    return [act for act in of if not isinstance(act, SpeechEdge | TranscriptUpdate)]


def test_a_turn_begins_at_a_pause_and_is_confirmed_at_its_end() -> None:
    one = conduct()
    assert one.heard(Started(0), talking=False) == [SpeechEdge(began=True, at_ms=0)]
    assert without_reports(one.heard(Paused(900, "count to ten"), talking=False)) == [
        SubmitMessage("count to ten", is_guess=True)
    ]
    end = one.heard(Stopped(0, 900, "count to ten"), talking=True)
    assert end == [
        SpeechEdge(began=False, at_ms=900),
        TranscriptUpdate("count to ten", final=True),
        ReplyAction.CONFIRM,
    ]


def test_a_pause_that_was_no_end_takes_the_turn_back() -> None:
    one = conduct()
    one.heard(Started(0), talking=False)
    one.heard(Paused(900, "count to"), talking=False)
    assert without_reports(one.heard(Resumed(1200), talking=True)) == [ReplyAction.ROLL_BACK]
    assert without_reports(one.heard(Stopped(0, 2000, "count to ten"), talking=False)) == [
        SubmitMessage("count to ten", is_guess=False)
    ]


def test_no_turn_begins_at_a_pause_inside_a_sentence() -> None:
    one = conduct()
    one.heard(Started(0), talking=False)
    assert without_reports(one.heard(Paused(900, "count to", is_whole=False), talking=False)) == []
    assert without_reports(one.heard(Resumed(1200), talking=False)) == []
    assert without_reports(one.heard(Paused(2000, "count to ten"), talking=False)) == [
        SubmitMessage("count to ten", is_guess=True)
    ]


def over(*, interrupt_ms: int = 300) -> TurnTakingPolicy:
    """Speech that begins over a reply."""
    one = TurnTakingPolicy(interrupts=True, interrupt_ms=interrupt_ms, guesses=True)
    assert without_reports(one.heard(Started(0), talking=True)) == []
    return one


def test_words_over_a_reply_cut_it_once_they_last() -> None:
    one = over()
    assert without_reports(one.heard(Partial(210, "what"), talking=True)) == []
    assert without_reports(one.heard(Partial(300, "what"), talking=True)) == [ReplyAction.CUT]
    assert without_reports(one.heard(Partial(390, "what"), talking=False)) == []
    assert without_reports(one.heard(Stopped(0, 900, "what now"), talking=False)) == [
        SubmitMessage("what now", is_guess=False)
    ]


@pytest.mark.parametrize(
    "event",
    [
        Stopped(0, 200, "ten"),
        Stopped(0, 600, ""),
        Stopped(0, 600, "good", is_confident=False),
        *(
            Stopped(0, 900, text)
            for text in (
                "yes",
                "Mhm.",
                "okay okay",
                "Yes, okay!",
                "Aha!",
                "uh huh okay",
                "all right",
                "uh-huh",
                "I see",
                "Mmm.",
                "Got it.",
                "嗯 好的",
                "是",
            )
        ),
    ],
)
def test_a_cough_and_a_backchannel_let_the_reply_go_on_and_are_no_message(event: Stopped) -> None:
    end = over().heard(event, talking=True)
    assert end == [SpeechEdge(began=False, at_ms=event.at_ms), TranscriptUpdate("", final=True)]


def test_a_long_hum_that_ends_as_a_word_is_judged_at_once() -> None:
    assert without_reports(over().heard(Partial(300, "m" * 5_000 + "x"), talking=True)) == [ReplyAction.CUT]


def test_sound_without_words_lets_the_reply_go_on_however_long_it_lasts() -> None:
    one = over()
    assert without_reports(one.heard(Partial(2000, ""), talking=True)) == []
    assert without_reports(one.heard(Paused(2400, ""), talking=True)) == []
    assert without_reports(one.heard(Stopped(0, 2400, ""), talking=True)) == []


@pytest.mark.parametrize(
    ("text", "then"),
    [
        ("tell me a story", [ReplyAction.CUT]),
        ("请告诉我", [ReplyAction.CUT]),
        ("thank you", []),
        ("okay mhm", []),
        ("", []),
    ],
)
def test_sustained_speech_cuts_the_reply_though_nobody_is_sure_of_its_words(
    text: str, then: list[Action]
) -> None:
    one = over()
    for at_ms, does in ((SUSTAINED_MS - 1, []), (SUSTAINED_MS, then)):
        assert without_reports(one.heard(Partial(at_ms, text, is_confident=False), talking=True)) == does


@pytest.mark.parametrize(
    "text",
    [
        "stop",
        "Stop it!",
        "please stop",
        "Oh, just stop.",
        "no, wait",
        "wait a moment",
        "Hold on a second.",
        "Just a moment.",
        "Stopp",
    ],
)
def test_a_stop_cuts_at_once_and_is_no_message(text: str) -> None:
    one = over(interrupt_ms=2000)
    assert without_reports(one.heard(Partial(200, text), talking=True)) == [ReplyAction.CUT]
    assert without_reports(one.heard(Paused(350, text), talking=False)) == []
    end = one.heard(Stopped(0, 350, text), talking=False)
    assert end == [SpeechEdge(began=False, at_ms=350), TranscriptUpdate("", final=True)]


@pytest.mark.parametrize("end", [Stopped(0, 350, "okay"), Stopped(0, 350, "tell", is_confident=False)])
def test_a_stop_that_is_another_word_in_the_end_is_no_message(end: Stopped) -> None:
    one = over()
    assert without_reports(one.heard(Partial(200, "stop"), talking=True)) == [ReplyAction.CUT]
    paused = Paused(end.at_ms, end.text, is_confident=end.is_confident)
    assert without_reports(one.heard(paused, talking=False)) == []
    assert one.heard(end, talking=False)[1:] == [TranscriptUpdate("", final=True)]


@pytest.mark.parametrize("text", ["no", "yes", "stop"])
def test_what_a_client_commits_is_a_message_also_over_a_reply(text: str) -> None:
    end = Stopped(0, 250, text, is_committed=True, is_confident=False)
    assert without_reports(over().heard(end, talking=True))[-1] == SubmitMessage(text, is_guess=False)


def test_a_sentence_that_begins_with_a_stop_is_a_message_and_so_is_a_stop_into_silence() -> None:
    one = over()
    assert without_reports(one.heard(Partial(300, "wait"), talking=True)) == [ReplyAction.CUT]
    assert without_reports(one.heard(Stopped(0, 1200, "wait what is my name"), talking=False)) == [
        SubmitMessage("wait what is my name", is_guess=False)
    ]
    one.heard(Started(3000), talking=False)
    assert without_reports(one.heard(Stopped(3000, 3400, "stop"), talking=False)) == [
        SubmitMessage("stop", is_guess=False)
    ]


def test_a_yes_that_outlasts_the_reply_answers_it() -> None:
    one = over()
    assert without_reports(one.heard(Paused(400, "yes"), talking=False)) == [
        ReplyAction.CUT,
        SubmitMessage("yes", is_guess=True),
    ]
    assert without_reports(one.heard(Stopped(0, 400, "yes"), talking=True)) == [ReplyAction.CONFIRM]
    one.heard(Started(3000), talking=True)
    assert without_reports(one.heard(Stopped(3000, 3400, "yes"), talking=False)) == [
        ReplyAction.CUT,
        SubmitMessage("yes", is_guess=False),
    ]


def test_words_without_confidence_are_told_at_their_end_and_answered_where_nothing_is_played() -> None:
    one = conduct()
    one.heard(Started(0), talking=False)
    for at_ms in (300, 400):
        assert one.heard(Partial(at_ms, "no", is_confident=False), talking=False) == []
    assert without_reports(one.heard(Stopped(0, 400, "no", is_confident=False), talking=False)) == [
        SubmitMessage("no", is_guess=False)
    ]


def test_words_that_were_not_recognized_anew_agree_with_nothing() -> None:
    """They cut a reply all the same: what counts there is how long somebody speaks."""
    one = over()
    assert one.heard(Partial(210, "could"), talking=True) == []
    assert one.heard(Partial(390, "could", is_new=False), talking=True) == [ReplyAction.CUT]
    assert one.heard(Partial(480, "could"), talking=False) == [TranscriptUpdate("could", final=False)]


def test_what_was_told_of_words_is_never_taken_back() -> None:
    agreement = LocalAgreement()
    for text, more, agreed in (
        ("what", 0, ""),
        ("what is", 1, "what"),
        ("what is my", 1, "what is"),
        ("that is my", 0, "what is"),
        ("what is my name", 1, "what is my"),
        ("what is my name is", 1, "what is my name"),
    ):
        assert (agreement.take(text.split()), " ".join(agreement.agreed)) == (more, agreed)
