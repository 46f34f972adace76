"""The events of translation sessions (OpenAI's API reference: Translation client events, server events). Only types.

Our own are typed text (`session.input_text_buffer.append`), the language of the source, and when words are told.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from connections.protocol.frames import LanguageTag
from connections.realtime.client_events import ClientEvent
from connections.realtime.server_events import ServerEvent
from sessions.records import PublishPolicy

Wait = Annotated[int, Meta(ge=1, le=20)]
VoiceName = Annotated[str, Meta(min_length=1, max_length=64)]


class Transcription(msgspec.Struct, frozen=True):
    """The source is sent, too. `model`: the client's name of the recognizer, or nothing for typed text."""

    model: Annotated[str, Meta(max_length=128)] = ""


class InputOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the source. `language`: our own; `noise_reduction` has no effect."""

    transcription: Transcription | UnsetType | None = UNSET
    language: LanguageTag | UnsetType | None = UNSET


class OutputOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the translation. `voice`: our own; null: text only."""

    language: LanguageTag | UnsetType = UNSET
    voice: VoiceName | UnsetType | None = UNSET


class AudioOptions(msgspec.Struct, frozen=True):
    """Options of both sides."""

    input: InputOptions = InputOptions()
    output: OutputOptions = OutputOptions()


class SessionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options that change from now on. `told`, `wait`: our own, as in `interpret.start`."""

    audio: AudioOptions = AudioOptions()
    told: PublishPolicy | UnsetType = UNSET
    wait: Wait | UnsetType = UNSET


class SessionUpdate(ClientEvent, frozen=True, kw_only=True, tag="session.update"):
    """Changes the options of the translation from now on."""

    session: SessionOptions


class TextAppend(ClientEvent, frozen=True, kw_only=True, tag="session.input_text_buffer.append"):
    """More typed text. Words end with a blank, or a mark."""

    text: str


class AudioAppend(ClientEvent, frozen=True, kw_only=True, tag="session.input_audio_buffer.append"):
    """More speech: PCM16 at 24,000 Hz with one channel, little-endian, in base64."""

    audio: str


class SessionClose(ClientEvent, frozen=True, kw_only=True, tag="session.close"):
    """Ends the source: the rest is translated, then the session is closed."""


AnyClientEvent = SessionUpdate | TextAppend | AudioAppend | SessionClose


class Input(msgspec.Struct, frozen=True, kw_only=True):
    """The current options of the source."""

    transcription: Transcription | None
    noise_reduction: None = None
    language: str


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """The current options of the translation. `language`: null until the client sets it."""

    language: str | None
    voice: str | None


class Audio(msgspec.Struct, frozen=True):
    """The current options of both sides."""

    input: Input
    output: Output


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A session in its current state. `expires_at`: Unix seconds; `conversation_id`: our own, of its history."""

    id: str
    type: Literal["translation"] = "translation"
    model: str
    expires_at: int
    audio: Audio
    told: PublishPolicy
    wait: int
    conversation_id: str


class SessionCreated(ServerEvent, frozen=True, kw_only=True, tag="session.created"):
    """The first event."""

    session: Session


class SessionUpdated(ServerEvent, frozen=True, kw_only=True, tag="session.updated"):
    """The options from now on."""

    session: Session


class SessionClosed(ServerEvent, frozen=True, kw_only=True, tag="session.closed"):
    """The last event."""


class InputDelta(ServerEvent, frozen=True, kw_only=True, tag="session.input_transcript.delta"):
    """More of the source, which is never revised. `elapsed_ms`: of the received sound, if there is any."""

    delta: str
    elapsed_ms: int | UnsetType = UNSET


class OutputDelta(ServerEvent, frozen=True, kw_only=True, tag="session.output_transcript.delta"):
    """More of the translation, which is never revised."""

    delta: str
    elapsed_ms: int | UnsetType = UNSET


class AudioDelta(ServerEvent, frozen=True, kw_only=True, tag="session.output_audio.delta"):
    """More of the translation as sound, in base64."""

    delta: str
    format: Literal["pcm16"] = "pcm16"
    sample_rate: int = 24_000
    channels: int = 1
