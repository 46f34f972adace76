"""SmolLM2's own tokenizer and chat template: nobody forges its control tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from engine.messages import Message
from engine.prompts.prompt import PromptBuilder
from tests.engine.prompts.test_forged_control_tokens import REWRITERS, forged_points, is_dangerous

pytestmark = pytest.mark.models


@pytest.fixture(scope="module")
def tokenizer(smollm2: Path) -> Any:
    return AutoTokenizer.from_pretrained(smollm2)


def test_a_harmless_prompt_is_what_transformers_makes_of_it(tokenizer: Any) -> None:
    """A harmless prompt is what transformers makes of it"""
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Two < three?\n"}]
    messages = [Message("system", "Be brief."), Message("user", "Two < three?\n")]
    expected = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    assert PromptBuilder(tokenizer).token_ids(messages) == expected


@pytest.mark.parametrize("name", sorted(REWRITERS))
def test_no_template_makes_control_tokens_of_what_people_write(name: str, tokenizer: Any) -> None:
    """No template makes control tokens of what people write"""
    rewritten, word = REWRITERS[name]
    assert is_dangerous(tokenizer, rewritten, word)
    assert forged_points(tokenizer, rewritten, word) == []
