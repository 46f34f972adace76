"""The servers that are attacked, one at a time, for all tests of the folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.attack.ground import Places


@pytest.fixture(scope="module")
def places() -> Iterator[Places]:
    """Servers that are made when they are asked for."""
    with closing(Places()) as made:
        yield made
