"""Events about sound (OpenAI's API reference: Realtime server events). Only types, with its names."""

from __future__ import annotations

from typing import Literal

import msgspec

from connections.realtime.audio.audio_config import AudioFormat, Detection, Transcription
from connections.realtime.server_events import ResponseContentEvent, ServerEvent


class InputSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The client's sound."""

    format: AudioFormat
    turn_detection: Detection | None
    transcription: Transcription | None
    noise_reduction: None = None


class OutputSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The sound for the client. `voice`: that of replies."""

    format: AudioFormat
    voice: str | None
    speed: float = 1.0


class AudioSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The sound in both directions."""

    input: InputSettings
    output: OutputSettings


class TranscriptionAudio(msgspec.Struct, frozen=True):
    """The sound of a session that only transcribes."""

    input: InputSettings


class SpeechStarted(ServerEvent, frozen=True, kw_only=True, tag="input_audio_buffer.speech_started"):
    """Speech began. `item_id`: of the item that it will be."""

    audio_start_ms: int
    item_id: str


class SpeechStopped(ServerEvent, frozen=True, kw_only=True, tag="input_audio_buffer.speech_stopped"):
    """Speech has ended."""

    audio_end_ms: int
    item_id: str


class Committed(ServerEvent, frozen=True, kw_only=True, tag="input_audio_buffer.committed"):
    """The utterance becomes an item."""

    previous_item_id: str | None
    item_id: str


class Cleared(ServerEvent, frozen=True, kw_only=True, tag="input_audio_buffer.cleared"):
    """The utterance was dropped."""


class Duration(msgspec.Struct, frozen=True):
    """The length of speech."""

    seconds: float
    type: Literal["duration"] = "duration"


class TranscriptDelta(
    ServerEvent, frozen=True, kw_only=True, tag="conversation.item.input_audio_transcription.delta"
):
    """More words."""

    item_id: str
    content_index: int = 0
    delta: str


class TranscriptCompleted(
    ServerEvent, frozen=True, kw_only=True, tag="conversation.item.input_audio_transcription.completed"
):
    """All words, as the history has them."""

    item_id: str
    content_index: int = 0
    transcript: str
    usage: Duration


class OutputAudioDelta(ResponseContentEvent, frozen=True, kw_only=True, tag="response.output_audio.delta"):
    """More sound, in base64."""

    delta: str


class OutputAudioDone(ResponseContentEvent, frozen=True, kw_only=True, tag="response.output_audio.done"):
    """The sound is complete."""


class OutputTranscriptDelta(
    ResponseContentEvent, frozen=True, kw_only=True, tag="response.output_audio_transcript.delta"
):
    """More words, ahead of their sound."""

    delta: str


class OutputTranscriptDone(
    ResponseContentEvent, frozen=True, kw_only=True, tag="response.output_audio_transcript.done"
):
    """All words that count: of a reply that was cut, those that were heard."""

    transcript: str


class ItemTruncated(ServerEvent, frozen=True, kw_only=True, tag="conversation.item.truncated"):
    """An item ends at what was heard. `audio_end_ms`: its length now; `transcript` is our own: the remaining words."""

    item_id: str
    content_index: int = 0
    audio_end_ms: int
    transcript: str


class OutputCleared(ServerEvent, frozen=True, kw_only=True, tag="output_audio_buffer.cleared"):
    """Playing a reply was stopped."""

    response_id: str
