"""Checks a model and its device before torch is imported, which takes seconds. Knows no torch."""

from __future__ import annotations

import ctypes
import json
import re
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import msgspec

from engine.errors import ModelNotUsable
from engine.machine import EngineOptions, ForwardOptions

SERVED_ATTENTION = frozenset({"auto", "midstream"})
SERVED_QUANTIZATION = frozenset({"none", "int8"})
INT8_DTYPES = frozenset({"bfloat16", "float32"})
_KNOWN_ATTENTION = ("sdpa", "eager", "flash", "flex", "paged", "sage")
_DEVICE = re.compile(r"(auto|cpu|cuda)(:\d+)?")

SAFE_WEIGHTS = (
    "convert them with transformers' save_pretrained, or if you trust their author, set MIDSTREAM_PICKLED_WEIGHTS "
    "(--pickled-weights)"
)
GGUF = ".gguf"

GGUF_REFUSED = 3
"""The exit code of a conversion whose file is refused."""

OTHER_READER = "Serve it with llama-server, and name that in --upstreams; or give --model the model's folder or hub name."
"""The advice for GGUF files that are not served."""

_SOME_DTYPE = min(INT8_DTYPES)


def check_forward(options: ForwardOptions) -> None:
    """Raise ModelNotUsable, with the reason, for options that no device and no model can be served with."""
    if options.attn not in SERVED_ATTENTION:
        raise ModelNotUsable(_no_attention(options.attn))
    if options.quantize not in SERVED_QUANTIZATION:
        raise ModelNotUsable(
            f"--quantize {options.quantize} is not offered: int8 weights on a CPU are the only ones that were measured. "
            "--engine vllm serves other kinds."
        )
    if options.tensor_parallel != 1:
        raise ModelNotUsable(
            f"--tensor-parallel {options.tensor_parallel} is not offered: this engine runs a model on one device. "
            "Several engines can run, one on each device. --engine vllm spreads one model over several."
        )


def check_quantization(options: ForwardOptions, *, device: str, dtype: str) -> None:
    """Raise ModelNotUsable if int8 weights were asked for but gain nothing. `device`: its type, such as "cpu"."""
    if options.quantize == "none":
        return
    if device != "cpu":
        raise ModelNotUsable(
            f"--quantize {options.quantize} is not offered on {device}: it was run on CPUs only. "
            "Leave it out, use --device cpu, or serve a quantized checkpoint with --engine vllm."
        )
    if dtype not in INT8_DTYPES:
        raise ModelNotUsable(
            f"--quantize {options.quantize} is slower than {dtype} alone: use --dtype bfloat16 or float32 with it."
        )


def _no_attention(name: str) -> str:
    if not name.startswith(_KNOWN_ATTENTION):
        return f"{name!r} is not the name of an attention implementation; use auto or midstream."
    return (
        f"--attn {name} is not served: it can't read the pages of the KV cache, which let replies of all lengths "
        "share a forward pass. Use auto or midstream."
    )


class PreflightResult(msgspec.Struct, frozen=True):
    """Whether a model runs here, as `python -m engine.loading check` prints it. `words`: what it gets, or why it does not."""

    serves: bool
    words: str


def check_libraries() -> None:
    """Raise ModelNotUsable if what runs models is not installed, as with `midstream-gateway` alone."""
    if any(find_spec(library) is None for library in ("torch", "transformers")):
        raise ModelNotUsable(
            "This installation can't run models: pip install midstream-server, or name a server that runs them in --upstreams."
        )


def check_options(options: EngineOptions) -> None:
    """Raise ModelNotUsable, with the reason, for options that an engine's process would refuse, too."""
    check_libraries()
    check_forward(options.forward)
    kind = device_type(options.device)
    if kind != "auto":
        dtype = _SOME_DTYPE if options.dtype == "auto" else options.dtype
        check_quantization(options.forward, device=kind, dtype=dtype)
    check_device(options.device)
    check_folder(options.model)
    if not options.pickled_weights:
        check_weights(options.model)


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
    if looks_like_a_folder(model) and not folder.is_dir():
        raise ModelNotUsable(f"The folder {model!r} does not exist.")
    if not folder.is_dir():
        return
    config = folder / "config.json"
    if not config.is_file():
        raise ModelNotUsable(f"The folder {model!r} holds no model: it has no config.json.")
    try:
        json.loads(config.read_bytes())
    except (OSError, ValueError) as error:
        raise ModelNotUsable(f"The file config.json in {model!r} can't be read.") from error


def check_weights(model: str) -> None:
    """Raise ModelNotUsable if the weights in a folder are pickled, since reading those may run code."""
    folder = Path(model)
    if any(folder.glob("*.bin")) and not any(folder.glob("*.safetensors")):
        raise ModelNotUsable(f"The weights of {model!r} are not safetensors: {SAFE_WEIGHTS}.")


def looks_like_a_folder(model: str) -> bool:
    """Whether a name can only be a folder's, since the hub has no such names. Pure."""
    return model.startswith((".", "/", "~")) or model.count("/") > 1


@cache
def _may_have_cuda() -> bool:
    """Whether a process may find a CUDA device. False only if there is none for certain; ROCm's torch says "cuda", too."""
    if not sys.platform.startswith("linux"):
        return True
    try:
        if "rocm" in version("torch"):
            return True
    except PackageNotFoundError:
        return True
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True
