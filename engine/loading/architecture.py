"""Tells from a model's configuration whether it can be served at all, and whether its weights fit."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from engine.errors import OTHER_ENGINE, ModelNotUsable
from engine.model.devices import available_bytes

SERVED_LAYERS = frozenset({"full_attention", "sliding_attention", "chunked_attention"})


def check_architecture(
    model: str, config: PreTrainedConfig, device: torch.device, dtype: torch.dtype
) -> None:
    """Refuse a model that can't be served or doesn't fit, before its weights are read. Raises ModelNotUsable."""
    if type(config) not in AutoModelForCausalLM._model_mapping:  # noqa: SLF001 - transformers has no public list
        raise ModelNotUsable(f"The model {model!r} is no causal language model, so it can't write replies.")
    kind = _quantization_of(config)
    if kind is not None:
        raise ModelNotUsable(
            f"The checkpoint of {model!r} is quantized ({kind}), which is not supported yet. Take the model that it "
            f"was made from; --quantize int8 makes its weights smaller on a CPU. As it is, {OTHER_ENGINE}."
        )
    skeleton = skeleton_of(model, config, dtype)
    check_kind(model, config, type(skeleton))
    check_room(model, skeleton, device)


def check_kind(model: str, config: PreTrainedConfig, kind: Any) -> None:
    """Raise ModelNotUsable if a model class says of itself that it can't run over pages."""
    others = set(getattr(config.get_text_config(), "layer_types", None) or ()) - SERVED_LAYERS
    if kind._is_stateful or others:  # noqa: SLF001 - a flag that models set, with no public reader
        layers = ", ".join(sorted(others)) or "recurrent"
        raise ModelNotUsable(
            f"The model {model!r} keeps a state that no KV cache holds ({layers} layers); {OTHER_ENGINE}."
        )
    if not kind._supports_attention_backend:  # noqa: SLF001 - as above
        raise ModelNotUsable(
            f"The model type {kind.__name__} has an attention that can't be replaced; {OTHER_ENGINE}."
        )


def skeleton_of(
    model: str, config: PreTrainedConfig, dtype: torch.dtype, kind: Any = AutoModelForCausalLM
) -> Any:
    """Return the model on the meta device, without memory for its weights. Raises ModelNotUsable.

    It is not typed, since callers read private flags of its class.
    """
    untyped: Any = kind
    try:
        with torch.device("meta"):
            return untyped.from_config(config, dtype=dtype)
    except (ValueError, TypeError, AttributeError, RuntimeError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ModelNotUsable(f"The config.json of {model!r} makes no model: {reason}.") from error


def check_room(model: str, skeleton: PreTrainedModel, device: torch.device) -> None:
    """Raise ModelNotUsable if a device has too little free memory for a model's weights."""
    needed = sum(weight.numel() * weight.element_size() for weight in skeleton.parameters())
    free = available_bytes(device)
    if free is not None and needed > free:
        raise ModelNotUsable(
            f"The model {model!r} needs {_gib(needed)} for its weights alone; {_gib(free)} are free on {device}. "
            "To spread one model over several GPUs, use --engine vllm --tensor-parallel 2."
        )


def _quantization_of(config: PreTrainedConfig) -> str | None:
    """Return the name of the method that a checkpoint was quantized with; None if it was not."""
    given = getattr(config, "quantization_config", None)
    if given is None:
        return None
    method = given.get("quant_method") if isinstance(given, dict) else given.quant_method
    return str(getattr(method, "value", method) or "in some way")


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
