"""How sources are spelled and translations begin, for each kind of translator, as their tokenizers have it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from engine.errors import PromptRejected
from engine.loading.tokenizer import TranslationTokenizer, generation_of, read_config
from tests.engine import translator_folders as folders

TEXT = "My name is Anna."


def language_codes(folder: Path) -> TranslationTokenizer:
    config = read_config(str(folder))
    return TranslationTokenizer(
        AutoTokenizer.from_pretrained(folder), config, generation_of(str(folder), config)
    )


def test_a_model_of_one_pair_needs_no_languages(tmp_path: Path) -> None:
    known = language_codes(folders.marian(tmp_path / "marian"))
    assert (known.sources, known.targets) == (("en",), ("zh",))
    assert known.source(TEXT, "", "") == known.source(TEXT, "en", "zh")
    pad = known.beginning("", "")[0]
    started, prefix = known.beginning("zh", "我叫 ")
    assert (started[:1], prefix) == (pad, len(started) - 1)
    with pytest.raises(PromptRejected, match=r"The model has no target language 'fr'; it has zh\."):
        known.beginning("fr", "")


def test_a_model_of_several_targets_is_told_by_a_word_in_front(tmp_path: Path) -> None:
    folder = folders.marian(tmp_path / "several", targets=("deu", "fra"))
    known, tokenizer = language_codes(folder), AutoTokenizer.from_pretrained(folder)
    assert known.targets == ("deu", "fra")
    assert known.source(TEXT, "", "fra") == tokenizer(f">>fra<< {TEXT}")["input_ids"]
    with pytest.raises(PromptRejected, match=r"Say the target language: deu, fra\."):
        known.source(TEXT, "", "")


@pytest.mark.parametrize(
    ("make", "source", "target"), [(folders.m2m100, "en", "zh"), (folders.nllb, "eng_Latn", "zho_Hans")]
)
def test_a_model_of_many_languages_has_a_token_for_each(
    make: Callable[[Path], Path], source: str, target: str, tmp_path: Path
) -> None:
    folder = make(tmp_path / "many")
    known = language_codes(folder)
    reference = AutoTokenizer.from_pretrained(folder, src_lang=source, tgt_lang=target)
    assert len(known.targets) > 90
    assert known.source(TEXT, source, target) == reference(TEXT)["input_ids"]
    code = reference.convert_tokens_to_ids(target if make is folders.nllb else f"__{target}__")
    assert known.beginning(target, "")[0][1:] == [code]
    assert known.source(TEXT, source, target) == reference(TEXT)["input_ids"]


def test_an_unfinished_source_has_no_end_where_the_model_learned_what_that_means(tmp_path: Path) -> None:
    folder = folders.nllb(tmp_path / "nllb")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    known = language_codes(folder)
    whole = known.source(TEXT, "eng_Latn", "zho_Hans")
    assert known.source(TEXT, "eng_Latn", "zho_Hans", unfinished=True) == whole
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"unfinished_sources": True}))
    learned = language_codes(folder)
    assert learned.source(TEXT, "eng_Latn", "zho_Hans") == whole
    assert learned.source(TEXT, "eng_Latn", "zho_Hans", unfinished=True) == whole[:-1]
    assert whole[-1] == tokenizer.eos_token_id
