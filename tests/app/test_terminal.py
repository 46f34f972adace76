"""The terminal while the service starts."""

from __future__ import annotations

import asyncio
import io

import pytest

from app.service import StartDisplay
from engine.scripted import ScriptedEngine


class File(io.StringIO):
    """Sets an event when something is written."""

    def __init__(self) -> None:
        super().__init__()
        self.news = asyncio.Event()

    def write(self, text: str) -> int:
        self.news.set()
        return super().write(text)


async def start_output(*stages: tuple[str, float]) -> str:
    """The output of a start that goes through these stages."""
    engine, stream = ScriptedEngine(), File()
    engine.die(revive=False)
    following = asyncio.create_task(StartDisplay(stream).follow(engine))
    for stage, progress in stages:
        stream.news.clear()
        engine._life.loading(stage, progress)
        await stream.news.wait()
    engine.revive()
    await following
    return stream.getvalue()


async def test_each_stage_is_a_line() -> None:
    text = await start_output(("", 0.0), ("reading weights", 0.25), ("warming up", 0.75))
    assert text == "starting the engine (0%)\nreading weights (25%)\nwarming up (75%)\n"
    assert await start_output() == ""


def test_the_address_comes_with_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    facts = ScriptedEngine().facts
    assert facts is not None
    StartDisplay().address("http://127.0.0.1:8000", facts)
    assert "ready: http://127.0.0.1:8000 " in capsys.readouterr().out
