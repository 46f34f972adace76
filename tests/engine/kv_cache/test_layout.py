"""A step's tokens are laid out in one row, and what it tells the device goes there in one piece."""

from __future__ import annotations

import pytest
import torch

from engine.step_layout import NO_SLOT, Span, lay_out, send

ELSEWHERE = torch.device("meta")
"""A device that computes nothing, on every machine."""

CPU = torch.device("cpu")

DECODING = [Span(0, 5, [11], samples=True, pages=[7, 2]), Span(3, 8, [12], samples=True, pages=[1, 4, 3])]
PROMPT = Span(1, 2, [21, 22, 23, 24], samples=True, pages=[9, 8])


def test_on_a_cpu_nothing_is_copied() -> None:
    tensors = [torch.tensor([1]), torch.tensor([[2, 3]])]
    assert send(tensors, CPU) is tensors


def test_elsewhere_all_of_it_is_parts_of_one_copy() -> None:
    one, two = send([torch.tensor([[1, 2], [3, 4]]), torch.tensor([5], dtype=torch.int32)], ELSEWHERE)
    assert (one.shape, two.shape, one.device) == ((2, 2), (1,), ELSEWHERE)
    assert (one.dtype, two.dtype) == (torch.int64, torch.int32)
    assert one.untyped_storage().nbytes() == two.untyped_storage().nbytes() == 4 * 8 + 4
    assert two.storage_offset() == 8


def test_a_decode_step_has_a_row_a_request() -> None:
    step = lay_out(DECODING, page_size=4, device=CPU)
    assert step.input_ids.tolist() == [[11, 12]]
    assert step.position_ids.tolist() == [[5, 8]]
    assert (step.decode_rows, step.rows, step.sampled_rows, step.longest_prompt) == (2, 2, None, 0)
    assert step.tables.tolist() == [[7, 2, 0], [1, 4, 3]]
    assert step.lengths.tolist() == [6, 9]
    assert step.query_starts.tolist() == [0, 1, 2]
    assert (step.pages.tolist(), step.offsets.tolist()) == ([2, 3], [1, 0])


def test_a_prompt_comes_behind_and_rows_are_filled_up_for_nobody() -> None:
    step = lay_out([*DECODING, PROMPT], page_size=4, device=CPU)
    assert (step.decode_rows, step.rows, step.longest_prompt, step.extent) == (2, 6, 4, 9)
    assert step.input_ids.shape == (1, 16)
    assert step.pages.tolist() == [2, 3, 9, 9, 8, 8] + [NO_SLOT] * 10
    assert step.offsets.tolist()[:6] == [1, 0, 2, 3, 0, 1]
    assert step.query_starts.tolist() == [0, 1, 2, 6]
    assert step.sampled_rows is not None
    assert step.sampled_rows.tolist() == [0, 1, 5]


def test_a_table_that_is_too_short_is_refused() -> None:
    with pytest.raises(ValueError, match="9 tokens do not fit into 2 pages of 4"):
        lay_out([Span(0, 8, [1], samples=True, pages=[0, 1])], page_size=4, device=CPU)
