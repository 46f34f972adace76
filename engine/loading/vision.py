"""Makes a model ready that takes images: its language model by itself, and its vision tower beside it.

As for other models a comparison decides (`engine.loading.probe`): the tower's states must be those of the whole module.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    Idefics3ForConditionalGeneration,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    SmolVLMForConditionalGeneration,
)

from engine.errors import ModelNotUsable
from engine.images.tiling import IMAGE
from engine.loading.architecture import check_architecture, check_room
from engine.loading.image_processor import VISION_MODEL_TYPES, ImageProcessor
from engine.loading.probe import agrees
from engine.model.loaded_model import VisionConfig
from engine.model.vision_tower import VisionTower, finished
from engine.options import ForwardOptions

KINDS: dict[str, Any] = {
    "smolvlm": SmolVLMForConditionalGeneration,
    "idefics3": Idefics3ForConditionalGeneration,
}


def takes_images(config: PreTrainedConfig) -> bool:
    """Whether a configuration belongs to a family that is served with images."""
    return config.model_type in VISION_MODEL_TYPES


def check_vision_model(
    model: str, config: PreTrainedConfig, device: torch.device, dtype: torch.dtype, forward: ForwardOptions
) -> None:
    """Refuse a model that is not served, or not with these options, before its weights are read.

    Raises ModelNotUsable.
    """
    if device.type != "cpu":
        raise ModelNotUsable(
            f"The model {model!r} takes images; such models are served on CPUs only. Use --device cpu."
        )
    if forward.quantize != "none":
        raise ModelNotUsable(f"The model {model!r} takes images: --quantize is not offered for such models.")
    check_architecture(model, config.get_text_config(), device, dtype)
    with torch.device("meta"):
        check_room(model, KINDS[config.model_type]._from_config(config), device)  # noqa: SLF001 - there is no public one


def parted(
    model: str, module: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> tuple[PreTrainedModel, VisionConfig]:
    """Return a module's language model and its vision part. Both share its weights. Raises ModelNotUsable."""
    image_processor, whole = ImageProcessor.of(model), cast("Any", module)
    token = whole.config.image_token_id
    if tokenizer.convert_tokens_to_ids(IMAGE) != token:
        raise ModelNotUsable(f"The tokenizer of {model!r} has no token {IMAGE} with the id {token}.")
    scale = torch.from_numpy(image_processor.scale()).to(module.device)
    tower = VisionTower(whole.model, scale, side=image_processor.tiling.side).eval()
    if tower.tokens != image_processor.tiling.tokens:
        raise ModelNotUsable(f"The image processor of {model!r} cuts tiles that do not fit its model.")
    _compare(whole, tower)
    return _language_model(model, whole), VisionConfig(tower, image_processor.tiling, token)


def _language_model(model: str, whole: Any) -> PreTrainedModel:
    """Return the causal model that writes the text, without the tower. Raises ModelNotUsable."""
    untyped: Any = AutoModelForCausalLM
    with torch.device("meta"):
        causal = untyped.from_config(whole.model.text_model.config)
    causal.model, causal.lm_head = whole.model.text_model, whole.lm_head
    if any(weight.is_meta for weight in causal.parameters()):
        raise ModelNotUsable(f"The language model of {model!r} has parts besides its layers and its head.")
    causal.generation_config = whole.generation_config
    return cast("PreTrainedModel", causal.eval())


@torch.inference_mode()
def _compare(whole: Any, tower: VisionTower) -> None:
    """Raise ModelNotUsable if the tower, run in pieces, gives other states than the whole module."""
    side = tower.side
    numbers = torch.arange(3 * side * side, device=whole.device).view(1, 3, side, side)
    points = (numbers * 7919 % 251).to(torch.uint8)
    values = tower.values(points[0]).view(1, 1, 3, side, side)
    expected: Tensor = whole.get_image_features(pixel_values=values).pooler_output[0]
    got = finished(tower.look(points))
    if not agrees(got.float(), expected.float(), whole.dtype):
        raise ModelNotUsable(
            f"The model type {type(whole).__name__} can't be served: its vision tower differs when run in pieces."
        )
