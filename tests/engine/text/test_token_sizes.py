"""What no tokenizer can beat: a text has at least its bytes, divided by those of the longest token, in tokens."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from app.settings import DEMO_MODEL
from engine.text.detokenizer import longest_token_bytes

DEMO = AutoTokenizer.from_pretrained(DEMO_MODEL)
PARTS = json.loads(DEMO.backend_tokenizer.to_str())


def changed(**parts: Any) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(PARTS | parts)))


NORMALIZED = changed(normalizer={"type": "NFC"})


@given(st.text(max_size=400))
def test_no_text_has_fewer_tokens(text: str) -> None:
    for tokenizer in (DEMO, NORMALIZED):
        longest = longest_token_bytes(tokenizer)
        assert longest is not None
        assert len(tokenizer.encode(text, add_special_tokens=False)) * longest >= len(text.encode())


@pytest.mark.parametrize("text", [" " * 5000, "a" * 5000, "각" * 900, "e\u0301" * 900])
def test_not_even_one_that_tokenizers_love(text: str) -> None:
    for tokenizer in (DEMO, NORMALIZED):
        tokens = len(tokenizer.encode(text, add_special_tokens=False))
        assert tokens * (longest_token_bytes(tokenizer) or 0) >= len(text.encode())


SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}


@pytest.mark.parametrize(
    ("parts", "is_known"),
    [
        (
            {
                "normalizer": {
                    "type": "Sequence",
                    "normalizers": [{"type": "Prepend", "prepend": "▁"}, SPACES],
                }
            },
            True,
        ),
        ({"normalizer": {"type": "Replace", "pattern": {"Regex": " +"}, "content": " "}}, False),
        ({"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}}, False),
        ({"normalizer": {"type": "NFKC"}}, False),
        ({"pre_tokenizer": {"type": "Whitespace"}}, False),
    ],
)
def test_what_makes_texts_shorter_has_no_bound_that_is_known(
    parts: dict[str, Any], *, is_known: bool
) -> None:
    assert (longest_token_bytes(changed(**parts)) is not None) == is_known


def test_a_token_that_takes_white_space_along_has_none() -> None:
    greedy = [{**token, "rstrip": True} for token in PARTS["added_tokens"]]
    assert longest_token_bytes(changed(added_tokens=greedy)) is None


def test_a_tokenizer_without_a_fast_backend_has_none() -> None:
    assert longest_token_bytes(object()) is None
