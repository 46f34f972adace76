"""Answers whether a model runs here, before its weights are fetched: `python -m engine.loading OPTIONS`.

`OPTIONS`: `EngineOptions` as JSON. Prints a `PreflightResult` as JSON.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import torch

from engine.errors import ModelNotUsable
from engine.loading.gguf import read_file
from engine.loading.loader import before_weights, takes_images
from engine.loading.memory_estimate import memory_estimate
from engine.loading.preflight import GGUF, PreflightResult
from engine.loading.probe import skeleton_of
from engine.model.devices import choose_device, choose_dtype
from engine.options import EngineOptions


def verdict(options: EngineOptions) -> PreflightResult:
    """Return whether a model runs with these options, and what it gets."""
    try:
        return PreflightResult(serves=True, words=_words(options))
    except ModelNotUsable as error:
        return PreflightResult(serves=False, words=str(error))


def _words(options: EngineOptions) -> str:
    model = options.model
    if model.lower().endswith(GGUF):
        device = choose_device(options.device)
        config, dtype = read_file(Path(model))[0], choose_dtype(options.dtype, device)
    else:
        config, _, device, dtype = before_weights(
            model, device=options.device, dtype=options.dtype, forward=options.forward
        )
    if config.is_encoder_decoder or takes_images(config):
        return f"{config.model_type} runs in this engine."
    skeleton = skeleton_of(model, config, dtype)
    return memory_estimate(
        skeleton, device, kv_bytes=options.kv_bytes, memory_share=options.memory_share
    ).words


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = verdict(msgspec.json.decode(sys.argv[1], type=EngineOptions))
    sys.stdout.write(msgspec.json.encode(found).decode())
