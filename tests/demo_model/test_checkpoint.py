import json
import math
import random
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from demo_model import dialogues, evaluate, forward
from demo_model.batches import tokenise
from demo_model.evaluate import answers
from demo_model.turns import Message, Probe, Role, Skill

CHECKPOINT = Path(__file__).parents[2] / "demo_model" / "checkpoint"


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(CHECKPOINT)


@pytest.fixture(scope="module")
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(CHECKPOINT)


def reply(model: Any, tokenizer: PreTrainedTokenizerBase, *contents: str) -> str:
    roles: tuple[Role, Role] = ("user", "assistant")
    history = [Message(roles[place % 2], content) for place, content in enumerate(contents)]
    requested = Probe(Skill.REFUSAL, tuple(history), ())
    return answers(model, tokenizer, [requested], most_tokens=200)[0]


def rendered(tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, str]], *, ask: bool = False) -> str:
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=ask))


def test_the_checkpoint_is_small_and_in_bfloat16(model: Any) -> None:
    assert sum(file.stat().st_size for file in CHECKPOINT.iterdir()) <= 12_000_000
    assert model.dtype == torch.bfloat16
    assert model.generation_config.max_new_tokens == 2048
    assert model.config.max_position_embeddings >= 4096


def test_it_loads_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        AutoModelForCausalLM.from_pretrained(CHECKPOINT)
        AutoTokenizer.from_pretrained(CHECKPOINT)


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


def test_training_sees_what_the_template_renders(tokenizer: PreTrainedTokenizerBase) -> None:
    dialogue = dialogues.write(random.Random(7), most_characters=900, longest_count=20)
    messages = [{"role": message.role, "content": message.content} for message in dialogue.messages]
    ids, _ = tokenise(tokenizer, dialogue)
    assert tokenizer.encode(rendered(tokenizer, messages), add_special_tokens=False) == ids


def test_training_computes_what_transformers_computes(model: Any) -> None:
    ids = torch.randint(0, 2000, (2, 60), generator=torch.Generator().manual_seed(1))
    exact = model.float()
    with torch.inference_mode():
        ours = forward.logits(exact, forward.last_states(exact, ids))
        theirs = exact(input_ids=ids).logits
    model.bfloat16()
    assert math.isclose(float((ours - theirs).abs().mean()), 0.0, abs_tol=0.1)


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


def test_the_evaluation_counts_what_is_right(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "sys.argv", ["evaluate", "--each", "2", "--json", "--skill", "says so", "--skill", "small talk"]
    )
    assert evaluate.main() in {0, 1}
    scores = json.loads(capsys.readouterr().out)
    assert scores.keys() == {"says so", "small talk"}
    assert all(score["asked"] == 2 for score in scores.values())
