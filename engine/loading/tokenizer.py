"""Reads a model's tokenizer, or says in a sentence why it can't be used. Knows no torch: prompts are made without it."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import cast

from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils.hub import cached_file

from engine.errors import ModelNotUsable
from engine.loading.languages import is_translator
from engine.vision.processor import is_vision_model


def read_tokenizer(model: str) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a hub name or folder.

    Raises ModelNotUsable if it can't be read, or lacks the chat template that its model needs.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=False)
    except ImportError as error:
        if find_spec("sentencepiece") is None:
            raise ModelNotUsable(
                f"The tokenizer of {model!r} needs sentencepiece: pip install 'midstream-server[translation]'."
            ) from error
        raise ModelNotUsable(f"The model {model!r} has no tokenizer that can be read.") from error
    except (OSError, ValueError, KeyError) as error:
        raise ModelNotUsable(f"The model {model!r} has no tokenizer that can be read.") from error
    if not tokenizer.chat_template and is_vision_model(model):
        tokenizer.chat_template = _of_processor(model)
    if not tokenizer.chat_template and not is_translator(model):
        raise ModelNotUsable(
            f"The tokenizer of {model!r} has no chat template: it is not a chat model. Try its instruct variant."
        )
    return cast("PreTrainedTokenizerBase", tokenizer)


def _of_processor(model: str) -> str | None:
    """Return the chat template of a model's processor, where older checkpoints keep it; None if there is none."""
    try:
        found = cached_file(model, "chat_template.json", _raise_exceptions_for_missing_entries=False)
        if found is None:
            return None
        template: str = json.loads(Path(found).read_bytes())["chat_template"]
    except (OSError, ValueError, KeyError):
        return None
    return template
