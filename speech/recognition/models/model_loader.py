"""Chooses the module that loads a model, and imports only that one."""

from __future__ import annotations

from typing import Any

from speech.models.families import Family, Options, recognizer_family
from speech.models.loading import place, quiet, read_config
from speech.recognition.models import ctc, moonshine, whisper

_LOAD: dict[Family, Any] = {
    Family.WHISPER: whisper.load,
    Family.MOONSHINE: moonshine.load,
    Family.CTC: ctc.load,
}


def load(options: Options) -> Any:
    """Return the model, which is a `RecognitionModel`. Raises ModelLoadError."""
    quiet()
    family = recognizer_family(options.model, read_config(place(options.model)))
    return _LOAD[family](options)
