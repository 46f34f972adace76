"""Writes the list of families in docs/models.md: `python -m tests.engine.families_table`, some minutes.

Each causal class of the installed transformers is tried with its own default configuration, as a small model with random
weights, in the way that `midstream doctor` tries a model.
"""

from __future__ import annotations

import sys
import textwrap
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from engine.errors import ModelNotUsable
from engine.loading.probe import NotTestable, check_kind, try_small_model

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
START, END = "<!-- families: python -m tests.engine.families_table -->", "<!-- end of families -->"
COLUMNS = 100
ANSWERS = {
    "": "Served",
    "keeps a state": "Refused: layers without a KV cache",
    "can't be replaced": "Refused: custom attention",
    "attention sinks": "Refused: attention sinks",
    "rules of its own": "Refused: custom masks",
    "of other layers": "Refused: shared keys and values",
    "can't be served": "Refused: unusual use of the cache",
    "untried": "Decided only after the weights are loaded",
}
"""The beginning of each item, by what a refusal says."""


TYPICAL: dict[str, dict[str, Any]] = {
    "lfm2": {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]}
}
"""Configurations whose defaults are not those of published models."""


def answer(config_class: Any) -> str | None:
    """Return which of `ANSWERS` a model type gets; None if it is an encoder-decoder."""
    kinds = AutoModelForCausalLM._model_mapping[config_class]
    kind = kinds[0] if isinstance(kinds, tuple) else kinds
    try:
        config = config_class(**TYPICAL.get(config_class.model_type, {})).get_text_config()
    except Exception:  # noqa: BLE001 - some classes have no default configuration
        return "untried"
    if config.is_encoder_decoder:
        return None
    try:
        check_kind("", config, kind)
        try_small_model(config)
    except NotTestable:
        return "untried"
    except ModelNotUsable as error:
        return next(words for words in ANSWERS if words and words in str(error))
    return ""


def listed() -> str:
    """Return an item for each answer, with its model types."""
    found: dict[str, set[str]] = {words: set() for words in ANSWERS}
    for config_class in AutoModelForCausalLM._model_mapping:
        words = answer(config_class)
        if words is not None:
            found[words].add(config_class.model_type)
    head = f"Results with transformers {transformers.__version__}, listed by the `model_type` in `config.json`:\n"
    return "\n".join([head, *(_item(words, types) for words, types in found.items() if types)])


def _item(words: str, types: set[str]) -> str:
    text = f"- **{ANSWERS[words]}** ({len(types)}): {', '.join(sorted(types))}"
    return textwrap.fill(
        text, COLUMNS, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def page() -> str:
    """Return docs/models.md with the list of today."""
    warnings.simplefilter("ignore")
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    text = PAGE.read_text()
    before, _, rest = text.partition(START)
    return f"{before}{START}\n{listed()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page())
    sys.stdout.write(f"{PAGE} is written.\n")
