"""The settings of a client's sound and of replies' sound, in the session's terms and in the native socket's. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from connections.api.fields import VOICES
from connections.api.realtime.client_events import (
    AudioFormat,
    AudioInputOptions,
    AudioOptions,
    AudioOutputOptions,
    Detection,
    Transcription,
    VoiceId,
)
from connections.api.realtime.errors import InvalidEvent
from connections.protocol.audio import AudioInput, AudioOutput, AudioStart, Format, TurnDetection
from connections.protocol.errors import validation_problem
from speech.sound.wav import HIGHEST_RATE, LOWEST_RATE

PCM_RATE, TELEPHONE_RATE = 24_000, 8_000
SILENCES_MS = {"low": 1500, "medium": 800, "auto": 800, "high": 500}
"""The silences for each `eagerness`. Only a grammar can tell here whether a sentence is complete; then less is enough."""
_FORMATS: dict[str, tuple[Format, int]] = {
    "audio/pcm": ("pcm16", PCM_RATE),
    "audio/pcmu": ("mulaw", TELEPHONE_RATE),
    "audio/pcma": ("alaw", TELEPHONE_RATE),
}
_NAMES = {coding: name for name, (coding, _) in _FORMATS.items()}
BETA_FORMATS: dict[str, str] = {"pcm16": "audio/pcm", "g711_ulaw": "audio/pcmu", "g711_alaw": "audio/pcma"}
"""The beta's names of formats."""
PREFIX_PADDING_MS = 300
"""Sound before speech was detected that is understood, too, whatever `prefix_padding_ms` says."""
_MIN_THRESHOLD = 0.05
_MODALITIES = {"text", "audio"}
_UNSUPPORTED = "unsupported_parameter"


class AudioCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What this server offers. `voices`: the default first; none: replies are text. `languages`: empty: any."""

    voices: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()


class AudioConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The current settings. `speaks`: replies are spoken; `detection`: None: the client ends its user's turn.

    `transcribes`: there are no replies.
    """

    capabilities: AudioCapabilities
    speaks: bool
    input: AudioInput = AudioInput()
    output: AudioOutput = AudioOutput()
    detection: Detection | None = Detection(type="server_vad")
    transcription: Transcription | None = None
    transcribes: bool = False

    @classmethod
    def of(cls, capabilities: AudioCapabilities) -> AudioConfig:
        """Return the first settings of a session: replies are spoken if there is a voice, as at OpenAI."""
        return cls(capabilities=capabilities, speaks=bool(capabilities.voices))

    @property
    def creates(self) -> bool:
        """Whether an utterance is answered at once."""
        is_answered = self.detection is not None and self.detection.create_response is not False
        return is_answered and not self.transcribes

    @property
    def interrupts(self) -> bool:
        """Whether speech over a reply ends it."""
        return self.detection is not None and self.detection.interrupt_response is not False

    @property
    def voice(self) -> str | None:
        """The voice of replies."""
        return self.output.voice or next(iter(self.capabilities.voices), None)

    def start(self, conversation_id: str) -> AudioStart:
        """Return the frame that begins to listen with these settings. If the client leaves, the reply to it ends."""
        language = None if self.transcription is None else self.transcription.language
        return AudioStart(
            conversation_id=conversation_id,
            input=self.input,
            output=self.output if self.speaks else None,
            turn_detection=_turn_detection(self.detection, interrupts=self.interrupts),
            language=language or None,
            grace_s=0,
        )


def transcription_only(settings: AudioConfig) -> AudioConfig:
    """Return the settings of a session that only transcribes."""
    return msgspec.structs.replace(
        settings, speaks=False, transcribes=True, transcription=settings.transcription or Transcription()
    )


def with_audio_options(
    settings: AudioConfig, audio: msgspec.Raw, modalities: msgspec.Raw, where: str
) -> AudioConfig:
    """Return the settings with the given options changed. Raises InvalidEvent, which names the field."""
    named: list[str] | None = _decoded(modalities, list[str] | None, f"{where}.output_modalities")
    settings = _with_modalities(settings, named, f"{where}.output_modalities")
    options: AudioOptions | None = _decoded(audio, AudioOptions | None, f"{where}.audio")
    if options is None:
        return settings
    if isinstance(options.input, AudioInputOptions):
        settings = _with_input(settings, options.input, f"{where}.audio.input")
    if isinstance(options.output, AudioOutputOptions):
        settings = _with_output(settings, options.output, f"{where}.audio.output")
    return settings


def named_format(sound: AudioInput | AudioOutput) -> AudioFormat:
    """Return a format for clients."""
    return AudioFormat(_NAMES[sound.format], sound.rate if sound.format == "pcm16" else None)


def with_defaults(requested: Detection | None) -> Detection | None:
    """Return the settings with defaults for what a client left out."""
    if requested is None:
        return None
    shown = msgspec.structs.replace(
        requested,
        create_response=requested.create_response is not False,
        interrupt_response=requested.interrupt_response is not False,
    )
    if requested.type == "semantic_vad":
        return msgspec.structs.replace(shown, eagerness=requested.eagerness or "auto")
    detection = _turn_detection(requested, interrupts=True)
    return msgspec.structs.replace(
        shown,
        threshold=detection.threshold,
        prefix_padding_ms=PREFIX_PADDING_MS,
        silence_duration_ms=detection.silence_ms,
    )


