"""Images are cut, and told of in prompts, as transformers' processors do it; kept keys and values are found by digests."""

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

from engine.vision.image import AROUND, IMAGE, WHOLE, Image, PlacedImage, Tiling, keyed, plain

TOKENS = 3
SIDES = st.integers(1, 80)


@pytest.mark.parametrize("kind", [SmolVLMImageProcessorPil, Idefics3ImageProcessorPil])
@given(width=SIDES, height=SIDES, side=st.sampled_from((7, 16)), longest=st.sampled_from((16, 30, 64)))
@settings(max_examples=60, deadline=None)
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
    assert tiling.tiles(grid) == made["pixel_values"].shape[1] <= tiling.most_tiles


@pytest.mark.parametrize("grid", [(0, 0), (1, 2), (3, 2)])
def test_what_stands_for_an_image_is_what_transformers_writes(grid: tuple[int, int]) -> None:
    untyped: Any = processing_smolvlm
    expected = untyped.get_image_prompt_string(*grid, TOKENS, AROUND, IMAGE, WHOLE)
    tiling = Tiling(16, 64, TOKENS)
    assert tiling.words(grid) == expected
    assert expected.count(IMAGE) == TOKENS * tiling.tiles(grid)


def test_a_model_that_does_not_split_sees_the_whole_alone() -> None:
    tiling = Tiling(16, 64, TOKENS, splits=False)
    assert (tiling.grid(900, 20), tiling.most_tiles) == ((0, 0), 1)


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
