"""The terminal client runs in no process but those of these tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.traced import traced


@pytest.fixture(autouse=True)
def counted() -> Iterator[None]:
    """They count for coverage."""
    with traced():
        yield