def _decoded(raw: msgspec.Raw, kind: Any, field: str) -> Any:
    """Decode an option. Raises InvalidEvent."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        wrong = validation_problem(error)
        raise InvalidEvent(wrong.why, field=f"{field}.{wrong.field}" if wrong.field else field) from None


def _with_modalities(settings: AudioConfig, named: Sequence[str] | None, field: str) -> AudioConfig:
    if named is None:
        return settings
    if not named or not _MODALITIES.issuperset(named):
        raise InvalidEvent('must be ["audio"] or ["text"].', field=field)
    speaks = "audio" in named
    if speaks and not settings.capabilities.voices:
        raise InvalidEvent('must be ["text"]: this server has no voice.', field=field, code=_UNSUPPORTED)
    return msgspec.structs.replace(settings, speaks=speaks)


def _with_input(settings: AudioConfig, options: AudioInputOptions, field: str) -> AudioConfig:
    if isinstance(options.format, AudioFormat):
        coding, rate = _coding(options.format, f"{field}.format")
        settings = msgspec.structs.replace(settings, input=AudioInput(format=coding, rate=rate))
    if not isinstance(options.turn_detection, UnsetType):
        _check(options.turn_detection, f"{field}.turn_detection")
        settings = msgspec.structs.replace(settings, detection=options.turn_detection)
    if not isinstance(options.transcription, UnsetType):
        _check_language(options.transcription, settings.capabilities, f"{field}.transcription.language")
        settings = msgspec.structs.replace(settings, transcription=options.transcription)
    return settings


def _with_output(settings: AudioConfig, options: AudioOutputOptions, field: str) -> AudioConfig:
    output = settings.output
    if isinstance(options.format, AudioFormat):
        coding, rate = _coding(options.format, f"{field}.format")
        output = msgspec.structs.replace(output, format=coding, rate=rate)
    if not isinstance(options.voice, UnsetType):
        output = msgspec.structs.replace(
            output, voice=_voice(options.voice, settings.capabilities, f"{field}.voice")
        )
    if options.speed not in {UNSET, None, 1}:
        raise InvalidEvent(
            "must be 1: conversations are spoken at one speed.", field=f"{field}.speed", code=_UNSUPPORTED
        )
    return msgspec.structs.replace(settings, output=output)


def _coding(requested: AudioFormat, field: str) -> tuple[Format, int]:
    if (known := _FORMATS.get(requested.type)) is None:
        raise InvalidEvent(f"must be one of {', '.join(_FORMATS)}.", field=f"{field}.type")
    coding, usual = known
    rate = usual if requested.rate is None else requested.rate
    if coding != "pcm16" and rate != TELEPHONE_RATE:
        raise InvalidEvent(f"must be {TELEPHONE_RATE}.", field=f"{field}.rate")
    if not LOWEST_RATE <= rate <= HIGHEST_RATE:
        raise InvalidEvent(f"must be {LOWEST_RATE} to {HIGHEST_RATE}.", field=f"{field}.rate")
    return coding, rate


def _voice(requested: str | VoiceId | None, capabilities: AudioCapabilities, field: str) -> str | None:
    name = requested.id if isinstance(requested, VoiceId) else requested
    if name in capabilities.voices:
        return name
    if name is None or name in VOICES or not capabilities.voices:
        return None
    raise InvalidEvent(f"is none of this server's voices, such as {capabilities.voices[0]}.", field=field)


def _check_language(requested: Transcription | None, capabilities: AudioCapabilities, field: str) -> None:
    language = "" if requested is None else (requested.language or "").partition("-")[0].lower()
    if language and capabilities.languages and language not in capabilities.languages:
        raise InvalidEvent(
            f"must be one of {', '.join(capabilities.languages)}: no other is understood.", field=field
        )


def _check(requested: Detection | None, field: str) -> None:
    """Raise InvalidEvent if a setting is out of range."""
    if requested is None:
        return
    if requested.idle_timeout_ms is not None:
        why = "can't be had: nobody is asked whether he is still there."
        raise InvalidEvent(why, field=f"{field}.idle_timeout_ms", code=_UNSUPPORTED)
    try:
        msgspec.convert(msgspec.to_builtins(_turn_detection(requested, interrupts=True)), TurnDetection)
    except msgspec.ValidationError as error:
        wrong = validation_problem(error)
        name = "silence_duration_ms" if wrong.field == "silence_ms" else wrong.field
        raise InvalidEvent(wrong.why, field=f"{field}.{name}") from None


def _turn_detection(requested: Detection | None, *, interrupts: bool) -> TurnDetection:
    if requested is None:
        return TurnDetection(type="none", interrupt=False)
    usual = TurnDetection()
    silence_ms = usual.silence_ms if requested.silence_duration_ms is None else requested.silence_duration_ms
    if is_semantic := requested.type == "semantic_vad":
        silence_ms = SILENCES_MS[requested.eagerness or "auto"]
    threshold = usual.threshold if requested.threshold is None else requested.threshold
    return TurnDetection(
        silence_ms=silence_ms,
        finished_ms=usual.finished_ms if is_semantic and requested.eagerness != "low" else silence_ms,
        unfinished_ms=max(silence_ms, usual.unfinished_ms) if is_semantic else silence_ms,
        threshold=max(_MIN_THRESHOLD, threshold),
        interrupt=interrupts,
    )
