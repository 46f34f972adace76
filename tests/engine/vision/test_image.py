"""Images keep their places when texts are joined, and are cut, keyed and told of in prompts as transformers' processors do it."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.smolvlm import processing_smolvlm
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

from engine.vision.image import (
    AROUND,
    IMAGE,
    WHOLE,
    Image,
    PlacedImage,
    Tiling,
    in_order,
    joined,
    keyed,
    plain,
)

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


TOKENS = 3
SIDES = st.integers(1, 80)


@pytest.mark.parametrize("kind", [SmolVLMImageProcessorPil, Idefics3ImageProcessorPil])
@given(width=SIDES, height=SIDES, side=st.sampled_from((7, 16)), longest=st.sampled_from((16, 30, 64)))
@settings(max_examples=30, deadline=None)
def test_an_image_is_cut_as_transformers_cuts_it(
    kind: Any, width: int, height: int, side: int, longest: int
) -> None:
    processor = kind(size={"longest_edge": longest}, max_image_size={"longest_edge": side})
    tiling = Tiling(side, longest, TOKENS)
    shown = np.zeros((height, width, 3), dtype=np.uint8)
    made = processor(
        [shown], return_row_col_info=True, input_data_format="channels_last", return_tensors="np"
    )
    grid = tiling.grid(width, height)
    assert grid == (made["rows"][0][0], made["cols"][0][0])
    assert Tiling(side, longest, TOKENS, splits=False).grid(width, height) == (0, 0)
    assert tiling.tiles(grid) == made["pixel_values"].shape[1]


@pytest.mark.parametrize("grid", [(0, 0), (1, 2), (3, 2)])
def test_what_stands_for_an_image_is_what_transformers_writes(grid: tuple[int, int]) -> None:
    untyped: Any = processing_smolvlm
    expected = untyped.get_image_prompt_string(*grid, TOKENS, AROUND, IMAGE, WHOLE)
    tiling = Tiling(16, 64, TOKENS)
    assert tiling.words(grid) == expected
    assert expected.count(IMAGE) == TOKENS * tiling.tiles(grid)


def test_prompts_of_other_images_differ_from_there_on_and_in_nothing_else() -> None:
    seen, other = (Image(digest * 64, "image/png", 9, 9) for digest in "ab")
    prompt = [5, *[9] * TOKENS, 6, *[9] * TOKENS, 7]
    starts = (1, 5)
    first, second = (keyed(prompt, [PlacedImage(one, starts)], TOKENS) for one in (seen, other))
    assert first == keyed(prompt, [PlacedImage(msgspec.structs.replace(seen, at=4), starts)], TOKENS)
    places = [place for place in range(len(prompt)) if first[place] != second[place]]
    assert places == [1, 2, 3, 5, 6, 7]
    assert len(set(first)) == len(first), "the same image differs from place to place"
    assert plain(first, 9) == plain(second, 9) == prompt
