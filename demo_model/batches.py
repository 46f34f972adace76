"""Turns dialogues into padded batches of token ids and loss weights, on a thread of its own.

A row is one dialogue from its beginning, as the model will see it when it serves; rows of like length share a batch.
"""

import math
import queue
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerBase

from demo_model import dialogues
from demo_model.tokenizer import ROLES
from demo_model.turns import Dialogue

_POOL = 400
_UNSURE_TOKENS = 3
_ROUND = 16
# Characters of a dialogue and numbers of a count. Copying is learned soonest where there is little to choose from, so the
# shortest come first, until the share of the training that is named; the shares of the lengths follow.
_LENGTHS = ((130, 8), (450, 30), (1400, 100), (5000, 500))
_STAGES = ((0.2, (75, 25, 0, 0)), (0.5, (20, 75, 5, 0)), (1.0, (15, 62, 20, 3)))


@dataclass(frozen=True, slots=True)
class Batch:
    """Token ids (rows, length) and, per token, the weight of the loss of predicting it (rows, length)."""

    ids: torch.Tensor
    weights: torch.Tensor


def batches(
    tokenizer: PreTrainedTokenizerBase, rng: random.Random, *, tokens: int, done: Callable[[], float]
) -> Iterator[Batch]:
    """Batches of at most about `tokens` tokens without end; `done` tells how much of the training is over."""
    ready: queue.Queue[Batch] = queue.Queue(maxsize=24)

    def fill() -> None:
        while True:
            pool = [tokenise(tokenizer, _write(rng, done())) for _ in range(_POOL)]
            grouped = list(_group(sorted(pool, key=lambda row: len(row[0])), tokens))
            rng.shuffle(grouped)
            for rows in grouped:
                ready.put(_pad(rows))

    threading.Thread(target=fill, daemon=True).start()
    while True:
        yield ready.get()


def tokenise(tokenizer: PreTrainedTokenizerBase, dialogue: Dialogue) -> tuple[list[int], list[float]]:
    """The ids of the rendered dialogue and the weight of each: replies and their end count, all else weighs nothing.

    Of an interrupted reply, the cut and the last tokens before it are not learned; nor is what the prompt gave of one.
    Long replies weigh less per token.
    """
    ids, weights = [tokenizer.bos_token_id], [0.0]
    for message in dialogue.messages:
        given = tokenizer.encode(message.given, add_special_tokens=False)
        content = tokenizer.encode(message.content.removeprefix(message.given), add_special_tokens=False)
        ids += [
            tokenizer.convert_tokens_to_ids(ROLES[message.role]),
            *given,
            *content,
            tokenizer.eos_token_id,
        ]
        learned = 0 if message.role != "assistant" else len(content) + 1
        if message.interrupted:
            learned = max(0, len(content) - _UNSURE_TOKENS)
        weight = min(1.0, math.sqrt(24 / (learned + 1)))
        weights += [0.0] * (1 + len(given)) + [weight] * learned + [0.0] * (len(content) + 1 - learned)
    return ids, weights


def _write(rng: random.Random, done: float) -> Dialogue:
    """A dialogue of a length that suits the stage of the training."""
    shares = next(shares for until, shares in _STAGES if done <= until)
    most, longest = rng.choices(_LENGTHS, shares)[0]
    return dialogues.write(rng, most_characters=most, longest_count=longest)


def _group(
    rows: list[tuple[list[int], list[float]]], tokens: int
) -> Iterator[list[tuple[list[int], list[float]]]]:
    group: list[tuple[list[int], list[float]]] = []
    for row in rows:
        if group and (len(group) + 1) * _rounded(len(row[0])) > tokens:
            yield group
            group = []
        group.append(row)
    yield group


def _pad(rows: list[tuple[list[int], list[float]]]) -> Batch:
    longest = _rounded(max(len(ids) for ids, _ in rows))
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    weights = torch.zeros(len(rows), longest)
    for row, (row_ids, row_weights) in enumerate(rows):
        ids[row, : len(row_ids)] = torch.tensor(row_ids)
        weights[row, : len(row_weights)] = torch.tensor(row_weights)
    return Batch(ids, weights)


def _rounded(length: int) -> int:
    """`length` rounded up: few shapes keep the kernels' caches small."""
    return -(-length // _ROUND) * _ROUND + 1
