"""Images keep their places when texts are joined."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.vision.image import Image, in_order, joined

A, B = Image("a" * 64, "image/png", 1, 1), Image("b" * 64, "image/png", 100, 50)
PARTS = st.lists(st.one_of(st.text(min_size=1), st.sampled_from((A, B))), max_size=8)


def together(parts: list[str | Image]) -> tuple[str, tuple[Image, ...]]:
    return joined((part, ()) if isinstance(part, str) else ("", (part,)) for part in parts)


def merged(parts: list[str | Image]) -> list[str | Image]:
    """Neighbouring texts as one."""
    made: list[str | Image] = []
    for part in parts:
        if made and isinstance(part, str) and isinstance(made[-1], str):
            made[-1] += f"\n{part}"
        else:
            made.append(part)
    return made


@given(PARTS)
def test_parts_come_back_in_their_order(parts: list[str | Image]) -> None:
    content, images = together(parts)
    reported = [part if isinstance(part, str) else part.moved(0) for part in in_order(content, images)]
    assert reported == merged(parts)


@given(PARTS, PARTS)
def test_messages_are_joined_as_their_parts_are(one: list[str | Image], other: list[str | Image]) -> None:
    assert joined((together(one), together(other))) == together([*one, *other])


def test_an_image_takes_tokens_by_its_size() -> None:
    assert (A.tokens, B.tokens, Image("", "", 8000, 4000).tokens) == (64, 64, 4096)
    assert Image("", "", 560, 560).tokens == 400
