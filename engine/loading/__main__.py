"""Checks or converts a model in a separate process before an engine serves it.

`python -m engine.loading check OPTIONS` answers whether a model runs here, before its weights are fetched. `OPTIONS`:
`EngineOptions` as JSON. Prints a `PreflightResult` as JSON.

`python -m engine.loading convert FILE FOLDER STARTER` converts a GGUF file into a folder that transformers loads. If the
file is refused, the process prints the reason and exits with `GGUF_REFUSED`. On Linux it ends with the process STARTER (an
id), since another start may remove the files of a dead one.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import msgspec
import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)
from transformers.integrations.gguf.reader import read_gguf_metadata
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from engine.errors import ModelNotUsable
from engine.loading.loader import before_weights
from engine.loading.preflight import GGUF, GGUF_REFUSED, OTHER_READER, PreflightResult
from engine.loading.probe import check_architecture, memory_estimate, skeleton_of
from engine.machine import EngineOptions, end_with_parent
from engine.model.devices import choose_device, choose_dtype
from engine.vision.processor import takes_images

SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
"""What a file advises as `general.sampling.…`, and transformers' names for it."""

DTYPE = torch.bfloat16
"""The dtype of stored weights. Quantized ones lose nothing that matters, and float32 would take twice the disk."""


def verdict(options: EngineOptions) -> PreflightResult:
    """Return whether a model runs with these options, and what it gets."""
    model = options.model
    try:
        if model.lower().endswith(GGUF):
            device = choose_device(options.device)
            config, dtype = read_file(Path(model))[0], choose_dtype(options.dtype, device)
        else:
            config, _, device, dtype = before_weights(options)
        if config.is_encoder_decoder or takes_images(config):
            return PreflightResult(serves=True, words=f"{config.model_type} runs in this engine.")
        words = memory_estimate(skeleton_of(model, config, dtype), device, options)
        return PreflightResult(serves=True, words=words)
    except ModelNotUsable as error:
        return PreflightResult(serves=False, words=str(error))


def read_file(file: Path) -> tuple[PreTrainedConfig, PreTrainedTokenizerBase]:
    """Return a file's configuration and tokenizer, if its model can be served. Raises ModelNotUsable.

    They come from the file alone: transformers also reads neighboring files, which may be another model's.
    """
    with _readable(str(file)), TemporaryDirectory() as alone:
        Path(alone, file.name).symlink_to(file.absolute())
        source: dict[str, Any] = {"gguf_file": file.name, "trust_remote_code": False}
        config = AutoConfig.from_pretrained(alone, **source)
        tokenizer = AutoTokenizer.from_pretrained(alone, **source)
        _check_positions(file, config)
    if not tokenizer.chat_template:
        raise ModelNotUsable(
            f"{file} has no chat template: it is not a chat model. Try its instruct variant."
        )
    try:
        check_architecture(str(file), config, torch.device("cpu"), DTYPE)
    except ModelNotUsable as error:
        raise ModelNotUsable(f"{file}: {error} {OTHER_READER}") from error
    return config, tokenizer


def convert(file: Path, folder: Path) -> None:
    """Write a model's configuration, tokenizer and unpacked weights to an empty folder. Raises ModelNotUsable."""
    config, tokenizer = read_file(file)
    module = skeleton_of(str(file), config, DTYPE)
    with _readable(f"The weights of {file}"):
        # from_pretrained does the same, but needs accelerate. Once that is installed, each start takes 2 s longer.
        untyped: Any = load_gguf_checkpoint
        read = untyped(str(file), return_tensors=True, model_to_load=module, torch_dtype=DTYPE)
        weights = {name: weight.to(DTYPE) for name, weight in read["tensors"].items()}
        module.load_state_dict(weights, strict=False, assign=True)
        module.tie_weights()
    if missing := [name for name, weight in module.state_dict().items() if weight.is_meta]:
        raise ModelNotUsable(
            f"{file} lacks {len(missing)} of the weights of {type(module).__name__}; the first is {missing[0]}. "
            f"{OTHER_READER}"
        )
    module.generation_config = _generation_config(file, config)
    try:
        module.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    except (OSError, SafetensorError) as error:
        raise ModelNotUsable(f"The model can't be written to {folder}: {_sentence(error)}") from error


def _generation_config(file: Path, config: PreTrainedConfig) -> GenerationConfig:
    """Return a config with a model's end tokens, and the sampling that its file advises."""
    metadata, _ = read_gguf_metadata(str(file))
    advised = {
        name: metadata[f"general.sampling.{key}"]
        for key, name in SAMPLING.items()
        if f"general.sampling.{key}" in metadata
    }
    generation: Any = GenerationConfig.from_model_config(config)
    if advised:
        generation.update(do_sample=advised.get("temperature", 1.0) > 0, **advised)
    return cast("GenerationConfig", generation)


def _check_positions(file: Path, config: PreTrainedConfig) -> None:
    """Raise ModelNotUsable if rotary embeddings are scaled in a way that transformers does not read from the file."""
    metadata, tensors = read_gguf_metadata(str(file))
    scaling = metadata.get(f"{metadata['general.architecture']}.rope.scaling.type", "none")
    scaled = scaling not in {"none", ""} or any(name.startswith("rope_") for name in tensors)
    if scaled and (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default") == "default":
        raise ModelNotUsable(
            f"{file} scales its positions in a way that transformers does not read from GGUF files, so replies would be "
            f"wrong in long conversations. {OTHER_READER}"
        )


@contextmanager
def _readable(subject: str) -> Iterator[None]:
    """Turn what transformers raises for files that it does not know, or that are damaged, into ModelNotUsable.

    transformers parses with struct and numpy, which raise errors of any kind. A lack of memory is not the file's fault.
    """
    try:
        yield
    except (ModelNotUsable, MemoryError):
        raise
    except Exception as error:
        raise ModelNotUsable(f"{subject} can't be read: {_sentence(error)} {OTHER_READER}") from error


def _sentence(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(".") + "."


def _check(options: str) -> int:
    torch.set_num_threads(1)
    found = verdict(msgspec.json.decode(options, type=EngineOptions))
    sys.stdout.write(msgspec.json.encode(found).decode())
    return 0


def _convert(file: str, folder: str, starter: str) -> int:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback
    end_with_parent()
    if sys.platform == "linux" and os.getppid() != int(starter):  # the starter died before
        return 1
    try:
        convert(Path(file), Path(folder))
    except ModelNotUsable as error:
        sys.stdout.write(str(error))
        return GGUF_REFUSED
    return 0


if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    sys.exit(_check(*arguments) if command == "check" else _convert(*arguments))
