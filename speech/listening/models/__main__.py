"""A model's listening process: `python -m speech.listening.models DESCRIPTOR OPTIONS`. Ends with the gateway."""

from __future__ import annotations

from speech.listening.messages import ToListener
from speech.listening.models.worker import ModelListenWorker
from speech.models.serving import serve
from speech.recognition.models.model_loader import load

if __name__ == "__main__":
    serve(ToListener, load, ModelListenWorker)
