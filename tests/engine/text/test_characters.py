"""Nothing that a person sees as one character is shown, or cut, by halves."""

from __future__ import annotations

import regex
from hypothesis import given
from hypothesis import strategies as st

from engine.text.detokenizer import MOST_HELD, ceil_boundary, floor_boundary, whole_length

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
FLAG = "\U0001f1e9\U0001f1ea"
KSHA = "\u0915\u094d\u0937"
JAMO = "\u1112\u1161\u11ab"
ENGLAND = "\U0001f3f4\U000e0067\U000e0062\U000e007f"

tricky = st.text(
    st.one_of(
        st.sampled_from("a \r\n中é\u0301\u0600\uff76\uff9e" + FAMILY + FLAG + KSHA + JAMO + ENGLAND),
        st.characters(),
    )
)


def emitted_pieces(text: str) -> list[str]:
    """Feed one code point at a time and return the pieces that came out, the rest last."""
    pieces, waiting = [], ""
    for character in text:
        waiting += character
        cut = whole_length(waiting)
        pieces += [waiting[:cut]] if cut else []
        waiting = waiting[cut:]
    return [*pieces, waiting]


def test_plain_and_chinese_text_flows_character_by_character() -> None:
    assert emitted_pieces("ab中文") == ["a", "b", "中", "文", ""]


def test_an_unfinished_cluster_waits_for_the_next_character() -> None:
    for cluster in (FAMILY, FLAG, JAMO, ENGLAND, "\U0001f44d\U0001f3fd", "☎\ufe0f"):
        assert emitted_pieces(f"x{cluster}") == ["x", cluster]
        assert emitted_pieces(f"x{cluster} ") == ["x", f"{cluster} ", ""]


def test_a_virama_waits_for_its_second_consonant() -> None:
    assert whole_length(f"x{KSHA[:2]}") == 1
    assert whole_length(f"x{KSHA}") == 4


def test_flags_in_a_row_leave_one_by_one() -> None:
    assert [piece for piece in emitted_pieces(FLAG * 3) if piece] == [FLAG] * 3


def test_an_endless_cluster_is_let_go() -> None:
    endless = "\U0001f468" + "\u200d\U0001f468" * 40
    assert whole_length(endless[: MOST_HELD - 1]) == 0
    assert whole_length(endless[:MOST_HELD]) == MOST_HELD


def test_a_cut_in_a_family_falls_before_it() -> None:
    text = f"ab{FAMILY}cd"
    assert [floor_boundary(text, n) for n in (-1, 0, 1, 2, 3, 6, 7, 99)] == [0, 0, 1, 2, 2, 2, 7, 9]


def test_a_line_end_is_one_character() -> None:
    assert floor_boundary("a\r\nb", 2) == 1


@given(tricky)
def test_nothing_is_lost_or_reordered(text: str) -> None:
    assert "".join(emitted_pieces(text)) == text


@given(tricky, st.integers(0, 40))
def test_a_cut_is_the_last_cluster_boundary(text: str, offset: int) -> None:
    boundaries = [0, *(match.end() for match in regex.finditer(r"\X", text))]
    assert floor_boundary(text, offset) == max(b for b in boundaries if b <= offset)
    assert ceil_boundary(text, offset) == min((b for b in boundaries if b >= offset), default=len(text))
