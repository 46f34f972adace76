"""Draws tokens from rows of scores: the likeliest, or one of the nucleus, in plain torch or by a C kernel on CPUs."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import torch
from torch import Tensor

from engine.execution.guide import BITS
from engine.model.cpu import kernels as cpu_kernels
from engine.model.devices import sent

BELOW_ONE = 1 - 2**-24
"""The largest float32 below 1. A level has to stay below its row's mass even when it is rounded."""

REJECTED = -2
"""In place of a token: it is not in the nucleus, so the row is drawn again. -1: the row is unusable."""


def likeliest(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return what `scores.max(dim=-1, keepdim=True)` does, (rows, 1) each: the first of equal ones, NaN of a row that has one.

    On a CPU numpy looks for it, for 32 rows of 32,000 in a seventh of torch's time.
    """
    if scores.device.type != "cpu" or scores.dtype is not torch.float32:
        return scores.max(dim=-1, keepdim=True)
    places = torch.from_numpy(scores.numpy().argmax(axis=-1)).unsqueeze(1)
    return scores.gather(1, places), places


def draw(weights: Tensor, top_p: Tensor | None, randoms: Sequence[Random]) -> list[int | None]:
    """Draw a token of each row of `weights`, (rows, vocabulary) and none negative, from its nucleus.

    `top_p`, (rows, 1) and above 0, is in the unit of the weights: infinite for a row without a nucleus; None if no row
    has one. Each row takes a number from its own Random, and one more for each time that it is drawn again, whatever
    its neighbours do. A row with NaN gives None. Overwrites the weights. Waits for the device once a round; on CUDA
    `engine.model.cuda.operators` does the same without waiting.
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


def serves(scores: Tensor) -> bool:
    """Whether there is a kernel for these scores."""
    return scores.is_contiguous() and cpu_kernels.serve(scores)


class CpuDrawer:
    """Draws, in room that it keeps: 512 KB a row of a large vocabulary, which is slow to get anew. Not thread-safe."""

    def __init__(self) -> None:
        self._room = torch.empty(0)

    def draw(
        self,
        scores: Tensor,
        rows: Sequence[int],
        *,
        temperature: Tensor,
        top_p: Tensor | None,
        masks: Sequence[Tensor | None],
        randoms: Sequence[Random],
    ) -> list[int | None]:
        """Draw a token of each of the named `rows` of `scores`, (all rows, vocabulary), from its nucleus.

        `temperature` and `top_p` as `nucleus.draw` takes them, (rows, 1); `masks`: as a guide has them. Random numbers are taken
        as there. A row with NaN gives None. Raises ValueError for rows that are not there, and masks that are too short.
        """
        _check(rows, scores)
        size, is_half = scores.shape[1], scores.dtype is torch.bfloat16
        room, addresses = self._room_for(len(rows), size), _addresses(masks, size)
        coolings = 1 / temperature.flatten()
        shares = torch.full_like(coolings, torch.inf) if top_p is None else top_p.flatten()
        totals = torch.empty(len(rows), dtype=torch.float64)

        def once(at: Tensor, draws: Tensor, floors: Tensor, *, again: bool) -> Tensor:
            """Draw once for each of the `draws`; return their tokens, and write their floors."""
            numbers = [min(randoms[draw].random(), BELOW_ONE) for draw in draws.tolist()]
            levels, own = torch.tensor(numbers, dtype=torch.float64), (coolings[draws], shares[draws])
            tokens = torch.empty_like(draws)
            cpu_kernels.library().midstream_draw(
                *(
                    scores.data_ptr(),
                    at.data_ptr(),
                    addresses.data_ptr(),
                    own[0].data_ptr(),
                    own[1].data_ptr(),
                ),
                *(levels.data_ptr(), len(draws), size, is_half, again, room),
                *(totals.data_ptr(), tokens.data_ptr(), floors.data_ptr()),
            )
            return tokens

        floors = torch.empty_like(coolings)
        tokens = once(torch.tensor(rows), torch.arange(len(rows)), floors, again=False)
        while len(left := (tokens == REJECTED).nonzero().flatten()):
            own_floors = floors[left]
            tokens[left] = once(left, left, own_floors, again=True)
            floors[left] = own_floors
        return [None if token < 0 else token for token in tokens.tolist()]

    def likeliest(
        self, scores: Tensor, rows: Sequence[int], masks: Sequence[Tensor | None]
    ) -> list[int | None]:
        """Return the likeliest token of each of the named rows, the first of equal ones; None and errors as in `draw`."""
        _check(rows, scores)
        at, tokens = torch.tensor(rows), torch.empty(len(rows), dtype=torch.int64)
        size = scores.shape[1]
        addresses = _addresses(masks, size)
        cpu_kernels.library().midstream_likeliest(
            *(scores.data_ptr(), at.data_ptr(), addresses.data_ptr(), len(rows), size),
            *(scores.dtype is torch.bfloat16, self._room_for(len(rows), size), tokens.data_ptr()),
        )
        return [None if token < 0 else token for token in tokens.tolist()]

    def _room_for(self, rows: int, size: int) -> int:
        """Return the address of room for rows of weights."""
        if self._room.numel() < rows * size:
            self._room = torch.empty(rows * size)
        return self._room.data_ptr()


def _check(rows: Sequence[int], scores: Tensor) -> None:
    if rows and not 0 <= min(rows) <= max(rows) < len(scores):
        raise ValueError(f"rows from {min(rows)} to {max(rows)} of {len(scores)}")


def _addresses(masks: Sequence[Tensor | None], size: int) -> Tensor:
    """Return the masks' addresses, 0 for none. Raises ValueError for a mask that does not cover a row."""
    for mask in masks:
        if mask is not None and (
            mask.dtype is not torch.int32 or not mask.is_contiguous() or len(mask) * BITS < size
        ):
            raise ValueError(f"a mask of {mask.dtype} has no bit for each of {size} tokens")
    return torch.tensor([0 if mask is None else mask.data_ptr() for mask in masks])
