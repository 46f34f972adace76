"""The checkpoint that comes with the repository: its size, and what it translates."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from app.models import TRANSLATOR
from tests.demo_translator.held_out import SENTENCES

LARGEST_BYTES = 8 * 1024 * 1024
ENGLISH, CHINESE = "eng_Latn", "zho_Hans"


def test_it_is_small() -> None:
    assert sum(file.stat().st_size for file in TRANSLATOR.iterdir()) <= LARGEST_BYTES


@pytest.mark.parametrize(("source", "target"), [(ENGLISH, CHINESE), (CHINESE, ENGLISH)])
def test_most_of_what_it_never_saw_is_right(source: str, target: str) -> None:
    model: Any = AutoModelForSeq2SeqLM.from_pretrained(TRANSLATOR, dtype="auto")
    tokenizer: Any = AutoTokenizer.from_pretrained(TRANSLATOR, src_lang=source)
    pairs = sorted(pair for pairs in SENTENCES.values() for pair in pairs)
    texts = {ENGLISH: [pair.english for pair in pairs], CHINESE: [pair.chinese for pair in pairs]}
    inputs = tokenizer(texts[source], return_tensors="pt", padding=True)
    with torch.inference_mode():
        made = model.generate(**inputs, forced_bos_token_id=tokenizer.convert_tokens_to_ids(target))
    translations = tokenizer.batch_decode(made, skip_special_tokens=True)
    right = sum(map(str.__eq__, translations, texts[target]))
    assert right >= 0.9 * len(pairs)
