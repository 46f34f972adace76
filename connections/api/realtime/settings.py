"""The settings of a Realtime session: options of replies, and of sound in both directions. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from connections.api.realtime.events import (
    NULL,
    TRANSCRIPTION,
    AudioFormat,
    AudioInputOptions,
    AudioOptions,
    AudioOutputOptions,
    CommonOptions,
    Detection,
    InvalidEvent,
    NamedFunction,
    ResponseOptions,
    SessionOptions,
    TokenLimit,
    Tool,
    Transcription,
)
from connections.api.requests import VOICES, is_neutral
from connections.protocol import frames, params
from connections.protocol.audio import AudioInput, AudioOutput, AudioStart, TurnDetection
from connections.protocol.base import Limits
from connections.protocol.errors import BadParams, validation_problem
from sessions.tools.tool_registry import ToolRegistry
from speech.interfaces import HIGHEST_RATE, LOWEST_RATE

_NEUTRAL: dict[str, tuple[tuple[object, ...], str]] = {
    "parallel_tool_calls": ((True,), "Limiting a reply to one call is not supported."),
    "prompt": ((), "Stored prompts are not supported: use instructions."),
    "input": ((), "Responses answer the items of the conversation: create them first."),
}
_NAMES = {
    "params.system": "instructions",
    "params.max_new_tokens": "max_output_tokens",
    "params.temperature": "temperature",
}
_TOOL_CHOICES = ("auto", "none", "required")
_OF_REPLIES = (
    *("instructions", "max_output_tokens", "temperature", "tools", "tool_choice", "reasoning"),
    *("output_modalities", "prompt"),
)
NO_SOUND = "Audio input is off: the operator can enable it (MIDSTREAM_SPEECH)."
_NO_SERVER_TOOLS = ToolRegistry()
"""A session's tools are run by its client."""
PCM, PCM_RATE = "audio/pcm", 24_000
SILENCES_MS = {"low": 1500, "medium": 800, "auto": 800, "high": 500}
"""The silence that ends a turn, by `eagerness`; less is enough if the sentence is complete by its grammar."""
PREFIX_PADDING_MS = 300
"""The recognizer gets this much sound before speech, whatever `prefix_padding_ms` says."""
_MIN_THRESHOLD = 0.05
_MODALITIES = {"text", "audio"}
_UNSUPPORTED = "unsupported_parameter"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """`instructions` unset: the conversation's own, or the operator's. `tool_choice`: a word, or the name of a tool.

    `sound`: None if this server takes none.
    """

    instructions: str | UnsetType = UNSET
    max_output_tokens: TokenLimit = "inf"
    temperature: float | None = None
    tools: tuple[frames.OfferedTool, ...] = ()
    tool_choice: str = "auto"
    effort: str | None = None
    sound: AudioConfig | None = None

    @property
    def transcribes(self) -> bool:
        """Whether the session only transcribes."""
        return self.sound is not None and self.sound.transcribes

    @property
    def speaks(self) -> bool:
        """Whether replies are spoken."""
        return self.sound is not None and self.sound.speaks

    def params(self) -> frames.Params:
        """Return the parameters of a turn."""
        length = self.max_output_tokens
        system = None if isinstance(self.instructions, UnsetType) else self.instructions
        return frames.Params(
            max_new_tokens=None if length == "inf" else length,
            temperature=self.temperature,
            system=system,
            reasoning=self.effort,
        )

    def shown(self, session_id: str, conversation_id: str, model: str) -> dict[str, Any]:
        """Return the session as its client sees it."""
        audio = {} if self.sound is None else {"audio": self.sound.shown()}
        if self.transcribes:
            about = {"object": "realtime.transcription_session", "type": TRANSCRIPTION}
            return {"id": session_id, **about, **audio}
        choice = self.tool_choice
        return {
            "id": session_id,
            "object": "realtime.session",
            "type": "realtime",
            "model": model,
            "conversation_id": conversation_id,  # ours: the value for `?conversation_id=`
            "output_modalities": ["audio" if self.speaks else "text"],
            **audio,
            "instructions": self.instructions or "",
            "max_output_tokens": self.max_output_tokens,
            "temperature": self.temperature,
            "tools": [
                {
                    "type": "function",
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.parameters or {},
                }
                for tool in self.tools
            ],
            "tool_choice": choice if choice in _TOOL_CHOICES else {"type": "function", "name": choice},
            "reasoning": None if self.effort is None else {"effort": self.effort},
            "tracing": None,
        }


