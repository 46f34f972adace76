"""Rows of which a grammar leaves few tokens. On a CPU only these are read, instead of the whole vocabulary.

Between the strings of a JSON text only some tokens of a hundred thousand may come, and reading scores is what costs time.
The number of a row's columns depends only on the row, so its sums don't depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.sampling.guide import FEW, Guide

WIDTHS = (16, 128, FEW)
"""The widths of rows. Rows of each width are drawn separately."""
WORTH_IT = 8
"""How many times larger than a row the vocabulary must be; else all of it is read."""


@dataclass(frozen=True, slots=True)
class AllowedTokens:
    """The tokens that may come next in some rows: `ids`, (rows, width), padded behind the rows' `counts`, (rows, 1)."""

    ids: Tensor
    counts: Tensor

    @classmethod
    def by(cls, guides: Sequence[Guide], width: int) -> AllowedTokens:
        """Gather the tokens that these guides allow, at most `width` each."""
        few = [guide.few for guide in guides if guide.few is not None]
        ids = torch.zeros(len(few), width, dtype=torch.int64)
        for row, tokens in zip(ids, few, strict=True):
            row[: len(tokens)] = tokens
        return cls(ids, torch.tensor([[len(tokens)] for tokens in few]))

    def of(self, scores: Tensor, places: Sequence[int]) -> Tensor:
        """Return the scores of these tokens, (rows, width). `scores`: of the whole vocabulary, with the rows at `places`."""
        filling = torch.arange(self.ids.shape[1]) >= self.counts
        return scores[torch.tensor(places).unsqueeze(1), self.ids].masked_fill_(filling, -torch.inf)

    def token(self, row: int, place: int | None) -> int | None:
        """Return the token at a place of a row; None if no place was drawn."""
        return None if place is None else int(self.ids[row, place])


def width_of(guide: Guide, vocabulary: int) -> int:
    """Return the width of a row of this guide's tokens; 0 if the whole vocabulary has to be read."""
    if guide.few is None:
        return 0
    width = next(width for width in WIDTHS if len(guide.few) <= width)
    return width if width * WORTH_IT <= vocabulary else 0
