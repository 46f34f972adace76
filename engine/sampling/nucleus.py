"""Draws a token of each row from the row's nucleus: the likeliest tokens that together reach `top_p`.

Nothing is sorted. A token is drawn from the whole row, and accepted if the strictly likelier tokens have less mass than
`top_p`. If not, no token up to its probability is in the nucleus: these leave the row, and the row is drawn again. So an
accepted token has the same odds as in the nucleus alone, since every draw is from a set that contains the nucleus, with
each token by its own weight.

Tokens of equal probability at the border of the nucleus are all in it; a sort would take only some of them.
Sources: top-p is from Holtzman et al. 2020; rejecting instead of sorting is known from FlashInfer's kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import torch
from torch import Tensor

from engine.sampling.device_draw import sent

BELOW_ONE = 1 - 2**-24
"""The largest float32 below 1. A level has to stay below its row's mass even when it is rounded."""


def draw(weights: Tensor, top_p: Tensor | None, randoms: Sequence[Random]) -> list[int | None]:
    """Draw a token of each row of `weights`, (rows, vocabulary) and none negative, from its nucleus.

    `top_p`, (rows, 1) and above 0, is in the unit of the weights: infinite for a row without a nucleus; None if no row
    has one. Each row takes a number from its own Random, and one more for each time that it is drawn again, whatever
    its neighbours do. A row with NaN gives None. Overwrites the weights. Waits for the device once a round; on CUDA
    `engine.sampling.device_draw` does the same without waiting.
    """
    tokens, usable = invert(weights, randoms)
    if top_p is None:
        return fetch(tokens, usable)
    own = weights.gather(1, tokens)
    # In units of the drawn token's weight the likelier ones are above 1. A mask of the row's size would cost more.
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
    """Return rows of descending weights, (rows, tokens), with 0 outside of each row's nucleus."""
    return weights.masked_fill(weights.cumsum(dim=-1) - weights >= top_p, 0.0)


def invert(weights: Tensor, randoms: Sequence[Random]) -> tuple[Tensor, Tensor]:
    """Take a random number for each row, and find the place where the row's cumulated weights pass it.

    Returns the places, and whether they are usable, which they aren't in a row with NaN; both (rows, 1).
    """
    cumulated = weights.cumsum(dim=-1)
    total = cumulated[:, -1:]
    numbers = [[min(random.random(), BELOW_ONE)] for random in randoms]
    levels = sent(torch.tensor(numbers, dtype=total.dtype), total.device)
    places = torch.searchsorted(cumulated, levels * total, right=True)
    return places.clamp_(max=weights.shape[1] - 1), total > 0


def fetch(tokens: Tensor, usable: Tensor) -> list[int | None]:
    """Fetch tokens, (rows, 1), from the device, with None for those that are not usable."""
    return [token if ok else None for token, ok in torch.cat((tokens, usable), dim=1).tolist()]
