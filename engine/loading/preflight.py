"""Checks a model and its device before torch is imported, which takes seconds. Knows no torch."""

from __future__ import annotations

import ctypes
import json
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import msgspec

from engine.errors import ModelNotUsable
from engine.machine import EngineOptions

INT8_DTYPES = frozenset({"bfloat16", "float32"})
_DEVICE = re.compile(r"(auto|cpu|cuda)(:\d+)?")

SAFE_WEIGHTS = (
    "convert them with transformers' save_pretrained, or if you trust their author, set MIDSTREAM_PICKLED_WEIGHTS "
    "(--pickled-weights)"
)
GGUF = ".gguf"

GGUF_REFUSED = 3
"""The exit code of a conversion whose file is refused."""

OTHER_READER = (
    "Serve it with llama-server, and name it by --upstream; or give --model the model's folder or hub name."
)
"""The advice for GGUF files that are not served."""

_SOME_DTYPE = min(INT8_DTYPES)


def check_quantization(quantize: str, *, device: str, dtype: str) -> None:
    """Raise ModelNotUsable for a quantization not offered, or without gain. `device`: a type, such as "cpu"."""
    if quantize == "none":
        return
    if quantize != "int8":
        raise ModelNotUsable(
            f"--quantize {quantize} is not offered: int8 weights on a CPU are the only ones that were measured. "
            "--engine vllm serves other kinds."
        )
    if device != "cpu":
        raise ModelNotUsable(
            f"--quantize int8 is not offered on {device}: it was run on CPUs only. "
            "Leave it out, use --device cpu, or serve a quantized checkpoint with --engine vllm."
        )
    if dtype not in INT8_DTYPES:
        raise ModelNotUsable(
            f"--quantize int8 is slower than {dtype} alone: use --dtype bfloat16 or float32 with it."
        )


class PreflightResult(msgspec.Struct, frozen=True):
    """Whether a model runs here, as `python -m engine.loading check` prints it. `words`: what it gets, or why it can't."""

    serves: bool
    words: str


def check_libraries() -> None:
    """Raise ModelNotUsable if libraries to run models are missing, as with `midstream-gateway` alone."""
    if any(find_spec(library) is None for library in ("torch", "transformers")):
        raise ModelNotUsable(
            "This installation can't run models: pip install midstream-server, or name a server that runs them by --upstream URL."
        )


def check_options(options: EngineOptions) -> None:
    """Raise ModelNotUsable, with the reason, for options that an engine's process would refuse, too."""
    check_libraries()
    kind = device_type(options.device)
    dtype = _SOME_DTYPE if options.dtype == "auto" else options.dtype
    check_quantization(options.quantize, device="cpu" if kind == "auto" else kind, dtype=dtype)
    check_device(options.device)
    check_folder(options.model)
    folder = Path(options.model)
    is_pickled = any(folder.glob("*.bin")) and not any(folder.glob("*.safetensors"))
    if is_pickled and not options.pickled_weights:  # reading pickled weights may run code
        raise ModelNotUsable(f"The weights of {options.model!r} are not safetensors: {SAFE_WEIGHTS}.")


def device_type(device: str) -> str:
    """Return the type of a device, such as "cuda". Raises ModelNotUsable if `device` names none. Pure."""
    named = _DEVICE.fullmatch(device)
    if named is None:
        raise ModelNotUsable(f"{device!r} is not the name of a device; try auto, cpu, cuda or cuda:1.")
    return named[1]


def check_device(device: str) -> None:
    """Raise ModelNotUsable for a device that this machine can't have."""
    if device_type(device) == "cuda" and not _may_have_cuda():
        raise ModelNotUsable(
            f"The device {device!r} was asked for, but this machine has no NVIDIA driver (libcuda.so.1)."
        )


def check_folder(model: str) -> None:
    """Raise ModelNotUsable if a model is named by a folder that is missing or holds no model."""
    folder = Path(model)
    if not folder.is_dir():
        # The hub has no such names.
        if model.startswith((".", "/", "~")) or model.count("/") > 1:
            raise ModelNotUsable(f"The folder {model!r} does not exist.")
        return
    config = folder / "config.json"
    if not config.is_file():
        raise ModelNotUsable(f"The folder {model!r} holds no model: it has no config.json.")
    try:
        json.loads(config.read_bytes())
    except (OSError, ValueError) as error:
        raise ModelNotUsable(f"The file config.json in {model!r} can't be read.") from error


@cache
def _may_have_cuda() -> bool:
    """Whether this machine has NVIDIA's driver."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True
