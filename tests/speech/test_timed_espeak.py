"""espeak-ng with the times of its words."""

from __future__ import annotations

import asyncio
import os
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from speech.alignment import BITS
from speech.errors import VoiceFailed
from speech.espeak import NICENESS, Espeak, speaking

pytestmark = pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="needs espeak-ng")
TEXT = 'I am Midstream, which has 1,234 words; he said - "of the [[end]]" in Zürich 😀.'


async def test_each_word_has_its_sound_and_there_is_silence_between_sentences() -> None:
    voice = Espeak(("en-us",))
    spoken, again = await asyncio.gather(*(voice.speak(TEXT, voice="en-us") for _ in range(2)))
    assert spoken == again
    assert spoken.marks is not None
    words = [TEXT[mark.off : mark.off + mark.len] for mark in spoken.marks]
    assert words[:3] == ["I am", "Midstream,", "which"]  # the program speaks the first two as one
    assert "1,234" in words
    assert " ".join(words).split() == TEXT.split()
    assert all(before.end_ms <= after.start_ms + 1 for before, after in pairwise(spoken.marks))
    samples = np.frombuffer(spoken.pcm, "<i2").astype(np.int64)
    for mark in spoken.marks:
        part = samples[mark.start_ms * spoken.rate // 1000 : mark.end_ms * spoken.rate // 1000]
        assert np.abs(part).max() > 500
    assert not np.any(samples[spoken.marks[-1].end_ms * spoken.rate // 1000 :])


def priorities_of_programs() -> list[int]:
    pids = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    programs = [int(pid) for pid in pids if "espeak" in Path(f"/proc/{pid}/comm").read_text()]
    return [os.getpriority(os.PRIO_PROCESS, pid) for pid in programs]


async def test_others_replies_come_before_the_program() -> None:
    async with speaking("word " * 300, voice="en-us", speed=1.0) as stream:
        assert priorities_of_programs() == [NICENESS]
        assert sum([len(part) async for part in stream.parts()]) > 1_000_000


async def test_a_voice_that_fails_says_so_in_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("speech.espeak.PROGRAM", "no-such-program")
    with pytest.raises(VoiceFailed, match="could not be started"):
        await Espeak(("en-us",)).speak("Hello.", voice="en-us")


async def test_the_program_is_started_without_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork copies a big process's tables of pages, and all sockets wait meanwhile."""
    started: list[str] = []
    spawn = os.posix_spawn

    def noting(path: str, *given: Any, **more: Any) -> int:
        started.append(path)
        return spawn(path, *given, **more)

    monkeypatch.setattr(os, "posix_spawn", noting)
    await Espeak(("en-us",)).speak("Hello.", voice="en-us")
    assert started == [shutil.which("espeak-ng")] * (1 + BITS)
