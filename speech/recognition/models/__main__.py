"""A model's process: `python -m speech.recognition.models DESCRIPTOR OPTIONS`. Ends with the gateway."""

from __future__ import annotations

from speech.models.serving import serve
from speech.recognition.messages import ToRecognizer
from speech.recognition.models.model_loader import load
from speech.recognition.models.worker import RecognizerWorker

if __name__ == "__main__":
    serve(ToRecognizer, load, RecognizerWorker)
