"""What hears and what speaks, as the settings ask for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.util import find_spec
from pathlib import Path

import structlog

from app.setting_values import SettingsError
from app.settings import Settings
from connections.audio.routes import Audio
from speech.errors import RecognizerLost
from speech.recognition.recognizer import Recognizer
from speech.voice.espeak import PROGRAM, voices

_SPEECH = "MIDSTREAM_SPEECH (--speech)"
_GRAMMAR = "MIDSTREAM_SPEECH_GRAMMAR (--speech-grammar)"

_log = structlog.get_logger("midstream.speech")


@asynccontextmanager
async def audio_of(settings: Settings) -> AsyncIterator[Audio]:
    """Give what the doors for sound are made of, while the recognizer's process is kept. Raises SettingsError."""
    recognizer = _recognizer(settings)
    audio = Audio(
        recognizer=recognizer,
        voices=_voices(settings),
        longest_s=settings.speech_seconds,
        most_chars=settings.speech_chars,
        places=settings.max_speech,
    )
    if recognizer is None:
        yield audio
        return
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(recognizer.running())
        except RecognizerLost as error:
            raise SettingsError(f"{_SPEECH}: {error} {_GRAMMAR} may name no JSGF.") from error
        yield audio


def _recognizer(settings: Settings) -> Recognizer | None:
    if settings.speech not in {"both", "recognition"}:
        return None
    _need("pocketsphinx", "soxr")
    grammar = settings.speech_grammar
    if grammar is not None and not Path(grammar).expanduser().is_file():
        raise SettingsError(f"{_GRAMMAR}: {grammar} is no file.")
    return Recognizer(None if grammar is None else str(Path(grammar).expanduser()))


def _voices(settings: Settings) -> tuple[str, ...]:
    if settings.speech not in {"both", "voice"}:
        return ()
    _need("soxr")
    found = voices()
    if not found:
        raise SettingsError(
            f"{_SPEECH}: {PROGRAM} is not on PATH. Install it, as by `apt-get install {PROGRAM}`, or say recognition."
        )
    _log.info("voices", program=PROGRAM, count=len(found))
    return found


def _need(*libraries: str) -> None:
    """Raise SettingsError where one of the libraries is not there."""
    for library in libraries:
        if find_spec(library) is None:
            raise SettingsError(
                f"{_SPEECH}: {library} is not installed. Install the part for speech: pip install 'midstream-server[speech]'."
            )
