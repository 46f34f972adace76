"""Draws a token of each row from the row's nucleus: the likeliest tokens that together reach `top_p`.

Nothing is sorted. A token is drawn from all of its row, and holds where the tokens that are strictly likelier have
less mass than `top_p`. Where it doesn't, no token up to its probability is in the nucleus: they leave the row, and
the row is drawn again. What holds has the odds that it has in the nucleus alone, since every draw is from a set
that contains the nucleus, each token by its own weight.

Tokens of one probability at the nucleus' border are all in it, where a sort would take some of them.
Sources: top-p is from Holtzman et al. 2020; rejecting instead of sorting is known from FlashInfer's kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import torch
from torch import Tensor

from engine.sampling.device_draw import sent

BELOW_ONE = 1 - 2**-24
"""The largest float32 below 1: a level has to stay below its row's mass when it is rounded."""


def draw(weights: Tensor, top_p: Tensor | None, randoms: Sequence[Random]) -> list[int | None]:
    """Draw a token of each row of `weights`, (rows, vocabulary) and none negative, from its nucleus.

    `top_p`, (rows, 1) and above 0, counts in the weights' unit: infinite where a row has no nucleus, None where none
    has. Each row takes a number of its own Random, and one more whenever it is drawn again, whatever its
    neighbours do. A row with NaN gives None. Overwrites the weights. Waits for the device once a round: on CUDA
    `engine.sampling.device_draw` does the same without.
    """
    tokens, usable = invert(weights, randoms)
    if top_p is None:
        return fetch(tokens, usable)
    own = weights.gather(1, tokens)
    # In units of the drawn token's weight the likelier ones are above 1: a mask of the row's size would cost more.
    likelier, top_p = torch.threshold_(weights.div_(own), 1.0, 0.0), top_p / own
    rejected = likelier.sum(dim=-1, keepdim=True) >= top_p
    answers = torch.cat((tokens, usable, rejected), dim=1).tolist()
    drawn: list[int | None] = [token if ok else None for token, ok, _ in answers]
    if again := [row for row, (_, _, out) in enumerate(answers) if out]:
        redrawn = draw(likelier[again], top_p[again], [randoms[row] for row in again])
        for row, token in zip(again, redrawn, strict=True):
            drawn[row] = token
    return drawn


def cut_ranked(weights: Tensor, top_p: Tensor) -> Tensor:
    """Return rows of falling weights, (rows, tokens), with 0 for what is outside of each row's nucleus."""
    return weights.masked_fill(weights.cumsum(dim=-1) - weights >= top_p, 0.0)


def invert(weights: Tensor, randoms: Sequence[Random]) -> tuple[Tensor, Tensor]:
    """Take a random number for each row, and find the place where the row's cumulated weights pass it.

    Returns the places and whether they mean anything, which they don't in a row with NaN; both (rows, 1).
    """
    cumulated = weights.cumsum(dim=-1)
    total = cumulated[:, -1:]
    numbers = [[min(random.random(), BELOW_ONE)] for random in randoms]
    levels = sent(torch.tensor(numbers, dtype=total.dtype), total.device)
    places = torch.searchsorted(cumulated, levels * total, right=True)
    return places.clamp_(max=weights.shape[1] - 1), total > 0


def fetch(tokens: Tensor, usable: Tensor) -> list[int | None]:
    """Bring tokens, (rows, 1), from the device: None for those that are not usable."""
    return [token if ok else None for token, ok in torch.cat((tokens, usable), dim=1).tolist()]
