"""A model's listening process: `python -m speech.listening.models DESCRIPTOR OPTIONS`. Ends with the gateway."""

from __future__ import annotations

from typing import Any

import numpy as np

from speech.listening.messages import ToListener
from speech.listening.stream import Utterance
from speech.listening.worker import ListenWorker
from speech.models.loading import serve
from speech.process.messages import Working
from speech.process.worker import Channel
from speech.recognition.models import load
from speech.recognition.worker import RecognitionModel
from speech.sound.samples import FULL_SCALE, Samples


class ModelListenWorker(ListenWorker):
    """Recognizes with a model: an utterance is a recording for it, piece by piece."""

    def __init__(self, channel: Channel, model: RecognitionModel[Any]) -> None:
        super().__init__(channel, model.facts, self._words)
        self._model = model

    def _words(self, samples: Samples, language: str | None) -> Utterance:
        """Return the words. Raises FloatingPointError if the model computed invalid numbers."""
        wave = samples.astype(np.float32) / np.float32(FULL_SCALE)
        job = self._model.begin(wave, language=language, wants_words=False)
        texts: list[str] = []
        while not job.is_over:
            (segments,) = self._model.transcribe([job], self._beat)
            if segments is None:
                raise FloatingPointError
            texts += (segment.text.strip() for segment in segments)
        return Utterance(" ".join(text for text in texts if text))

    def _beat(self) -> list[bool]:
        """Report between two steps that it works. A speaker who leaves is noticed after this piece, of some seconds."""
        self.channel.send(Working())
        return [False]


if __name__ == "__main__":
    serve(ToListener, load, ModelListenWorker)
