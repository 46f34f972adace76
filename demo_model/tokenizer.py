"""The tokenizer: byte-level BPE in which every number below 1000 is one token, and the chat template.

Knows the roles; knows nothing of skills.
"""

import json
from collections.abc import Iterable
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

BEGIN, END, PAD = "<|begin|>", "<|end|>", "<|pad|>"
ROLES = {"system": "<|system|>", "user": "<|user|>", "assistant": "<|assistant|>"}
LARGEST_NUMBER = 999
CHAT_TEMPLATE = (
    "{{- bos_token }}"
    "{%- for message in messages %}"
    "{%- if message.role not in ['system', 'user', 'assistant'] %}"
    "{{- raise_exception('the roles are system, user and assistant') }}"
    "{%- endif %}"
    "{{- '<|' + message.role + '|>' + message.content + eos_token }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"
)
_PIECES = r"\d{1,3}| ?\p{L}+(?:['\x{2019}]\p{L}+)?| ?[^\s\p{L}\d]+|\s+"


def train_tokenizer(texts: Iterable[str], *, words: int) -> PreTrainedTokenizerFast:
    """A tokenizer of 256 bytes, the numbers, `words` merges learned from `texts`, and the special tokens."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=256 + words, initial_alphabet=alphabet, show_progress=False)
    bpe.train_from_iterator(
        ("".join(" " if letter.isdigit() else letter for letter in text) for text in texts), trainer
    )
    learned = json.loads(bpe.to_str())["model"]
    vocabulary, merges = learned["vocab"], [tuple(pair) for pair in learned["merges"]]
    _add_numbers(vocabulary, merges)
    bpe.model = models.BPE(vocab=vocabulary, merges=merges)
    bpe.decoder = decoders.ByteLevel()
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
        extra_special_tokens=list(ROLES.values()),
    )
    return tokenizer


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