def with_session_options(settings: Settings, options: SessionOptions, limits: Limits) -> Settings:
    """Return the settings after a `session.update`. Raises InvalidEvent, which names the field; then nothing changes."""
    if options.type == TRANSCRIPTION:
        return _with_transcription_options(settings, options)
    if options.type != "realtime":
        raise InvalidEvent(f"must be realtime or {TRANSCRIPTION}.", field="session.type")
    if settings.transcribes:
        raise InvalidEvent(
            f"must stay {TRANSCRIPTION}: open another session for replies.", field="session.type"
        )
    return _checked(settings, options, limits, "session")


def _with_transcription_options(settings: Settings, options: SessionOptions) -> Settings:
    """Return the settings of a session that only transcribes. Raises InvalidEvent."""
    if settings.sound is None:
        raise InvalidEvent(NO_SOUND, field="session.type", code="unsupported_parameter")
    for field in _OF_REPLIES:
        if getattr(options, field) not in (UNSET, NULL, None):
            why = "is an option of replies, which a transcription session does not write: leave it out."
            raise InvalidEvent(why, field=f"session.{field}", code="unsupported_parameter")
    sound = with_audio_options(settings.sound, options.audio, None, "session").transcription_only()
    return msgspec.structs.replace(settings, sound=sound)


def with_response_options(settings: Settings, options: ResponseOptions, limits: Limits) -> Settings:
    """Return the settings of one reply. Raises InvalidEvent, which names the field."""
    if options.conversation not in (None, "auto"):
        raise InvalidEvent(
            "must be auto: responses always belong to the conversation.",
            field="response.conversation",
            code="unsupported_parameter",
        )
    return _checked(settings, options, limits, "response")


def reject_changes(begun: Settings, options: ResponseOptions, limits: Limits) -> None:
    """Raise InvalidEvent if an option would change an exchange that has begun; its `tool_choice` is auto by then."""
    begun = msgspec.structs.replace(begun, tool_choice="auto")
    wanted = with_response_options(begun, options, limits)
    for field in begun.__struct_fields__:
        if field != "sound" and getattr(wanted, field) != getattr(begun, field):
            name = "reasoning" if field == "effort" else field
            why = "can't be changed while call outputs are pending."
            raise InvalidEvent(why, field=f"response.{name}", code="unsupported_parameter")


def _checked(settings: Settings, options: CommonOptions, limits: Limits, where: str) -> Settings:
    for field, (neutral, why) in _NEUTRAL.items():
        if not is_neutral(getattr(options, field, NULL), neutral):
            raise InvalidEvent(why, field=f"{where}.{field}", code="unsupported_parameter")
    changed = _updated(settings, options, where)
    try:
        params.generation(changed.params(), max_new_tokens=limits.max_new_tokens)
        turn = frames.TurnFrame(client_msg_id="", tools=changed.tools, tool_choice=changed.tool_choice)
        params.offered_tools(turn, _NO_SERVER_TOOLS)
    except BadParams as error:
        field = error.field or ""
        raise InvalidEvent(error.why, field=f"{where}.{_NAMES.get(field, field)}") from None
    if changed.speaks and changed.tools:
        why = 'is not available for spoken replies: set output_modalities to ["text"].'
        raise InvalidEvent(why, field=f"{where}.tools", code="unsupported_parameter")
    return changed


