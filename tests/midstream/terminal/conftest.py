"""The terminal client runs in no process but those of these tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.coverage_tracing import coverage_enabled


@pytest.fixture(autouse=True)
def counted() -> Iterator[None]:
    """They count for coverage."""
    with coverage_enabled():
        yield
