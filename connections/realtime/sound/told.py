"""What clients are told of sound (OpenAI's API reference: Realtime server events). Only types; fields are named as there."""

from __future__ import annotations

from typing import Literal

import msgspec

from connections.realtime.server_events import InReply, ServerEvent
from connections.realtime.sound.wishes import AudioFormat, Detection, Transcription


class InputSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Of what the client sends."""

    format: AudioFormat
    turn_detection: Detection | None
    transcription: Transcription | None
    noise_reduction: None = None


class OutputSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Of what it hears. `voice`: the one that speaks."""

    format: AudioFormat
    voice: str | None
    speed: float = 1.0


class AudioSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Of sound, both ways."""

    input: InputSettings
    output: OutputSettings


class SpeechStarted(ServerEvent, frozen=True, kw_only=True, tag="input_audio_buffer.speech_started"):
    """Somebody speaks. `item_id`: of the item that this will be."""

    audio_start_ms: int
    item_id: str


class SpeechStopped(ServerEvent, frozen=True, kw_only=True, tag="input_audio_buffer.speech_stopped"):
    """He has ended."""

    audio_end_ms: int
    item_id: str


class Committed(ServerEvent, frozen=True, kw_only=True, tag="input_audio_buffer.committed"):
    """What was said becomes an item."""

    previous_item_id: str | None
    item_id: str


class Cleared(ServerEvent, frozen=True, kw_only=True, tag="input_audio_buffer.cleared"):
    """What was said so far is forgotten."""


class Duration(msgspec.Struct, frozen=True):
    """How long somebody spoke."""

    seconds: float
    type: Literal["duration"] = "duration"


class TranscriptDelta(
    ServerEvent, frozen=True, kw_only=True, tag="conversation.item.input_audio_transcription.delta"
):
    """Words that follow those so far."""

    item_id: str
    content_index: int = 0
    delta: str


class TranscriptCompleted(
    ServerEvent, frozen=True, kw_only=True, tag="conversation.item.input_audio_transcription.completed"
):
    """All words, which count: they are what the history has."""

    item_id: str
    content_index: int = 0
    transcript: str
    usage: Duration


class OutputAudioDelta(InReply, frozen=True, kw_only=True, tag="response.output_audio.delta"):
    """Sound that follows the sound so far, in base64."""

    delta: str


class OutputAudioDone(InReply, frozen=True, kw_only=True, tag="response.output_audio.done"):
    """No more sound comes."""


class OutputTranscriptDelta(InReply, frozen=True, kw_only=True, tag="response.output_audio_transcript.delta"):
    """Words that follow those so far. They are ahead of their sound."""

    delta: str


class OutputTranscriptDone(InReply, frozen=True, kw_only=True, tag="response.output_audio_transcript.done"):
    """All words that count: of a reply that was cut, those that were heard."""

    transcript: str


class ItemTruncated(ServerEvent, frozen=True, kw_only=True, tag="conversation.item.truncated"):
    """An item ends at what was heard. `audio_end_ms`: as it counts; `transcript` is ours: the words that are kept."""

    item_id: str
    content_index: int = 0
    audio_end_ms: int
    transcript: str


class OutputCleared(ServerEvent, frozen=True, kw_only=True, tag="output_audio_buffer.cleared"):
    """A reply is played no further."""

    response_id: str
