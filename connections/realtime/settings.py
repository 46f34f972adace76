"""The settings of a session's replies, in the session's terms and in a turn's. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from connections.openai.unserved import says
from connections.realtime.client_events import (
    NULL,
    NewChoice,
    NewTool,
    ResponseWishes,
    SessionWishes,
    Tokens,
    TranscriptionWishes,
    Wishes,
)
from connections.realtime.handshake import TRANSCRIPTION
from connections.realtime.problems import Invalid
from connections.realtime.server_events import (
    BetaTranscriptionSession,
    Effort,
    FunctionTool,
    NamedFunction,
    Session,
    TranscriptionSession,
)
from connections.realtime.sound.told import AudioSettings, InputSettings, OutputSettings, TranscriptionAudio
from connections.realtime.sound.wishes import (
    BETA_FORMATS,
    SoundSettings,
    Transcription,
    in_force,
    named_format,
    transcribing,
)
from connections.realtime.sound.wishes import changed as changed_sound
from connections.wire import frames, params, tools
from connections.wire.errors import BadParams
from connections.wire.facts import Limits
from connections.wire.sentences import complaint
from sessions.tools.tool_box import ToolBox

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
_WORDS = ("auto", "none", "required")
_OF_REPLIES = (
    *("instructions", "max_output_tokens", "temperature", "tools", "tool_choice", "reasoning"),
    *("output_modalities", "prompt"),
)
NO_SOUND = "This server does not take sound: its operator can enable that (MIDSTREAM_SPEECH)."
_NO_SERVER_TOOLS = ToolBox()
"""A session's tools are run by its client."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """`instructions` unset: the conversation's own, or the operator's. `tool_choice`: a word, or the name of a tool.

    `sound`: None if this server takes none.
    """

    instructions: str | UnsetType = UNSET
    max_output_tokens: Tokens = "inf"
    temperature: float | None = None
    tools: tuple[frames.OfferedTool, ...] = ()
    tool_choice: str = "auto"
    effort: str | None = None
    sound: SoundSettings | None = None

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


def of_session(settings: Settings, wishes: SessionWishes, limits: Limits) -> Settings:
    """Return the settings after a `session.update`. Raises Invalid, which names the field; then nothing changes."""
    if wishes.type == TRANSCRIPTION:
        return _of_transcriptions(settings, wishes)
    if wishes.type != "realtime":
        raise Invalid(f"must be realtime or {TRANSCRIPTION}.", field="session.type")
    if settings.transcribes:
        raise Invalid(f"must stay {TRANSCRIPTION}: open another session for replies.", field="session.type")
    return _checked(settings, wishes, limits, "session")


def of_beta(settings: Settings, wishes: TranscriptionWishes) -> Settings:
    """Return the settings after a `transcription_session.update`. Raises Invalid, which names the field."""
    given: dict[str, object] = {}
    if isinstance(name := wishes.input_audio_format, str):
        if name not in BETA_FORMATS:
            raise Invalid(f"must be one of {', '.join(BETA_FORMATS)}.", field="session.input_audio_format")
        given["format"] = {"type": BETA_FORMATS[name]}
    if not isinstance(wishes.input_audio_transcription, UnsetType):
        given["transcription"] = wishes.input_audio_transcription
    if not isinstance(wishes.turn_detection, UnsetType):
        given["turn_detection"] = wishes.turn_detection
    audio = msgspec.Raw(msgspec.json.encode({"input": given}))
    return _of_transcriptions(settings, SessionWishes(type=TRANSCRIPTION, audio=audio))


def _of_transcriptions(settings: Settings, wishes: SessionWishes) -> Settings:
    """Return the settings of a session that only transcribes. Raises Invalid."""
    if settings.sound is None:
        raise Invalid(NO_SOUND, field="session.type", code="unsupported_parameter")
    for field in _OF_REPLIES:
        if getattr(wishes, field) not in (UNSET, NULL, None):
            why = "is an option of replies, which a transcription session does not have: leave it out."
            raise Invalid(why, field=f"session.{field}", code="unsupported_parameter")
    sound = transcribing(changed_sound(settings.sound, wishes.audio, NULL, "session"))
    return msgspec.structs.replace(settings, sound=sound)


def of_response(settings: Settings, wishes: ResponseWishes, limits: Limits) -> Settings:
    """Return the settings of one reply. Raises Invalid, which names the field."""
    if wishes.conversation not in (None, "auto"):
        raise Invalid(
            "must be auto: a response is always a part of its conversation.",
            field="response.conversation",
            code="unsupported_parameter",
        )
    return _checked(settings, wishes, limits, "response")


def shown_transcriptions(sound: SoundSettings, session_id: str) -> TranscriptionSession:
    """What is in force in a session that only transcribes, as clients see it."""
    return TranscriptionSession(id=session_id, audio=TranscriptionAudio(_input(sound)))


def shown_beta(sound: SoundSettings, session_id: str) -> BetaTranscriptionSession:
    """The same, by the names of the API's beta."""
    kind = named_format(sound.input).type
    return BetaTranscriptionSession(
        id=session_id,
        input_audio_format=next(name for name, known in BETA_FORMATS.items() if known == kind),
        input_audio_transcription=sound.transcription or Transcription(),
        turn_detection=in_force(sound.detection),
    )


