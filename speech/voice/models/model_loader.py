"""Chooses the module that loads a speech synthesis model."""

from __future__ import annotations

from typing import Any

from speech.models.families import Family, Options, check_parts, voice_family
from speech.models.loading import place, quiet, read_config
from speech.voice.models import fastspeech2, speecht5, vits
from speech.voice.models.interface import SynthesisModel

_LOAD: dict[Family, Any] = {
    Family.VITS: vits.load,
    Family.SPEECHT5: speecht5.load,
    Family.FASTSPEECH2: fastspeech2.load,
}


def load(options: Options) -> SynthesisModel:
    """Return the model. Raises ModelLoadError."""
    quiet()
    config = read_config(place(options.model))
    family = voice_family(options.model, config)
    check_parts(family, options, config)
    model: SynthesisModel = _LOAD[family](options)
    return model
