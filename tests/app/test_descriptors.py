"""Room for sockets, as far as the system gives it."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from app.server import SPARE, raise_file_limit


@pytest.fixture
def few() -> Iterator[int]:
    """The process may open few files at first."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_room_is_made_where_the_system_allows_it(few: int) -> None:
    assert raise_file_limit(few - SPARE) == few - SPARE
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == few


def test_no_more_sockets_are_promised_than_there_is_room_for(few: int) -> None:
    assert raise_file_limit(few) == few - SPARE


def test_room_that_is_there_is_left_as_it_is(few: int) -> None:
    assert raise_file_limit(10) == 10
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 512
