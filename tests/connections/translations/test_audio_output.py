"""A translation is spoken by the voice that was meant for it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from connections.api.realtime.translation.endpoint import SpeechOutput
from speech.interfaces import SpokenClause


class Voice:
    """Keeps what it is to speak, by whom."""

    names = ("fr", "de")

    def __init__(self) -> None:
        self.spoken: list[tuple[str, str]] = []

    async def speak(self, clause: str, *, voice: str) -> SpokenClause:
        self.spoken.append((clause, voice))
        return SpokenClause(24_000, b"", None)


async def test_what_was_told_before_another_voice_begins_is_spoken_by_the_one_before() -> None:
    connection: Any = SimpleNamespace(waiting_bytes=0, closed=False, push=lambda _: None)
    voice = Voice()
    speech_output = SpeechOutput(voice, connection)
    run = asyncio.create_task(speech_output.run())
    speech_output.feed("In silence")
    for name, text in (("fr", "Bonjour"), ("de", "Guten Tag")):
        speech_output.begin(name)
        speech_output.feed(text)
    await speech_output.finish()
    run.cancel()
    assert voice.spoken == [("Bonjour", "fr"), ("Guten Tag", "de")]
