"""Loads the parts of a speech model, or says why they can't be used. For the processes with torch."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import PreTrainedConfig
from transformers.utils import logging as transformers_logging

from speech.errors import ModelLoadError
from speech.interfaces import ModelOptions


def quiet() -> None:
    """Keep transformers' progress bars and warnings out of the log: they may quote texts."""
    untyped: Any = transformers_logging
    untyped.set_verbosity_error()
    untyped.disable_progress_bar()


def device_of(requested: str) -> torch.device:
    """Return a device; "auto" is CUDA, else the CPU. Raises ModelLoadError if it is not available."""
    if requested == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(requested)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ModelLoadError(f"The device {requested!r} is not available.") from error
    if device.type not in ("cpu", "cuda"):
        raise ModelLoadError(f"The device {requested!r} is neither a CPU nor CUDA's.")
    return device


def family_of(model: str, known: Collection[str], does: str) -> str:
    """Return the type of a model, from a folder or the hub. `does`: what models of the `known` types do. Raises ModelLoadError."""
    try:
        config, _ = PreTrainedConfig.get_config_dict(model)
    except (OSError, ValueError) as error:
        raise ModelLoadError(
            f"The model {model!r} is not stored on this machine, and the hub can't be reached or does not know it."
        ) from error
    family = config.get("model_type")
    if family not in known:
        raise ModelLoadError(
            f"The model {model!r} is of the type {family!r}, which is none that {does}: {', '.join(known)}."
        )
    return str(family)


def read_weights(kind: Any, options: ModelOptions) -> Any:
    """Return a model of a transformers class, in evaluation mode, in float16 on CUDA, else in float32.

    Raises ModelLoadError, also for weights that are not safetensors unless the options allow them.
    """
    model, device = options.model, device_of(options.device)
    _refuse_pickled(model, allowed=options.pickled_weights)
    with load_errors(f"The weights of {model!r}"):
        module, report = kind.from_pretrained(
            model,
            dtype=torch.float16 if device.type == "cuda" else torch.float32,
            output_loading_info=True,
            trust_remote_code=False,
            use_safetensors=None if options.pickled_weights else True,
        )
    missing = sorted(report["missing_keys"])
    if missing:
        raise ModelLoadError(
            f"The checkpoint of {model!r} lacks {len(missing)} of the weights, such as {missing[0]}."
        )
    with load_errors(f"The model {model!r} on {device}"):
        return module.to(device).eval()


def _refuse_pickled(model: str, *, allowed: bool) -> None:
    """Raise ModelLoadError for weights in a folder whose reading may run code."""
    folder = Path(model)
    if not allowed and any(folder.glob("*.bin")) and not any(folder.glob("*.safetensors")):
        raise ModelLoadError(
            f"The weights of {model!r} are not safetensors: convert them with transformers' save_pretrained, or if you "
            "trust their author, set MIDSTREAM_PICKLED_WEIGHTS (--pickled-weights)."
        )


def read_part(kind: Any, model: str, what: str) -> Any:
    """Return a tokenizer or a feature extractor. `what`: its name for people. Raises ModelLoadError."""
    with load_errors(f"The {what} of {model!r}"):
        return kind.from_pretrained(model, trust_remote_code=False)


@contextmanager
def load_errors(what: str) -> Iterator[None]:
    """Turn exceptions in the block into ModelLoadError, with a sentence."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, ImportError, SafetensorError) as error:
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise ModelLoadError(f"{what} can't be used: {reason or type(error).__name__}.") from error
