"""OpenAI's names of models and voices. Stock clients use them by default; here each stands for the server's own."""

from __future__ import annotations

TRANSCRIPTION_MODELS = frozenset(
    (
        *("whisper-1", "gpt-transcribe", "gpt-4o-transcribe", "gpt-4o-mini-transcribe"),
        "gpt-4o-mini-transcribe-2025-12-15",
    )
)
SPEECH_MODELS = frozenset(("tts-1", "tts-1-hd", "gpt-4o-mini-tts", "gpt-4o-mini-tts-2025-12-15"))
VOICES = frozenset(
    (
        *("alloy", "ash", "ballad", "cedar", "coral", "echo", "fable"),
        *("marin", "nova", "onyx", "sage", "shimmer", "verse"),
    )
)
