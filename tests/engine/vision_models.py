"""Vision models with random weights, as folders of a megabyte like a hub's, and what transformers computes with them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from PIL import Image as Pillow
from transformers import (
    AutoTokenizer,
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    Idefics3Processor,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
)
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.smolvlm import processing_smolvlm
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

from connections.images import image_from_bytes
from engine.messages import Message
from engine.vision.image import Image, in_order
from tests.engine.conftest import small_tokenizer

SIDE, LONGEST, PATCH, FACTOR = 16, 48, 4, 2

KINDS: dict[str, tuple[Any, Any, Any]] = {
    "smolvlm": (SmolVLMConfig, SmolVLMForConditionalGeneration, SmolVLMImageProcessorPil),
    "idefics3": (Idefics3Config, Idefics3ForConditionalGeneration, Idefics3ImageProcessorPil),
}

# Like SmolVLM's own: contents are lists of parts, and a space follows the colon if text comes first.
TEMPLATE = (
    "<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}"
    "{% if message['content'][0]['type'] == 'image' %}{{ ':' }}{% else %}{{ ': ' }}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{ line['text'] }}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
MARKS = ("<|im_start|>", "<end_of_utterance>", "<fake_token_around_image>", "<image>", "<global-img>")


def environ_of(folder: Path) -> dict[str, str]:
    """Return the settings of a service of such a model, whose titles it does not write."""
    return {
        "MIDSTREAM_MODEL": str(folder),
        "MIDSTREAM_DEVICE": "cpu",
        "MIDSTREAM_DTYPE": "float32",
        "MIDSTREAM_TITLES": "words",
    }


def folder_of(kind: str, folder: Path, *, window: int = 2048, template: str = TEMPLATE) -> Path:
    """Save a model of a kind. It never ends a reply by itself."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(7)
    config_type, module_type, processor_type = KINDS[kind]
    tokenizer = small_tokenizer()
    rows = [f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)]
    tokenizer.add_special_tokens({"additional_special_tokens": [*MARKS, *rows]})
    tokenizer.chat_template = template
    config = config_type(
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        scale_factor=FACTOR,
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "image_size": SIDE,
            "patch_size": PATCH,
            "initializer_range": 0.3,
        },
        text_config={
            "model_type": "llama",
            "vocab_size": len(tokenizer),
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": window,
            "initializer_range": 0.3,
            "bos_token_id": None,
            "eos_token_id": None,
            "pad_token_id": 0,
        },
    )
    module = module_type(config)
    module.generation_config.eos_token_id = None
    module.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    side = config.vision_config.image_size
    processor_type(size={"longest_edge": LONGEST}, max_image_size={"longest_edge": side}).save_pretrained(
        folder
    )
    return folder


def picture(number: int = 0, width: int = 30, height: int = 20, kind: str = "PNG") -> bytes:
    """Return an image with a pattern, a different one for each number."""
    drawn = Pillow.new("RGB", (width, height))
    drawn.putdata(
        [
            ((x * 7 + 91 * number) % 256, (y * 11 + 53 * number) % 256, (x * y + 17 * number) % 256)
            for y in range(height)
            for x in range(width)
        ]
    )
    out = io.BytesIO()
    drawn.save(out, kind)
    return out.getvalue()


def image(number: int = 0, width: int = 30, height: int = 20, kind: str = "PNG") -> Image:
    return image_from_bytes(picture(number, width, height, kind))


@cache
def _alone(folder: Path) -> tuple[Any, Any, Any]:
    """Return the module, its tokenizer and its image processor."""
    kind = next(kind for kind in KINDS if kind in (folder / "config.json").read_text())
    _, module_type, processor_type = KINDS[kind]
    module = module_type.from_pretrained(folder, attn_implementation="eager").eval()
    return module, AutoTokenizer.from_pretrained(folder), processor_type.from_pretrained(folder)


def inputs_of(folder: Path, messages: Sequence[Message]) -> dict[str, torch.Tensor]:
    """Return transformers' inputs for messages, by Idefics3's processor, or like SmolVLM's, which would need num2words."""
    module, tokenizer, processor = _alone(folder)
    tiles = processor.max_image_size["longest_edge"] // module.config.vision_config.patch_size
    tokens = tiles**2 // module.config.scale_factor**2
    talk = [
        {"role": one.role, "content": [_part(part) for part in in_order(one.content, one.images)]}
        for one in messages
    ]
    text = tokenizer.apply_chat_template(talk, tokenize=False, add_generation_prompt=True)
    shown = [Pillow.open(io.BytesIO(one.data)) for message in messages for one in message.images]
    if not shown:
        return dict(tokenizer(text, return_tensors="pt"))
    if isinstance(module, Idefics3ForConditionalGeneration):
        whole = Idefics3Processor(processor, tokenizer, image_seq_len=tokens)
        return dict(whole(text=text, images=[shown], return_tensors="pt"))
    seen = processor([shown], return_row_col_info=True, return_tensors="pt")
    for rows, columns in zip(seen.pop("rows")[0], seen.pop("cols")[0], strict=True):
        untyped: Any = processing_smolvlm
        words = untyped.get_image_prompt_string(rows, columns, tokens, MARKS[2], "<image>", MARKS[4])
        text = text.replace("<image>", words.replace("<image>", "\0"), 1)
    return dict(tokenizer(text.replace("\0", "<image>"), return_tensors="pt"), **seen)


def _part(part: str | Image) -> dict[str, str]:
    return {"type": "text", "text": part} if isinstance(part, str) else {"type": "image"}


def generated(folder: Path, messages: Sequence[Message], count: int) -> list[int]:
    """Return the greedy reply of `generate`."""
    module = _alone(folder)[0]
    inputs = inputs_of(folder, messages)
    made = module.generate(**inputs, max_new_tokens=count, do_sample=False)
    tokens: list[int] = made[0, inputs["input_ids"].shape[1] :].tolist()
    return tokens
