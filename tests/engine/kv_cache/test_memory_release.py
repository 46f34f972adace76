"""Pages whose memory is given back are empty; their neighbors are as they were."""

from __future__ import annotations

import mmap
import sys

import pytest
import torch

from engine.kv_cache import LayerPages, PagedCache

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is given back under Linux alone")
PAGES, SIZE = 12, 64
GIVEN_BACK = [1, 2, 3, 6, 11]


def full(heads: int, size: int, dtype: torch.dtype) -> LayerPages:
    rows = torch.ones(1, heads, size, dtype=dtype)
    layer = LayerPages.make(rows, rows, PAGES, SIZE)
    for store in layer:
        store.fill_(1)
    return layer


@pytest.mark.parametrize(
    ("heads", "size", "dtype"),
    [(2, 32, torch.bfloat16), (2, 32, torch.float32), (8, 128, torch.bfloat16)],
)
def test_each_page_is_given_back_by_itself(heads: int, size: int, dtype: torch.dtype) -> None:
    assert SIZE * heads * size * dtype.itemsize % mmap.PAGESIZE == 0
    layer = full(heads, size, dtype)
    layer.give_back(GIVEN_BACK)
    for store in layer:
        assert [page for page in range(PAGES) if not store[page].any()] == GIVEN_BACK
        assert all(store[page].all() for page in set(range(PAGES)) - set(GIVEN_BACK))


@pytest.mark.parametrize("size", [1, 5, 24, 33])
def test_odd_pages_never_take_their_neighbors_along(size: int) -> None:
    layer = full(3, size, torch.float32)
    layer.give_back(GIVEN_BACK)
    for store in layer:
        assert all(store[page].all() for page in set(range(PAGES)) - set(GIVEN_BACK))


def test_pages_can_be_written_again() -> None:
    layer = full(2, 32, torch.float32)
    layer.give_back(GIVEN_BACK)
    layer.keys[2] = 3
    assert layer.keys[2].eq(3).all()
    assert not layer.keys[3].any()


def test_a_cache_without_layers_has_nothing_to_give_back() -> None:
    cache = PagedCache(pages=2, page_size=8, store=lambda *_: None)
    cache.give_back([0, 1])
    assert cache.layers == []
