"""Compressed speech comes where a process may not change its priorities, too."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from connections.api import audio


def test_a_thread_that_may_not_lower_its_priority_works_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", forbidden)
    with ThreadPoolExecutor(1, "encoding", audio._yield_to_others) as threads:
        assert threads.submit(lambda: "sound").result(10) == "sound"
