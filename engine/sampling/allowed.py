"""Rows of which a grammar leaves few tokens: those alone are looked at, instead of a whole vocabulary.

Between the strings of a JSON text some tokens may come, of a hundred thousand. On a CPU, where what is looked at
is the cost. How many columns a row gets depends on the row alone, so that it adds up as it would without the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.sampling.guide import FEW, Guide

WIDTHS = (16, 128, FEW)
"""Rows have one of these widths: as many kinds of rows are drawn apart."""
WORTH_IT = 8
"""A vocabulary of fewer times as many tokens is looked at whole."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """The tokens that may come next in some rows: `ids`, (rows, width), each row filled up behind its `counts`, (rows, 1)."""

    ids: Tensor
    counts: Tensor

    @classmethod
    def by(cls, guides: Sequence[Guide], width: int) -> Allowed:
        """Gather what these guides allow, each of them of this width."""
        few = [guide.few for guide in guides if guide.few is not None]
        ids = torch.zeros(len(few), width, dtype=torch.int64)
        for row, tokens in zip(ids, few, strict=True):
            row[: len(tokens)] = tokens
        return cls(ids, torch.tensor([[len(tokens)] for tokens in few]))

    def of(self, scores: Tensor, places: Sequence[int]) -> Tensor:
        """Return the scores of these tokens, (rows, width), of scores for a vocabulary, whose rows stand at `places`."""
        filling = torch.arange(self.ids.shape[1]) >= self.counts
        return scores[torch.tensor(places).unsqueeze(1), self.ids].masked_fill_(filling, -torch.inf)

    def token(self, row: int, place: int | None) -> int | None:
        """Return which token stands at a place of a row, if any was drawn."""
        return None if place is None else int(self.ids[row, place])


def width_of(guide: Guide, vocabulary: int) -> int:
    """Return how wide a row of this guide's tokens is; 0: all of the vocabulary is to be looked at."""
    if guide.few is None:
        return 0
    width = next(width for width in WIDTHS if len(guide.few) <= width)
    return width if width * WORTH_IT <= vocabulary else 0
