"""Speech recognition and synthesis, as the settings define them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from importlib.util import find_spec
from pathlib import Path

import structlog
from msgspec.structs import replace

from app.settings import Settings, SettingsError, called, naming
from connections.api.audio import Audio
from connections.voice import VoiceService
from engine.errors import ModelNotUsable, install_command
from engine.loading.preflight import check_device
from sessions.service import Sessions
from speech.errors import SpeechError
from speech.espeak import PROGRAM, Espeak, voices
from speech.interfaces import ModelOptions, Synthesizer
from speech.model_voice import ModelVoice
from speech.recognition import (
    ENGLISH,
    POCKETSPHINX,
    PocketSphinx,
    Recognizer,
    RecognizerOptions,
    StreamingRecognizer,
)

BUNDLED_GRAMMAR = Path(__file__).parents[1] / "demo_model" / "spoken.jsgf"
"""The grammar of everything that the bundled model can be asked by voice."""
_FIRST_VOICE = "en-us"
_GRAMMAR = ".jsgf"
_AUTO = "auto"
"""The setting's default: a process for speech then starts at its first use."""

_log = structlog.get_logger("midstream.speech")


@asynccontextmanager
async def spoken_of(settings: Settings, sessions: Sessions) -> AsyncIterator[VoiceService | None]:
    """Yield the service for spoken conversations while its process is kept running; None without speech. Raises SettingsError."""
    requested, settings = settings, detected(settings)
    options = _recognizing(settings)
    if options is None:
        yield None
        return
    _need("pocketsphinx")  # with any recognizer, it distinguishes speech from silence
    ear = StreamingRecognizer(options, known=ENGLISH if requested.speech == _AUTO else None)
    names = _voices() if settings.speech == "both" and settings.speech_voice == PROGRAM else ()
    voice_service = VoiceService(
        sessions=sessions, ear=ear, voice=Espeak(names) if names else None, slots=settings.max_speech
    )
    async with AsyncExitStack() as stack:
        await _start(stack, ear.running(), "speech_recognizer")
        await stack.enter_async_context(voice_service.running())
        yield voice_service


@asynccontextmanager
async def audio_of(settings: Settings) -> AsyncIterator[Audio]:
    """Yield what the audio endpoints need while its processes are kept running. Raises SettingsError."""
    requested, settings = settings, detected(settings)
    options = _recognizing(settings)
    recognizer = (
        None
        if options is None
        else Recognizer(
            POCKETSPHINX if isinstance(options, PocketSphinx) else _name(options.model),
            options,
            known=ENGLISH if requested.speech == _AUTO else None,
        )
    )
    speaker = _speaker(settings)
    audio = Audio(
        recognizer=recognizer,
        speaker=speaker,
        longest_s=settings.speech_seconds,
        most_chars=settings.speech_chars,
        slots=settings.max_speech,
    )
    async with AsyncExitStack() as stack:
        if recognizer is not None:
            grammar = _grammar(settings)
            hint = "" if grammar is None else f" {grammar} may not be a JSGF file."
            await _start(stack, recognizer.running(), "speech_recognizer", hint)
        if isinstance(speaker, ModelVoice):
            await _start(stack, speaker.running(), "speech_voice")
        yield audio


async def _start(
    stack: AsyncExitStack, running: AbstractAsyncContextManager[None], setting: str, hint: str = ""
) -> None:
    """Start a process that lasts as long as the stack. Raises SettingsError."""
    with naming(setting, SpeechError, end=hint):
        await stack.enter_async_context(running)


def detected(settings: Settings) -> Settings:
    """Return the settings with `auto` resolved: for the bundled model to whatever speech is installed, else to `off`."""
    if settings.speech != _AUTO:
        return settings
    is_here = all(find_spec(library) is not None for library in ("pocketsphinx", "soxr", "python_multipart"))
    recognizer = settings.speech_recognizer
    if not settings.is_bundled or not is_here or not recognizer.endswith((POCKETSPHINX, _GRAMMAR)):
        return replace(settings, speech="off")
    speaks = settings.speech_voice == PROGRAM and bool(voices())
    return replace(
        settings,
        speech="both" if speaks else "recognition",
        speech_recognizer=str(BUNDLED_GRAMMAR) if recognizer == POCKETSPHINX else recognizer,
    )


def _recognizing(settings: Settings) -> RecognizerOptions | None:
    """Return the options of the recognizer; None without one. Raises SettingsError."""
    if settings.speech not in {"both", "recognition"}:
        return None
    grammar = _grammar(settings)
    if settings.speech_recognizer == POCKETSPHINX or grammar is not None:
        _need("pocketsphinx", "soxr", "python_multipart")
        return PocketSphinx(grammar)
    _need("soxr", "python_multipart")
    return _options(settings, settings.speech_recognizer)


def _grammar(settings: Settings) -> str | None:
    """Return the grammar file; None if the recognizer is not pocketsphinx, or has no grammar. Raises SettingsError."""
    path = Path(settings.speech_recognizer).expanduser()
    if path.suffix != _GRAMMAR:
        return None
    if not path.is_file():
        raise SettingsError(f"{called('speech_recognizer')}: {path} is not a file.")
    return str(path)


def _speaker(settings: Settings) -> Synthesizer | None:
    if settings.speech not in {"both", "voice"}:
        return None
    _need("soxr")
    if settings.speech_voice != PROGRAM:
        options = _options(settings, settings.speech_voice)
        return ModelVoice(_name(options.model), options)
    if not (found := _voices()):
        raise SettingsError(
            f"{called('speech')}: {PROGRAM} is not on PATH. Install it, as by `apt-get install {PROGRAM}`, "
            "name a model that speaks, or set recognition."
        )
    _log.info("voices", program=PROGRAM, count=len(found))
    return Espeak(found)


def _voices() -> list[str]:
    """Return the voices of the system's program, the default first."""
    return sorted(voices(), key=lambda name: name != _FIRST_VOICE)


def _options(settings: Settings, model: str) -> ModelOptions:
    """Return the options of a model on the device for speech. Raises SettingsError."""
    device = (settings.speech_device or settings.devices[0]).strip()
    with naming("speech_device" if settings.speech_device else "device", ModelNotUsable):
        check_device(device)
    folder = Path(model).expanduser()
    return ModelOptions(
        model=str(folder) if folder.is_dir() else model,
        device=device,
        pickled_weights=settings.pickled_weights,
    )


def _name(model: str) -> str:
    """Return a model's name for clients: the name of its folder, or its name on the hub."""
    return Path(model).resolve().name if Path(model).is_dir() else model


def _need(*libraries: str) -> None:
    """Raise SettingsError if a library is not installed."""
    for library in libraries:
        if find_spec(library) is None:
            raise SettingsError(
                f"{called('speech')}: {library} is not installed: {install_command('speech')}"
            )