def _updated(settings: Settings, options: CommonOptions, where: str) -> Settings:
    """Return the settings with the given options changed. Raises InvalidEvent."""
    changed: dict[str, object] = {}
    if not isinstance(options.instructions, UnsetType):
        changed["instructions"] = options.instructions or ""
    if not isinstance(options.max_output_tokens, UnsetType):
        changed["max_output_tokens"] = (
            "inf" if options.max_output_tokens is None else options.max_output_tokens
        )
    if not isinstance(options.temperature, UnsetType):
        changed["temperature"] = options.temperature
    if not isinstance(options.reasoning, UnsetType):
        effort = None if options.reasoning is None else options.reasoning.effort
        changed["effort"] = "off" if effort == "none" else effort
    if not isinstance(options.tools, UnsetType):
        given = options.tools or ()
        if len(given) > frames.MAX_TOOLS:
            raise InvalidEvent(f"may have at most {frames.MAX_TOOLS} tools.", field=f"{where}.tools")
        changed["tools"] = tuple(_tool(one, f"{where}.tools[{at}]") for at, one in enumerate(given))
    if not isinstance(options.tool_choice, UnsetType):
        changed["tool_choice"] = _choice(options.tool_choice, f"{where}.tool_choice")
    if settings.sound is not None:
        changed["sound"] = with_audio_options(settings.sound, options.audio, options.output_modalities, where)
    return msgspec.structs.replace(settings, **changed)


def _tool(given: Tool, where: str) -> frames.OfferedTool:
    if given.type != "function":
        why = "must be function: the operator configures tool servers."
        raise InvalidEvent(why, field=f"{where}.type", code="unsupported_parameter")
    fields = {
        "name": given.name or "",
        "description": given.description or "",
        "parameters": given.parameters,
    }
    try:
        return msgspec.convert(fields, frames.OfferedTool)
    except msgspec.ValidationError as error:
        wrong = validation_problem(error)
        raise InvalidEvent(wrong.why, field=f"{where}.{wrong.field}") from None


def _choice(given: str | NamedFunction | None, where: str) -> str:
    match given:
        case None:
            return "auto"
        case NamedFunction(type="function", name=str() as name):
            return name
        case "auto" | "none" | "required":
            return given
        case _:
            raise InvalidEvent("must be auto, none, required, or one function.", field=where)


class AudioConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of sound. `speaks`: replies are spoken; `detection`: None: the client ends its user's turn.

    `voices`: those of the server, the default first; none: replies are text. `languages`: the recognizer's; empty: any.
    `transcribes`: there are no replies.
    """

    voices: tuple[str, ...]
    languages: tuple[str, ...]
    speaks: bool
    input: AudioInput = AudioInput()
    output: AudioOutput = AudioOutput()
    detection: Detection | None = Detection(type="server_vad")
    transcription: Transcription | None = None
    transcribes: bool = False

    @classmethod
    def of(cls, voices: tuple[str, ...], languages: tuple[str, ...] = ()) -> AudioConfig:
        """Return the first settings of a session: replies are spoken if there is a voice, as at OpenAI."""
        return cls(voices=voices, languages=languages, speaks=bool(voices))

    def transcription_only(self) -> AudioConfig:
        """Return the settings of a session that only transcribes."""
        transcription = self.transcription or Transcription()
        return msgspec.structs.replace(self, speaks=False, transcribes=True, transcription=transcription)

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
        return self.output.voice or next(iter(self.voices), None)

    def shown(self) -> dict[str, Any]:
        """Return the settings as the client sees them."""
        shown: dict[str, Any] = {
            "input": {
                "format": {"type": PCM, "rate": self.input.rate},
                "turn_detection": None if self.detection is None else _with_defaults(self.detection),
                "transcription": self.transcription,
            }
        }
        if not self.transcribes:
            shown["output"] = {
                "format": {"type": PCM, "rate": self.output.rate},
                "voice": self.voice,
                "speed": 1.0,
            }
        return shown

    def start(self, conversation_id: str) -> AudioStart:
        """Return the frame that begins to listen with these settings. If the client leaves, its reply ends."""
        language = None if self.transcription is None else self.transcription.language
        return AudioStart(
            conversation_id=conversation_id,
            input=self.input,
            output=self.output if self.speaks else None,
            turn_detection=_turn_detection(self.detection),
            language=language or None,
            grace_s=0,
        )


def with_audio_options(
    settings: AudioConfig, options: AudioOptions | None, modalities: Sequence[str] | None, where: str
) -> AudioConfig:
    """Return the settings with the given options changed. Raises InvalidEvent, which names the field."""
    if modalities is not None:
        settings = _with_modalities(settings, modalities, f"{where}.output_modalities")
    if options is not None and options.input is not None:
        settings = _with_input(settings, options.input, f"{where}.audio.input")
    if options is not None and options.output is not None:
        settings = _with_output(settings, options.output, f"{where}.audio.output")
    return settings


def _with_defaults(requested: Detection) -> Detection:
    """Return detection with defaults for what a client left out."""
    shown = msgspec.structs.replace(
        requested,
        create_response=requested.create_response is not False,
        interrupt_response=requested.interrupt_response is not False,
    )
    if requested.type == "semantic_vad":
        return msgspec.structs.replace(shown, eagerness=requested.eagerness or "auto")
    detection = _turn_detection(requested)
    return msgspec.structs.replace(
        shown,
        threshold=detection.threshold,
        prefix_padding_ms=PREFIX_PADDING_MS,
        silence_duration_ms=detection.silence_ms,
    )


def _with_modalities(settings: AudioConfig, named: Sequence[str], field: str) -> AudioConfig:
    if not named or not _MODALITIES.issuperset(named):
        raise InvalidEvent('must be ["audio"] or ["text"].', field=field)
    speaks = "audio" in named
    if speaks and not settings.voices:
        raise InvalidEvent('must be ["text"]: this server has no voice.', field=field, code=_UNSUPPORTED)
    return msgspec.structs.replace(settings, speaks=speaks)


def _with_input(settings: AudioConfig, options: AudioInputOptions, field: str) -> AudioConfig:
    if isinstance(options.format, AudioFormat):
        rate = _rate(options.format, f"{field}.format")
        settings = msgspec.structs.replace(settings, input=AudioInput(rate=rate))
    if not isinstance(options.turn_detection, UnsetType):
        if options.turn_detection is not None:
            _check(options.turn_detection, f"{field}.turn_detection")
        settings = msgspec.structs.replace(settings, detection=options.turn_detection)
    if not isinstance(options.transcription, UnsetType):
        named = None if options.transcription is None else options.transcription.language
        language = (named or "").partition("-")[0].lower()
        if language and settings.languages and language not in settings.languages:
            why = f"must be one of {', '.join(settings.languages)}."
            raise InvalidEvent(why, field=f"{field}.transcription.language")
        settings = msgspec.structs.replace(settings, transcription=options.transcription)
    return settings


def _with_output(settings: AudioConfig, options: AudioOutputOptions, field: str) -> AudioConfig:
    output = settings.output
    if isinstance(options.format, AudioFormat):
        rate = _rate(options.format, f"{field}.format")
        output = msgspec.structs.replace(output, rate=rate)
    if not isinstance(options.voice, UnsetType):
        output = msgspec.structs.replace(
            output, voice=_voice(options.voice, settings.voices, f"{field}.voice")
        )
    if options.speed not in {UNSET, None, 1}:
        raise InvalidEvent(
            "must be 1: other speeds are not supported.", field=f"{field}.speed", code=_UNSUPPORTED
        )
    return msgspec.structs.replace(settings, output=output)


def _rate(requested: AudioFormat, field: str) -> int:
    if requested.type != PCM:
        raise InvalidEvent(f"must be {PCM}.", field=f"{field}.type")
    rate = PCM_RATE if requested.rate is None else requested.rate
    if not LOWEST_RATE <= rate <= HIGHEST_RATE:
        raise InvalidEvent(f"must be {LOWEST_RATE} to {HIGHEST_RATE}.", field=f"{field}.rate")
    return rate


def _voice(name: str | None, voices: tuple[str, ...], field: str) -> str | None:
    if name in voices:
        return name
    if name is None or name in VOICES or not voices:
        return None
    raise InvalidEvent(f"is not a voice of this server. Available voices include {voices[0]}.", field=field)


def _check(requested: Detection, field: str) -> None:
    """Raise InvalidEvent if a setting is out of range."""
    if requested.idle_timeout_ms is not None:
        why = "is not supported: idle users are not prompted."
        raise InvalidEvent(why, field=f"{field}.idle_timeout_ms", code=_UNSUPPORTED)
    try:
        msgspec.convert(msgspec.to_builtins(_turn_detection(requested)), TurnDetection)
    except msgspec.ValidationError as error:
        wrong = validation_problem(error)
        name = "silence_duration_ms" if wrong.field == "silence_ms" else wrong.field
        raise InvalidEvent(wrong.why, field=f"{field}.{name}") from None


def _turn_detection(requested: Detection | None) -> TurnDetection:
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
        interrupt=requested.interrupt_response is not False,
    )
