"""A voice's process: `python -m speech.voice.models DESCRIPTOR OPTIONS`. Ends with the gateway."""

from __future__ import annotations

from speech.models.serving import serve
from speech.voice.messages import ToVoice
from speech.voice.models.model_loader import load
from speech.voice.models.worker import VoiceWorker

if __name__ == "__main__":
    serve(ToVoice, load, VoiceWorker)
