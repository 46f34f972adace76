"""What is counted of a spoken dialogue on the page: what was understood, and what was answered, are two things."""

from __future__ import annotations

import pytest

from tests.bench.dialogues.dictation import Dialogue, PageResult, rows

DIALOGUE = Dialogue("anna", "twenty two", "thirty one")
WHOLE = (
    ("my name is anna", "Nice to meet you, Anna."),
    ("what is my name", "Your name is Anna."),
    ("what is 22 plus 31", "It's 53."),
)


@pytest.mark.parametrize(
    ("pairs", "counts"),
    [
        (WHOLE, (3, 3, 3)),
        ((*WHOLE[:2], ("what is 22 plus 31", "It's 153.")), (2, 3, 2)),
        ((*WHOLE[:2], ("what is 22 plus 30", "It's 52.")), (2, 2, 3)),
        (
            (("my name is hannah", "Nice to meet you, Hannah."), ("what is my name", "Hannah."), WHOLE[2]),
            (1, 2, 3),
        ),
        (WHOLE[:1], (1, 1, 1)),
    ],
)
def test_an_answer_is_right_for_what_was_said_or_for_what_was_understood(
    pairs: tuple[tuple[str, str], ...], counts: tuple[int, int, int]
) -> None:
    seen = PageResult(DIALOGUE, pairs)
    assert (seen.right, seen.understood, seen.fitting) == counts
    assert seen.is_whole == (len(pairs) == 3)


def test_the_table_counts_dialogues_and_replies() -> None:
    reported = dict(
        rows([PageResult(DIALOGUE, WHOLE), PageResult(DIALOGUE, WHOLE[:1], ("a warning",), "no end")])
    )
    assert reported["dialogues that came to their end"] == "1 of 2"
    assert reported["replies right for what was said"] == "4 of 6"
    assert reported["complaints of the browser"] == "1"
