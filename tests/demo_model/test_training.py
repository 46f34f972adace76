import random
from itertools import islice
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from demo_model import dialogues
from demo_model.batches import batches, tokenise
from demo_model.model import carried_over, new_model, save
from demo_model.tokenizer import train_tokenizer
from demo_model.trainer import Progress, Trainer
from demo_model.turns import Dialogue, Message


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    rng = random.Random(1)
    written = [dialogues.write(rng, most_characters=400, longest_count=10) for _ in range(200)]
    return train_tokenizer((message.content for each in written for message in each.messages), words=200)


def test_every_number_below_a_thousand_is_one_token(tokenizer: PreTrainedTokenizerBase) -> None:
    assert all(len(tokenizer.encode(str(number), add_special_tokens=False)) == 1 for number in range(1000))


def test_a_count_costs_three_tokens_a_number(tokenizer: PreTrainedTokenizerBase) -> None:
    assert len(tokenizer.encode("1, 22, 333", add_special_tokens=False)) == 7


def test_only_replies_are_learned_and_no_cut(tokenizer: PreTrainedTokenizerBase) -> None:
    reported = Message("user", "Count to 9.")
    whole = Dialogue((reported, Message("assistant", "1, 2, 3, 4, 5.")))
    cut = Dialogue((reported, Message("assistant", "1, 2, 3, 4, 5.", interrupted=True)))
    ids, weights = tokenise(tokenizer, whole)
    assert weights[-1] > 0
    assert sum(weight > 0 for weight in weights) == 15
    cut_ids, cut_weights = tokenise(tokenizer, cut)
    assert cut_ids == ids
    assert sum(weight > 0 for weight in cut_weights) == 11
    assert cut_weights[-4:] == [0.0] * 4


def test_batches_keep_to_their_size(tokenizer: PreTrainedTokenizerBase) -> None:
    for batch in islice(batches(tokenizer, random.Random(2), tokens=1024, done=lambda: 0.0), 5):
        assert batch.ids.shape == batch.weights.shape
        assert batch.ids.numel() <= 1024 + len(batch.ids)


def test_a_training_can_be_taken_up_again(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    ready = batches(tokenizer, random.Random(3), tokens=256, done=lambda: 0.0)
    trainer = Trainer(new_model(tokenizer), Progress(limit=1e-9))
    list(trainer.train(ready))
    trainer.keep(tmp_path / "state")
    other = Trainer(new_model(tokenizer), Progress(limit=1e-9))
    other.take_up(tmp_path / "state")
    assert other.progress == trainer.progress
    assert other.progress.steps == 4
    for mine, its in zip(trainer.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(mine, its)


def test_a_saved_tokenizer_is_the_same(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    save(new_model(tokenizer), tokenizer, tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again.encode("Hi 12, 谢谢 👋") == tokenizer.encode("Hi 12, 谢谢 👋")
    assert again.chat_template == tokenizer.chat_template


def test_what_a_prompt_gives_of_a_reply_is_not_learned(tokenizer: PreTrainedTokenizerBase) -> None:
    requested = Message("user", "Hello!")
    given = Dialogue(
        (requested, Message("assistant", "<think>\n\n</think>\n\nHi", given="<think>\n\n</think>\n\n"))
    )
    _, plain = tokenise(tokenizer, Dialogue((requested, Message("assistant", "Hi"))))
    _, weights = tokenise(tokenizer, given)
    assert [weight for weight in weights if weight] == [weight for weight in plain if weight]
    assert weights[-1] > 0


def test_calls_cost_few_tokens(tokenizer: PreTrainedTokenizerBase) -> None:
    call = '<tool_call>\n{"name": "x", "arguments": {"y": "z"}}\n</tool_call>'
    assert len(tokenizer.encode(call, add_special_tokens=False)) == 11
    assert tokenizer.decode(tokenizer.encode(call, add_special_tokens=False)) == call


def test_weights_are_carried_over_to_another_tokenizer(tokenizer: PreTrainedTokenizerBase) -> None:
    known = train_tokenizer(["some other words"] * 20, words=20)
    model = new_model(known)
    carried = carried_over(model, known, tokenizer)
    rows, old = carried.model.embed_tokens.weight, model.model.embed_tokens.weight
    number, piece = (
        (each.convert_tokens_to_ids("417"), each.convert_tokens_to_ids("e")) for each in (tokenizer, known)
    )
    assert torch.equal(rows[list(number)], old[list(piece)])
    assert carried.lm_head.weight is carried.model.embed_tokens.weight
    assert torch.equal(carried.model.layers[0].mlp.up_proj.weight, model.model.layers[0].mlp.up_proj.weight)


def test_a_pause_of_the_computer_is_no_training(
    tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = batches(tokenizer, random.Random(3), tokens=256, done=lambda: 0.0)
    clock = iter(range(0, 10**9, 10**6))
    monkeypatch.setattr("demo_model.trainer.time.monotonic", lambda: next(clock))
    trainer = Trainer(new_model(tokenizer), Progress(limit=110.0))
    list(trainer.train(ready))
    assert trainer.progress.seconds == 120.0


def test_numbers_that_were_hardly_met_are_told_apart_when_weights_are_carried_over(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    model = new_model(tokenizer)
    rows = model.model.embed_tokens.weight.data
    places = [tokenizer.convert_tokens_to_ids(str(number)) for number in range(501, 1000)]
    rows[places] = rows[places].mean(0)
    carried = carried_over(model, tokenizer, tokenizer).model.embed_tokens.weight.data[places]
    alike = torch.nn.functional.cosine_similarity(carried[1:], carried[:-1])
    assert float(alike.max()) < 0.9


def test_a_training_that_keeps_embeddings_moves_the_matrices_alone(
    tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = batches(tokenizer, random.Random(4), tokens=256, done=lambda: 0.0)
    clock = iter(range(0, 10**9, 10**6))
    monkeypatch.setattr("demo_model.trainer.time.monotonic", lambda: next(clock))
    model = new_model(tokenizer)
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    list(Trainer(model, Progress(limit=110.0), keep_embeddings=True).train(ready))
    moved = {name for name, weight in model.named_parameters() if not torch.equal(weight, before[name])}
    assert moved == {name for name in before if "_proj" in name}
