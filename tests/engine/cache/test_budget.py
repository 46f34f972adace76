"""Memory is shared out so that a reply may have its window wherever there is room for it."""

from __future__ import annotations

import pytest

from engine.cache.budget import KVBudget, kv_budget
from engine.errors import ModelNotUsable


def budget(size: int | None, *, window: int | None = 4096, lazy: bool = True) -> KVBudget:
    return kv_budget(size, bytes_per_token=10, window=window, max_batch=4, lazy=lazy)


def test_where_memory_is_taken_with_use_one_reply_may_have_what_others_leave() -> None:
    assert budget(50_000) == KVBudget(
        tokens=5000, parked_tokens=5000, context_tokens=4096, bytes_per_token=10
    )
    assert budget(20_000).context_tokens == 2000


def test_elsewhere_slots_are_equal_and_kept_states_have_a_part_of_their_own() -> None:
    assert budget(16_000, lazy=False) == KVBudget(1600, 400, 240, 10)
    assert budget(10**9, lazy=False).context_tokens == 4096


def test_where_nothing_tells_how_much_there_is_everyone_gets_the_window() -> None:
    assert budget(None).tokens == 4 * 4096
    with pytest.raises(ModelNotUsable, match="MIDSTREAM_KV_BYTES"):
        budget(None, window=None)


def test_a_model_without_a_window_gets_what_there_is() -> None:
    assert budget(30_000, window=None).context_tokens == 3000


def test_too_little_is_refused_with_what_helps() -> None:
    with pytest.raises(ModelNotUsable, match="room for 10 tokens"):
        budget(100)
