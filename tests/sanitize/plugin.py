"""Has the tests call the kernels that were compiled with sanitizers."""

from __future__ import annotations

from functools import cache

import pytest

from engine.model.cpu import kernels as cpu_kernels
from tests.sanitize.__main__ import BUILT, LIBRARY


def pytest_configure(config: pytest.Config) -> None:
    library = cpu_kernels.load(LIBRARY)
    assert str(BUILT) in library._name
    cpu_kernels._library = cache(lambda: library)
