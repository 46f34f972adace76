"""The attacked servers, one at a time, for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.attack.target import Targets


@pytest.fixture(scope="module")
def targets() -> Iterator[Targets]:
    """Servers that are started when a test asks for them."""
    with closing(Targets()) as made:
        yield made
