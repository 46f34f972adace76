"""A tokenizer whose tokens stand for bytes can hold replies to grammars; another says why it can't."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from engine.grammar import NoGrammars, vocabulary_of
from tests.engine.conftest import small_tokenizer
from tests.engine.constrained import BEYOND, tokenizer, vocabulary


def test_control_tokens_are_known_by_their_names() -> None:
    made, ids = vocabulary(), tokenizer().convert_tokens_to_ids
    assert made.size == len(tokenizer()) + BEYOND
    assert made.ends == (ids("</s>"),)
    assert made.specials["<|call|>"] == ids("<|call|>")
    assert made.loose == {ids(name) for name in ("<tool_call>", "</tool_call>", "<think>", "</think>")}
    assert {ids("<s>"), ids("<|call|>"), made.size - 1} <= made.controls
    assert ids("a") not in made.controls


def test_the_models_own_end_tokens_come_first() -> None:
    assert vocabulary_of(tokenizer(), ends={5, 3}).ends == (3, 5)


def fast(model: Any, decoder: Any, **names: str) -> PreTrainedTokenizerFast:
    backend = Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoder
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)


WORDS = {"[UNK]": 0, "a": 1, "</s>": 2}


class Slow:
    """A tokenizer in Python."""

    eos_token_id = 1


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (Slow(), "Only fast tokenizers"),
        (fast(models.WordLevel(WORDS, unk_token="[UNK]"), decoders.WordPiece(), eos_token="</s>"), "decoder"),
        (
            fast(models.BPE({"a": 0, "</s>": 1}, []), decoders.ByteLevel(), eos_token="</s>"),
            "bytes of their text",
        ),
        (fast(models.BPE({"a": 0}, []), decoders.ByteLevel()), "no token that ends"),
    ],
)
def test_a_tokenizer_that_cannot_says_why(made: Any, why: str) -> None:
    with pytest.raises(NoGrammars, match=why):
        vocabulary_of(made)


def test_a_model_with_fewer_ids_than_its_tokenizer_cannot() -> None:
    with pytest.raises(NoGrammars, match="vocab size too small"):
        vocabulary_of(small_tokenizer(), size=100)


def test_what_a_library_in_rust_gives_up_on_is_no_end_of_the_process() -> None:
    """A vocabulary of single bytes with a name that looks like one and is none."""
    odd = fast(models.BPE({"a": 0, "</s>": 1, "<0x": 2}, []), decoders.ByteFallback(), eos_token="</s>")
    with pytest.raises(NoGrammars):
        vocabulary_of(odd)
