"""The attacked servers, one at a time, for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.attack.ground import Places


@pytest.fixture(scope="module")
def places() -> Iterator[Places]:
    """Servers that are started when a test asks for them."""
    with closing(Places()) as made:
        yield made
