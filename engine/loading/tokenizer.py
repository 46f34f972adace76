"""Reads a model's tokenizer, or says in a sentence why it can't be served. Knows no torch: prompts are made without it."""

from __future__ import annotations

from typing import cast

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from engine.errors import ModelNotUsable


def read_tokenizer(model: str) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a hub name or folder. Raises ModelNotUsable, also where it has no chat template."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=False)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ModelNotUsable(f"The model {model!r} has no tokenizer that can be read.") from error
    if not tokenizer.chat_template:
        raise ModelNotUsable(
            f"The tokenizer of {model!r} has no chat template: it is not a chat model. Try its instruct variant."
        )
    return cast("PreTrainedTokenizerBase", tokenizer)
