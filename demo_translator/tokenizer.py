"""The tokenizer: BPE over letters, digits and Chinese characters; a capitalized word has the same tokens in both languages.

It is of NLLB's kind: a source begins with its language's token, a translation with that of the other.
"""

import json
import random
from collections.abc import Iterable
from typing import Any

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers
from transformers import NllbTokenizer, PreTrainedTokenizerBase

from demo_model.holdout import Split
from demo_translator.pairs import Pair, text
from demo_translator.sentences import SKILLS, WORDS

ENGLISH, CHINESE = "eng_Latn", "zho_Hans"
_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
_BLANK = "▁"
# Digits, marks and Chinese characters are tokens of their own. So is the blank before a capital: names are copied whole.
_PIECES = rf"{_BLANK}?[a-z']+|[A-Z][a-z']*|."
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789'-.,!?:;()\"%+=。，！？：；（）°"
_TEXTS = 12_000
_VOCABULARY = 1_400


def new_tokenizer(seed: int) -> PreTrainedTokenizerBase:
    """Return a tokenizer learned from texts of a seed."""
    rng = random.Random(f"translator's tokenizer {seed}")
    return _learned(side for _ in range(_TEXTS) for side in text(rng, Split.TRAIN))


def _learned(texts: Iterable[str]) -> PreTrainedTokenizerBase:
    bpe = Tokenizer(models.BPE())
    blanks = pre_tokenizers.Metaspace(replacement=_BLANK, prepend_scheme="always", split=True)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([blanks, pre_tokenizers.Split(Regex(_PIECES), "isolated")])
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        special_tokens=list(_SPECIAL),
        initial_alphabet=sorted({*_LETTERS, _BLANK, *_characters()}),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    learned = json.loads(bpe.to_str())["model"]
    make: Any = NllbTokenizer
    tokenizer: PreTrainedTokenizerBase = make(
        vocab=learned["vocab"],
        merges=[tuple(pair) for pair in learned["merges"]],
        extra_special_tokens=[ENGLISH, CHINESE],
        src_lang=ENGLISH,
        tgt_lang=CHINESE,
        model_max_length=256,
    )
    return tokenizer


def _characters() -> set[str]:
    """Return every character of every sentence and word, however seldom it is said."""
    pairs = [Pair(*pair) for sentences in SKILLS.values() for pair in sentences]
    words = [word for known in WORDS.values() for pair in known.items() for word in pair]
    return set(
        "".join([*(side for pair in pairs for side in pair), *words, "零一二三四五六七八九十百两"])
    ) - set("{} ")
