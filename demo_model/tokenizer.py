"""The tokenizer: byte-level BPE in which every number below 1000 is one token, and so is much of what JSON is made of.

Knows the roles; knows nothing of skills.
"""

import json
import re
from collections.abc import Iterable
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from demo_model.chat_template import CHAT_TEMPLATE, RESPONSE_TEMPLATE

BEGIN, END, PAD = "<|begin|>", "<|end|>", "<|pad|>"
ROLES = {"system": "<|system|>", "user": "<|user|>", "assistant": "<|assistant|>"}
LARGEST_NUMBER = 999
# Tokens of their own, though text: a model of calls and thoughts has them as Qwen does.
MARKS = ("<tools>", "</tools>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")  # fmt: skip
# What JSON and calls are full of is one token each: the longer before the shorter that it begins with.
JSON_PIECES = (
    '{"name": "', '", "arguments": {"', '", "arguments": {}}', '", "parameters": {"', '", "parameters": {}}', '": "', '": ', '", "', ', "', '{"', '"}}', '"}', "}}",
)  # fmt: skip
_PIECES = (
    "|".join(map(re.escape, JSON_PIECES)) + r"|\d{1,3}| ?\p{L}+(?:['\x{2019}]\p{L}+)?| ?[^\s\p{L}\d]+|\s+"
)


def train_tokenizer(texts: Iterable[str], *, words: int) -> PreTrainedTokenizerFast:
    """A tokenizer of 256 bytes, the numbers, the pieces of JSON, `words` merges learned from `texts`, marks and special tokens."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=256 + words, initial_alphabet=alphabet, show_progress=False)
    bpe.train_from_iterator(map(_words_of, texts), trainer)
    learned = json.loads(bpe.to_str())["model"]
    vocabulary, merges = learned["vocab"], [tuple(pair) for pair in learned["merges"]]
    _add_numbers(vocabulary, merges)
    for piece in JSON_PIECES:
        vocabulary[piece.replace(" ", "Ġ")] = len(vocabulary)
    # A piece of JSON is no result of merges: it is taken whole.
    bpe.model = models.BPE(vocab=vocabulary, merges=merges, ignore_merges=True)
    bpe.decoder = decoders.ByteLevel()
    bpe.add_tokens([AddedToken(mark, normalized=False) for mark in MARKS])
    bpe.add_special_tokens([BEGIN, END, PAD, *ROLES.values()])
    make: Any = PreTrainedTokenizerFast
    tokenizer: PreTrainedTokenizerFast = make(
        tokenizer_object=bpe,
        bos_token=BEGIN,
        eos_token=END,
        pad_token=PAD,
        padding_side="left",
        model_max_length=4096,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
        response_template=RESPONSE_TEMPLATE,
        extra_special_tokens=list(ROLES.values()),
    )
    return tokenizer


def _words_of(text: str) -> str:
    """A text without what has tokens of its own: those are no reason to merge."""
    for whole in (*MARKS, *JSON_PIECES):
        text = text.replace(whole, " ")
    return "".join(" " if letter.isdigit() else letter for letter in text)


def _add_numbers(vocabulary: dict[str, int], merges: list[tuple[str, str]]) -> None:
    """Make 10 to 999 tokens, whichever pair of digits happens to merge first."""
    for number in range(10, LARGEST_NUMBER + 1):
        digits = str(number)
        vocabulary[digits] = len(vocabulary)
    for number in range(10, LARGEST_NUMBER + 1):
        digits = str(number)
        merges.append((digits[:-1], digits[-1]))
        if number >= 100 and digits[1] != "0":  # noqa: PLR2004
            merges.append((digits[0], digits[1:]))
