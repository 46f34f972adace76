"""Recognition during speech by a model for recordings. Knows no model."""

from __future__ import annotations

from typing import Any

import numpy as np

from speech.listening.stream import Utterance
from speech.listening.work import ListenWork
from speech.process.line import Line
from speech.process.messages import Working
from speech.recognition.models.hearing import Hearing
from speech.sound.samples import FULL_SCALE, Samples


class ModelListenWork(ListenWork):
    """Recognizes with a model: an utterance is a recording for it, piece by piece."""

    def __init__(self, line: Line, model: Hearing[Any]) -> None:
        super().__init__(line, model.facts, self._words)
        self._model = model

    def _words(self, samples: Samples, language: str | None) -> Utterance:
        """Return the words. Raises FloatingPointError if the model computed invalid numbers."""
        wave = samples.astype(np.float32) / np.float32(FULL_SCALE)
        job = self._model.begin(wave, language=language, wants_words=False)
        said: list[str] = []
        while not job.is_over:
            (segments,) = self._model.hear([job], self._beat)
            if segments is None:
                raise FloatingPointError
            said += (segment.text.strip() for segment in segments)
        return Utterance(" ".join(text for text in said if text))

    def _beat(self) -> list[bool]:
        """Report between two steps that it works. A speaker who leaves is noticed after this piece, of some seconds."""
        self.line.send(Working())
        return [False]
