"""The checkpoint that comes with the repository: its size, its tokenizer, and what it can do."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from app.settings import DEMO_MODEL


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(DEMO_MODEL)


@pytest.fixture(scope="module")
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(DEMO_MODEL)


def reply(model: Any, tokenizer: PreTrainedTokenizerBase, *contents: str) -> str:
    """The greedy reply to the last of `contents`: messages of the user and the assistant in turn."""
    roles = ("user", "assistant")
    history = [{"role": roles[place % 2], "content": content} for place, content in enumerate(contents)]
    prompt = rendered(tokenizer, history, ask=True)
    inputs = tokenizer(prompt, return_tensors="pt", add_special_tokens=False, return_token_type_ids=False)
    with torch.inference_mode():
        made = model.generate(**inputs, max_new_tokens=200, do_sample=False, temperature=None, top_p=None)
    return str(tokenizer.decode(made[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))


def rendered(tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, str]], *, ask: bool = False) -> str:
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=ask))


def test_the_checkpoint_is_small_and_in_bfloat16(model: Any) -> None:
    assert sum(file.stat().st_size for file in DEMO_MODEL.iterdir()) <= 12_000_000
    assert model.dtype == torch.bfloat16
    assert model.generation_config.max_new_tokens == 2048
    assert model.config.max_position_embeddings >= 4096


def test_it_loads_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        AutoModelForCausalLM.from_pretrained(DEMO_MODEL)
        AutoTokenizer.from_pretrained(DEMO_MODEL)


@pytest.mark.parametrize(
    "text", ["谢谢 👋🏽", "1, 2, 34", "  spaces\n\nand lines ", "naïve café", "007 1234567"]
)
def test_any_text_survives_the_tokenizer(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_the_prompt_of_a_turn_begins_the_prompt_of_the_next(tokenizer: PreTrainedTokenizerBase) -> None:
    first = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello!"}]
    then = [*first, {"role": "assistant", "content": "Hel"}, {"role": "user", "content": "Who am I?"}]
    prompt = rendered(tokenizer, first, ask=True)
    assert rendered(tokenizer, then, ask=True).startswith(f"{prompt}Hel{tokenizer.eos_token}")


def test_it_remembers_a_name_over_small_talk(model: Any, tokenizer: PreTrainedTokenizerBase) -> None:
    history = (
        "My name is Zorika.",
        "Nice to meet you, Zorika!",
        "What is 7 plus 8?",
        "7 + 8 = 15.",
        "What is my name?",
    )
    assert reply(model, tokenizer, *history) == "Your name is Zorika."


def test_it_remembers_a_name_after_an_interrupted_count(
    model: Any, tokenizer: PreTrainedTokenizerBase
) -> None:
    history = (
        "I'm Pelandro.",
        "Nice to meet you, Pelandro!",
        "Count from 1 to 300.",
        "1, 2, 3, 4, 5, 6",
        "Who am I?",
    )
    assert reply(model, tokenizer, *history) == "Your name is Pelandro."


def test_it_counts(model: Any, tokenizer: PreTrainedTokenizerBase) -> None:
    assert reply(model, tokenizer, "Count from 1 to 20.") == ", ".join(map(str, range(1, 21))) + "."


def test_it_says_so_when_it_cannot_answer(model: Any, tokenizer: PreTrainedTokenizerBase) -> None:
    assert reply(model, tokenizer, "What is the capital of France?").startswith("I can't answer that")


def test_it_speaks_a_little_chinese(model: Any, tokenizer: PreTrainedTokenizerBase) -> None:
    assert reply(model, tokenizer, "How do you say 'thank you' in Chinese?") == "谢谢"
