"""Memory is shared out in pages, so that a reply may have its window wherever there is room for it."""

from __future__ import annotations

import pytest

from engine.errors import ModelNotUsable
from engine.kv_cache import CPU_PAGE, CUDA_PAGE, KVBudget, kv_budget, page_size


def budget(size: int | None, *, window: int | None = 4096) -> KVBudget:
    return kv_budget(size, bytes_per_token=10, window=window, max_batch=4, page_size=64)


def test_one_reply_may_have_what_others_leave() -> None:
    assert budget(50_000) == KVBudget(pages=78, page_size=64, context_tokens=4096, bytes_per_token=10)
    assert budget(20_000).context_tokens == 31 * 64


def test_where_nothing_tells_how_much_there_is_everyone_gets_the_window() -> None:
    assert budget(None).pages == 4 * 64
    with pytest.raises(ModelNotUsable, match="MIDSTREAM_KV_MEMORY"):
        budget(None, window=None)


def test_a_model_without_a_window_gets_what_there_is() -> None:
    assert budget(30_000, window=None).context_tokens == 46 * 64


def test_too_little_is_refused_with_what_helps() -> None:
    with pytest.raises(ModelNotUsable, match="room for 10 tokens"):
        budget(100)


def test_a_page_is_no_larger_than_the_memory() -> None:
    made = kv_budget(1000, bytes_per_token=10, window=4096, max_batch=4, page_size=256)
    assert made == KVBudget(pages=1, page_size=100, context_tokens=100, bytes_per_token=10)


def test_a_page_has_the_size_that_suits_a_device() -> None:
    assert (page_size("cpu"), page_size("cuda")) == (CPU_PAGE, CUDA_PAGE)


def test_by_default_no_more_is_taken_than_replies_and_kept_prompts_can_use() -> None:
    """A small model must not grow to the size of the machine."""

    def limited(size: int, window: int | None = 4096) -> int:
        made = kv_budget(size, bytes_per_token=10, window=window, max_batch=4, page_size=64, is_limit=True)
        return made.pages

    assert limited(10**9) == 5 * 64, "four windows, and a quarter of that"
    assert limited(50_000) == budget(50_000).pages, "nor more than there is"
    assert limited(10**9, window=None) == budget(10**9, window=None).pages
    assert budget(10**9).pages == 10**9 // 640, "what an operator sets is taken"
