"""The supported families of speech models, found by a configuration before torch is imported. Knows no torch, so that the gateway can look before it starts a process."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from speech.errors import ModelLoadError

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?")


class Family(StrEnum):
    """A kind of model, by its interface."""

    WHISPER = "whisper"
    MOONSHINE = "moonshine"
    CTC = "ctc"
    VITS = "vits"
    SPEECHT5 = "speecht5"
    FASTSPEECH2 = "fastspeech2_conformer"


class Options(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What a process loads. `model`: a hub name or a folder; "auto": device and dtype suit the machine.

    `pickled_weights`: also load weights that are not safetensors.

    `vocoder`: a hub name or a folder of a model that converts spectrograms to sound. `speakers`: a folder of
    speaker embeddings.
    """

    model: str
    device: str = "auto"
    dtype: str = "auto"
    pickled_weights: bool = False
    vocoder: str | None = None
    speakers: str | None = None


_CTC = (
    *("data2vec-audio", "hubert", "sew", "sew-d", "unispeech", "unispeech-sat"),
    *("wav2vec2", "wav2vec2-conformer", "wavlm"),
)
"""Families that take raw samples."""
_RECOGNIZERS = {"whisper": Family.WHISPER, "moonshine": Family.MOONSHINE} | dict.fromkeys(_CTC, Family.CTC)
_SYNTHESIZERS = {
    "vits": Family.VITS,
    "speecht5": Family.SPEECHT5,
    "fastspeech2_conformer": Family.FASTSPEECH2,
    "fastspeech2_conformer_with_hifigan": Family.FASTSPEECH2,
}
_HEAD = {
    Family.WHISPER: "ForConditionalGeneration",
    Family.MOONSHINE: "ForConditionalGeneration",
    Family.CTC: "ForCTC",
    Family.SPEECHT5: "ForTextToSpeech",
}
"""The required ending of the architecture's name; other architectures share its type."""


def recognizer_family(model: str, config: Mapping[str, Any]) -> Family:
    """Return the family of a recognition model, by its configuration. Raises ModelLoadError."""
    return _family(
        model, config, _RECOGNIZERS, "recognises speech: Whisper, Moonshine, and CTC models of raw samples do"
    )


def voice_family(model: str, config: Mapping[str, Any]) -> Family:
    """Return the family of a speech synthesis model, by its configuration. Raises ModelLoadError."""
    return _family(model, config, _SYNTHESIZERS, "speaks: VITS, SpeechT5 and FastSpeech2Conformer do")


def check_parts(family: Family, options: Options, config: Mapping[str, Any]) -> None:
    """Raise ModelLoadError if a voice lacks something that its family needs besides the model."""
    needs_vocoder = family is Family.SPEECHT5 or config.get("model_type") == "fastspeech2_conformer"
    if needs_vocoder and options.vocoder is None:
        raise ModelLoadError(f"The model {options.model!r} makes spectrograms: it needs a vocoder.")
    if family is not Family.SPEECHT5:
        return
    if options.speakers is None:
        raise ModelLoadError(
            f"The model {options.model!r} needs a folder of speaker embeddings, NAME.npy each."
        )
    if not any(Path(options.speakers).expanduser().glob("*.npy")):
        raise ModelLoadError(f"The folder {options.speakers!r} has no speaker embeddings, NAME.npy each.")


def check_named(model: str) -> Mapping[str, Any] | None:
    """Return the content of config.json in a folder; None for a model of the hub. Raises ModelLoadError."""
    folder = Path(model).expanduser()
    if not folder.is_dir():
        if model.startswith((".", "/", "~")) or model.count("/") > 1:
            raise ModelLoadError(f"The folder {model!r} does not exist.")
        if not _HUB_NAME.fullmatch(model):
            raise ModelLoadError(f"{model!r} is neither a folder nor a name of the hub.")
        return None
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except FileNotFoundError:
        raise ModelLoadError(f"The folder {model!r} holds no model: it has no config.json.") from None
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"The file config.json in {model!r} can't be read.") from error
    if not isinstance(config, dict):
        raise ModelLoadError(f"The file config.json in {model!r} can't be read.")
    return config


def _family(model: str, config: Mapping[str, Any], known: Mapping[str, Family], does: str) -> Family:
    kind = config.get("model_type")
    family = known.get(kind) if isinstance(kind, str) else None
    if family is None:
        raise ModelLoadError(f"The model {model!r} is of the type {kind!r}, which is none that {does}.")
    built = config.get("architectures") or []
    head = _HEAD.get(family, "")
    if built and not any(str(name).endswith(head) for name in built):
        raise ModelLoadError(
            f"The model {model!r} is {built[0]}, and one whose name ends with {head} is needed."
        )
    return family
