"""A model's process: `python -m speech.recognition.models DESCRIPTOR OPTIONS`. Ends with the gateway."""

from __future__ import annotations

from speech.models.serving import serve
from speech.recognition.messages import ToRecognizer
from speech.recognition.models.choosing import load
from speech.recognition.models.work import RecognizerWork

if __name__ == "__main__":
    serve(ToRecognizer, load, RecognizerWork)