def shown_session(settings: Settings, *, session_id: str, conversation_id: str, model: str) -> Session:
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
        tool_choice=choice if choice in _WORDS else NamedFunction(name=choice),
        reasoning=None if settings.effort is None else Effort(settings.effort),
        output_modalities=("audio",) if settings.speaks else ("text",),
        audio=UNSET if settings.sound is None else _audio(settings.sound),
    )


def refuse_change(begun: Settings, wishes: ResponseWishes, limits: Limits) -> None:
    """Raise Invalid if an option would change an exchange that has begun; tools are then the model's choice."""
    begun = msgspec.structs.replace(begun, tool_choice="auto")
    wanted = of_response(begun, wishes, limits)
    for field in begun.__struct_fields__:
        if field != "sound" and getattr(wanted, field) != getattr(begun, field):
            name = "reasoning" if field == "effort" else field
            why = "can't be changed while the outputs of calls wait to be read."
            raise Invalid(why, field=f"response.{name}", code="unsupported_parameter")


def _checked(settings: Settings, wishes: Wishes, limits: Limits, where: str) -> Settings:
    for field, (neutral, why) in _NEUTRAL.items():
        if not says(getattr(wishes, field, NULL), neutral):
            raise Invalid(why, field=f"{where}.{field}", code="unsupported_parameter")
    changed = _updated(settings, wishes, where)
    try:
        params.generation(changed.params(), max_new_tokens=limits.max_new_tokens)
        turn = frames.TurnFrame(client_msg_id="", tools=changed.tools, tool_choice=changed.tool_choice)
        tools.offered_tools(turn, _NO_SERVER_TOOLS)
    except BadParams as error:
        field = error.field or ""
        raise Invalid(error.why, field=f"{where}.{_NAMES.get(field, field)}") from None
    if changed.speaks and changed.tools:
        why = 'can\'t be had while replies are spoken: ask for output_modalities ["text"].'
        raise Invalid(why, field=f"{where}.tools", code="unsupported_parameter")
    return changed


def _updated(settings: Settings, wishes: Wishes, where: str) -> Settings:
    """Return the settings with the given options changed. Raises Invalid."""
    changed: dict[str, object] = {}
    if not isinstance(wishes.instructions, UnsetType):
        changed["instructions"] = wishes.instructions or ""
    if not isinstance(wishes.max_output_tokens, UnsetType):
        changed["max_output_tokens"] = "inf" if wishes.max_output_tokens is None else wishes.max_output_tokens
    if not isinstance(wishes.temperature, UnsetType):
        changed["temperature"] = wishes.temperature
    if not isinstance(wishes.reasoning, UnsetType):
        effort = None if wishes.reasoning is None else wishes.reasoning.effort
        changed["effort"] = "off" if effort == "none" else effort
    if not isinstance(wishes.tools, UnsetType):
        changed["tools"] = _tools(wishes.tools or (), f"{where}.tools")
    if not isinstance(wishes.tool_choice, UnsetType):
        changed["tool_choice"] = _choice(wishes.tool_choice, f"{where}.tool_choice")
    if settings.sound is not None:
        changed["sound"] = changed_sound(settings.sound, wishes.audio, wishes.output_modalities, where)
    return msgspec.structs.replace(settings, **changed)


def _tools(given: Sequence[NewTool], where: str) -> tuple[frames.OfferedTool, ...]:
    if len(given) > frames.MAX_TOOLS:
        raise Invalid(f"may have at most {frames.MAX_TOOLS} tools.", field=where)
    return tuple(_tool(one, f"{where}[{number}]") for number, one in enumerate(given))


def _tool(given: NewTool, where: str) -> frames.OfferedTool:
    if given.type != "function":
        why = "must be function: the operator sets the servers that tools come from."
        raise Invalid(why, field=f"{where}.type", code="unsupported_parameter")
    fields = {
        "name": given.name or "",
        "description": given.description or "",
        "parameters": given.parameters,
    }
    try:
        return msgspec.convert(fields, frames.OfferedTool)
    except msgspec.ValidationError as error:
        wrong = complaint(error)
        raise Invalid(wrong.why, field=f"{where}.{wrong.field}") from None


def _choice(given: str | NewChoice | None, where: str) -> str:
    match given:
        case None:
            return "auto"
        case NewChoice(type="function", name=str() as name):
            return name
        case "auto" | "none" | "required":
            return given
        case _:
            raise Invalid("must be auto, none, required, or one function.", field=where)


def _shown(tool: frames.OfferedTool) -> FunctionTool:
    return FunctionTool(name=tool.name, description=tool.description, parameters=tool.parameters or {})


def _input(sound: SoundSettings) -> InputSettings:
    return InputSettings(
        format=named_format(sound.input),
        turn_detection=in_force(sound.detection),
        transcription=sound.transcription,
    )


def _audio(sound: SoundSettings) -> AudioSettings:
    return AudioSettings(
        input=_input(sound),
        output=OutputSettings(format=named_format(sound.output), voice=sound.voice),
    )
