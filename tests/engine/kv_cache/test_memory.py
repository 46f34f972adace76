"""Memory is shared out in pages, and laid out for a step."""

from __future__ import annotations

import pytest
import torch

from engine.errors import ModelNotUsable
from engine.kv_cache import CPU_PAGE, CUDA_PAGE, KVBudget, kv_budget, page_size
from engine.step_layout import Span, lay_out, send


def budget(
    size: int | None, *, window: int | None = 4096, page: int = 64, is_limit: bool = False
) -> KVBudget:
    return kv_budget(size, bytes_per_token=10, window=window, max_batch=4, page_size=page, is_limit=is_limit)


@pytest.mark.parametrize(
    ("made", "pages", "context"),
    [
        (budget(50_000), 78, 4096),
        (budget(20_000), 31, 31 * 64),
        (budget(None), 4 * 64, 4096),
        (budget(30_000, window=None), 46, 46 * 64),
        (budget(10**9), 10**9 // 640, 4096),
        (budget(10**9, is_limit=True), 5 * 64, 4096),
        (budget(50_000, is_limit=True), 78, 4096),
        (budget(10**9, window=None, is_limit=True), 10**9 // 640, 10**9 // 640 * 64),
    ],
    ids=[
        "one reply may have what others leave",
        "less than a window",
        "nobody says how much: everyone gets the window",
        "no window",
        "what an operator sets is taken",
        "by default four windows, and a quarter of that",
        "nor more than there is",
        "a default without a window",
    ],
)
def test_memory_becomes_pages_and_a_context(made: KVBudget, pages: int, context: int) -> None:
    assert made == KVBudget(pages, 64, context, 10)


def test_a_page_suits_its_device_and_is_no_larger_than_the_memory() -> None:
    assert (page_size("cpu"), page_size("cuda")) == (CPU_PAGE, CUDA_PAGE)
    assert budget(1000, page=256) == KVBudget(1, 100, 100, 10)


def test_too_little_is_refused_with_what_helps() -> None:
    with pytest.raises(ModelNotUsable, match="room for 10 tokens"):
        budget(100)
    with pytest.raises(ModelNotUsable, match="MIDSTREAM_KV_MEMORY"):
        budget(None, window=None)


ELSEWHERE = torch.device("meta")
"""A device that computes nothing, on every machine."""

CPU = torch.device("cpu")


def test_elsewhere_all_of_it_is_parts_of_one_copy() -> None:
    one, two = send([torch.tensor([[1, 2], [3, 4]]), torch.tensor([5], dtype=torch.int32)], ELSEWHERE)
    assert (one.shape, two.shape, one.device) == ((2, 2), (1,), ELSEWHERE)
    assert (one.dtype, two.dtype) == (torch.int64, torch.int32)
    assert one.untyped_storage().nbytes() == two.untyped_storage().nbytes() == 4 * 8 + 4
    assert two.storage_offset() == 8


def test_a_table_that_is_too_short_is_refused() -> None:
    with pytest.raises(ValueError, match="9 tokens do not fit into 2 pages of 4"):
        lay_out([Span(0, 8, [1], samples=True, pages=[0, 1])], page_size=4, device=CPU)
