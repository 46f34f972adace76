"""The settings of a session's replies, in the session's terms and in a turn's. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from connections.api.fields import is_neutral
from connections.protocol import frames, params
from connections.protocol.errors import BadParams, validation_problem
from connections.protocol.server_info import Limits
from connections.realtime.audio.audio_config import (
    BETA_FORMATS,
    AudioConfig,
    Transcription,
    named_format,
    transcription_only,
    with_defaults,
)
from connections.realtime.audio.audio_config import with_audio_options as changed_sound
from connections.realtime.audio.audio_events import (
    AudioSettings,
    InputSettings,
    OutputSettings,
    TranscriptionAudio,
)
from connections.realtime.client_events import (
    NULL,
    CommonOptions,
    NewChoice,
    NewTool,
    ResponseOptions,
    SessionOptions,
    TokenLimit,
    TranscriptionOptions,
)
from connections.realtime.handshake import TRANSCRIPTION
from connections.realtime.problems import InvalidEvent
from connections.realtime.server_events import (
    BetaTranscriptionSession,
    Effort,
    FunctionTool,
    NamedFunction,
    Session,
    TranscriptionSession,
)
from sessions.tools.tool_registry import ToolRegistry

_NEUTRAL: dict[str, tuple[tuple[object, ...], str]] = {
    "parallel_tool_calls": ((True,), "This server does not keep a reply to one call."),
    "prompt": ((), "This server keeps no prompts: use instructions."),
    "input": ((), "This server answers the items of the conversation: create them first."),
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
NO_SOUND = "This server does not take sound: its operator can enable that (MIDSTREAM_SPEECH)."
_NO_SERVER_TOOLS = ToolRegistry()
"""A session's tools are run by its client."""


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


def with_beta_options(settings: Settings, options: TranscriptionOptions) -> Settings:
    """Return the settings after a `transcription_session.update`. Raises InvalidEvent, which names the field."""
    given: dict[str, object] = {}
    if isinstance(name := options.input_audio_format, str):
        if name not in BETA_FORMATS:
            raise InvalidEvent(
                f"must be one of {', '.join(BETA_FORMATS)}.", field="session.input_audio_format"
            )
        given["format"] = {"type": BETA_FORMATS[name]}
    if not isinstance(options.input_audio_transcription, UnsetType):
        given["transcription"] = options.input_audio_transcription
    if not isinstance(options.turn_detection, UnsetType):
        given["turn_detection"] = options.turn_detection
    audio = msgspec.Raw(msgspec.json.encode({"input": given}))
    return _with_transcription_options(settings, SessionOptions(type=TRANSCRIPTION, audio=audio))


def _with_transcription_options(settings: Settings, options: SessionOptions) -> Settings:
    """Return the settings of a session that only transcribes. Raises InvalidEvent."""
    if settings.sound is None:
        raise InvalidEvent(NO_SOUND, field="session.type", code="unsupported_parameter")
    for field in _OF_REPLIES:
        if getattr(options, field) not in (UNSET, NULL, None):
            why = "is an option of replies, which a transcription session does not have: leave it out."
            raise InvalidEvent(why, field=f"session.{field}", code="unsupported_parameter")
    sound = transcription_only(changed_sound(settings.sound, options.audio, NULL, "session"))
    return msgspec.structs.replace(settings, sound=sound)


def with_response_options(settings: Settings, options: ResponseOptions, limits: Limits) -> Settings:
    """Return the settings of one reply. Raises InvalidEvent, which names the field."""
    if options.conversation not in (None, "auto"):
        raise InvalidEvent(
            "must be auto: a response is always a part of its conversation.",
            field="response.conversation",
            code="unsupported_parameter",
        )
    return _checked(settings, options, limits, "response")


def transcription_view(sound: AudioConfig, session_id: str) -> TranscriptionSession:
    """What is in force in a session that only transcribes, as clients see it."""
    return TranscriptionSession(id=session_id, audio=TranscriptionAudio(_input(sound)))


def beta_transcription_view(sound: AudioConfig, session_id: str) -> BetaTranscriptionSession:
    """The same, by the names of the API's beta."""
    kind = named_format(sound.input).type
    return BetaTranscriptionSession(
        id=session_id,
        input_audio_format=next(name for name, known in BETA_FORMATS.items() if known == kind),
        input_audio_transcription=sound.transcription or Transcription(),
        turn_detection=with_defaults(sound.detection),
    )


def session_view(settings: Settings, *, session_id: str, conversation_id: str, model: str) -> Session:
    """What is in force, as clients see it."""
    choice = settings.tool_choice
    return Session(
        id=session_id,
        model=model,
        conversation_id=conversation_id,
        instructions="" if isinstance(settings.instructions, UnsetType) else settings.instructions,
        max_output_tokens=settings.max_output_tokens,
        temperature=settings.temperature,
        tools=tuple(_shown(tool) for tool in settings.tools),
        tool_choice=choice if choice in _TOOL_CHOICES else NamedFunction(name=choice),
        reasoning=None if settings.effort is None else Effort(settings.effort),
        output_modalities=("audio",) if settings.speaks else ("text",),
        audio=UNSET if settings.sound is None else _audio(settings.sound),
    )


def reject_changes(begun: Settings, options: ResponseOptions, limits: Limits) -> None:
    """Raise InvalidEvent if an option would change an exchange that has begun; tools are then the model's choice."""
    begun = msgspec.structs.replace(begun, tool_choice="auto")
    wanted = with_response_options(begun, options, limits)
    for field in begun.__struct_fields__:
        if field != "sound" and getattr(wanted, field) != getattr(begun, field):
            name = "reasoning" if field == "effort" else field
            why = "can't be changed while the outputs of calls wait to be read."
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
        why = 'can\'t be had while replies are spoken: ask for output_modalities ["text"].'
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
        changed["tools"] = _tools(options.tools or (), f"{where}.tools")
    if not isinstance(options.tool_choice, UnsetType):
        changed["tool_choice"] = _choice(options.tool_choice, f"{where}.tool_choice")
    if settings.sound is not None:
        changed["sound"] = changed_sound(settings.sound, options.audio, options.output_modalities, where)
    return msgspec.structs.replace(settings, **changed)


def _tools(given: Sequence[NewTool], where: str) -> tuple[frames.OfferedTool, ...]:
    if len(given) > frames.MAX_TOOLS:
        raise InvalidEvent(f"may have at most {frames.MAX_TOOLS} tools.", field=where)
    return tuple(_tool(one, f"{where}[{number}]") for number, one in enumerate(given))


def _tool(given: NewTool, where: str) -> frames.OfferedTool:
    if given.type != "function":
        why = "must be function: the operator sets the servers that tools come from."
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


def _choice(given: str | NewChoice | None, where: str) -> str:
    match given:
        case None:
            return "auto"
        case NewChoice(type="function", name=str() as name):
            return name
        case "auto" | "none" | "required":
            return given
        case _:
            raise InvalidEvent("must be auto, none, required, or one function.", field=where)


def _shown(tool: frames.OfferedTool) -> FunctionTool:
    return FunctionTool(name=tool.name, description=tool.description, parameters=tool.parameters or {})


def _input(sound: AudioConfig) -> InputSettings:
    return InputSettings(
        format=named_format(sound.input),
        turn_detection=with_defaults(sound.detection),
        transcription=sound.transcription,
    )


def _audio(sound: AudioConfig) -> AudioSettings:
    return AudioSettings(
        input=_input(sound),
        output=OutputSettings(format=named_format(sound.output), voice=sound.voice),
    )
