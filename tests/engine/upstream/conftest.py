"""A server like OpenAI's, and a `python` whose vLLM is the small server of `program.py`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from engine.upstream.vllm import LaunchOptions
from tests.engine.upstream_server import UpstreamServer, upstream_server

PROGRAM = Path(__file__).with_name("program.py")


@pytest.fixture
async def server() -> AsyncIterator[UpstreamServer]:
    async with upstream_server() as upstream:
        yield upstream


@pytest.fixture
def mood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], object]:
    """Sets the error that the next starts end with; an empty text lets them succeed."""
    file = tmp_path / "mood"
    file.write_text("")
    monkeypatch.setenv("STAND_IN_MOOD", str(file))
    return file.write_text


@pytest.fixture
def options(tmp_path: Path, mood: Callable[[str], object]) -> LaunchOptions:
    """The options that start it."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, str(PROGRAM)])} "$@"\n')
    python.chmod(0o755)
    return LaunchOptions(python=str(python), model="some/model", served_name="model")
