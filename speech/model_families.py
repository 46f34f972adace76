"""The supported families of speech models, found by a configuration before torch is imported. Knows no torch, so that the gateway can look before it starts a process."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from speech.errors import ModelLoadError

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?")


class Options(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What a process loads. `model`: a hub name or a folder, without `~`; "auto": device and dtype suit the machine.

    `pickled_weights`: also load weights that are not safetensors.
    """

    model: str
    device: str = "auto"
    dtype: str = "auto"
    pickled_weights: bool = False


_RECOGNIZERS = ("whisper", "moonshine")
_RECOGNIZES = "ForConditionalGeneration"
"""The required ending of a recognizer's architecture; other architectures share its type."""
_VOICES = ("vits",)


def recognizer_family(model: str, config: Mapping[str, Any]) -> str:
    """Return the family of a recognition model, by its configuration. Raises ModelLoadError."""
    family = _family(model, config, _RECOGNIZERS, "recognises speech: Whisper and Moonshine do")
    built = config.get("architectures") or []
    if built and not any(str(name).endswith(_RECOGNIZES) for name in built):
        raise ModelLoadError(
            f"The model {model!r} is {built[0]}, and one whose name ends with {_RECOGNIZES} is needed."
        )
    return family


def check_voice(model: str, config: Mapping[str, Any]) -> None:
    """Raise ModelLoadError for a configuration whose model does not speak."""
    _family(model, config, _VOICES, "speaks: VITS models do, such as those of MMS")


def check_named(model: str) -> Mapping[str, Any] | None:
    """Return the content of config.json in a folder; None for a model of the hub. Raises ModelLoadError."""
    folder = Path(model)
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


def _family(model: str, config: Mapping[str, Any], known: Sequence[str], does: str) -> str:
    kind = config.get("model_type")
    if kind not in known:
        raise ModelLoadError(f"The model {model!r} is of the type {kind!r}, which is none that {does}.")
    return str(kind)
