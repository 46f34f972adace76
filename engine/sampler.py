"""Chooses the next token of each reply from its logits.

The limits are those of transformers, in its order: repetition penalty, temperature, top-k, top-p. Each reply has
random numbers of its own, so that a seed gives the same text alone and in a batch. The vocabulary is
never sorted on the way: a shortlist of the likeliest tokens settles nearly every draw, and a row that it can't
settle is drawn exactly, by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

from engine.prepared import Sampling

OPEN_SHORTLIST = 128
"""Shortlist of a row that has no top-k: enough for most nuclei."""

LONGEST_SHORTLIST = 1024
"""A top-k beyond this is drawn exactly: one such row must not slow the others."""

COLDEST = 1e-5
"""Temperatures below are greedy: dividing by them leaves the range of float32."""


@dataclass(frozen=True, slots=True)
class Chooser:
    """One reply's way of choosing, with its own random numbers: it may move from slot to slot."""

    sampling: Sampling
    random: Random

    @classmethod
    def of(cls, sampling: Sampling) -> Chooser:
        """Begin a reply's way of choosing."""
        return cls(sampling, Random(sampling.seed))

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken, always."""
        return not self.sampling.do_sample or self.sampling.temperature < COLDEST

    def top_k(self, vocabulary: int) -> int:
        """Return how many tokens may be chosen from: all of them where there is no limit."""
        return min(self.sampling.top_k, vocabulary) or vocabulary

    def shortlist(self, vocabulary: int) -> int:
        """Return how many of the likeliest tokens this row looks at first."""
        top_k = self.top_k(vocabulary)
        return top_k if top_k <= LONGEST_SHORTLIST else OPEN_SHORTLIST


@dataclass(frozen=True, slots=True)
class _Rows:
    """The choosers of a step's rows as columns, each of shape (rows, 1). Kept while the rows stay the same."""

    slots: tuple[int, ...]
    choosers: tuple[Chooser, ...]
    slot_index: Tensor
    temperature: Tensor
    top_p: Tensor
    shortlist: Tensor
    complete: Tensor
    """Whether the shortlist holds every token that top-k allows."""
    wide: Tensor
    """Whether top-k allows more than a shortlist: its share of the whole is unknown, the draw is never settled."""
    greedy: Tensor
    penalty: Tensor | None
    longest: int
    """The longest shortlist; 0 where all rows are greedy."""


class Sampler:
    """Chooses tokens for up to `slots` replies over a vocabulary of `vocabulary` tokens."""

    def __init__(self, *, slots: int, vocabulary: int, device: torch.device) -> None:
        self._choosers: list[Chooser | None] = [None] * slots
        self._vocabulary = vocabulary
        self._device = device
        self._rows: _Rows | None = None
        self._seen: Tensor | None = None

    def join(self, slot: int, chooser: Chooser, tokens: Sequence[int]) -> None:
        """Take a reply into a slot. Its tokens so far, the prompt's too, count for its repetition penalty."""
        self._choosers[slot] = chooser
        self._rows = None
        if chooser.sampling.repetition_penalty == 1.0:
            return
        if self._seen is None:
            shape = len(self._choosers), self._vocabulary
            self._seen = torch.zeros(shape, dtype=torch.bool, device=self._device)
        self._seen[slot].zero_()
        self._seen[slot, torch.tensor(list(tokens), device=self._device)] = True

    @torch.inference_mode()
    def sample(self, logits: Tensor, slots: Sequence[int]) -> list[int | None]:
        """Choose a token for each row of logits, (rows, vocabulary), of the replies in these slots.

        A row whose logits are not numbers gives None. Waits once for the device.
        """
        rows = self._rows_of(tuple(slots))
        scores = self._penalised(logits.float(), rows)
        if rows.longest:
            uniform = [0.0 if chooser.greedy else chooser.random.random() for chooser in rows.choosers]
            chosen, best, settled = _draw(scores, rows, uniform)
        else:
            uniform = []
            best, chosen = scores.max(dim=-1)
            settled = torch.ones_like(chosen, dtype=torch.bool)
        tokens, usable, settles = torch.stack((chosen, best.isfinite(), settled)).tolist()
        for row in range(len(tokens)):
            if usable[row] and not settles[row]:
                tokens[row] = _draw_exactly(scores[row], rows.choosers[row], uniform[row])
        self._remember(rows, tokens)
        return [token if ok else None for token, ok in zip(tokens, usable, strict=True)]

    def _rows_of(self, slots: tuple[int, ...]) -> _Rows:
        if self._rows is None or self._rows.slots != slots:
            choosers = tuple(chooser for slot in slots if (chooser := self._choosers[slot]) is not None)
            self._rows = _columns(slots, choosers, self._vocabulary, self._device)
        return self._rows

    def _penalised(self, logits: Tensor, rows: _Rows) -> Tensor:
        """Source: CTRL (Keskar et al. 2019), section 4.1, with transformers' rule for negative logits."""
        if rows.penalty is None or self._seen is None:
            return logits
        weighted = torch.where(logits < 0, logits * rows.penalty, logits / rows.penalty)
        return torch.where(self._seen[rows.slot_index] & (rows.penalty != 1.0), weighted, logits)

    def _remember(self, rows: _Rows, tokens: list[int]) -> None:
        if rows.penalty is not None and self._seen is not None:
            self._seen[rows.slot_index, torch.tensor(tokens, device=self._device)] = True


def _columns(
    slots: tuple[int, ...], choosers: tuple[Chooser, ...], vocabulary: int, device: torch.device
) -> _Rows:
    def column(values: list[float] | list[int] | list[bool]) -> Tensor:
        return torch.tensor(values, device=device).unsqueeze(1)

    shortlists = [chooser.shortlist(vocabulary) for chooser in choosers]
    greedy = [chooser.greedy for chooser in choosers]
    penalties = [chooser.sampling.repetition_penalty for chooser in choosers]
    return _Rows(
        slots=slots,
        choosers=choosers,
        slot_index=torch.tensor(slots, device=device),
        temperature=column([1.0 if chooser.greedy else chooser.sampling.temperature for chooser in choosers]),
        top_p=column([chooser.sampling.top_p for chooser in choosers]),
        shortlist=column(shortlists),
        complete=column([chooser.top_k(vocabulary) <= LONGEST_SHORTLIST for chooser in choosers]),
        wide=column([LONGEST_SHORTLIST < chooser.top_k(vocabulary) < vocabulary for chooser in choosers]),
        greedy=torch.tensor(greedy, device=device),
        penalty=column(penalties) if any(penalty != 1.0 for penalty in penalties) else None,
        longest=0 if all(greedy) else max(s for s, g in zip(shortlists, greedy, strict=True) if not g),
    )


def _draw(scores: Tensor, rows: _Rows, uniform: list[float]) -> tuple[Tensor, Tensor, Tensor]:
    """Draw from the shortlists. Returns the tokens, the best score and whether the draw holds, one for each row."""
    scaled = scores / rows.temperature
    likeliest, ids = scaled.topk(min(rows.longest, scaled.shape[1]))
    place = torch.arange(likeliest.shape[1], device=scaled.device)
    listed = likeliest.masked_fill(place >= rows.shortlist, -torch.inf)
    total = torch.where(
        rows.complete, listed.logsumexp(dim=-1, keepdim=True), scaled.logsumexp(dim=-1, keepdim=True)
    )
    probability = (listed - total).exp()
    level = torch.tensor(uniform, device=scaled.device).unsqueeze(1)
    index, settled = _invert(probability, rows.top_p, level)
    index = index.masked_fill(rows.greedy, 0)
    chosen = ids.gather(1, index.unsqueeze(1)).squeeze(1)
    settled = settled & ~rows.wide.squeeze(1) | rows.complete.squeeze(1) | rows.greedy
    return chosen, likeliest[:, 0], settled


def _invert(probability: Tensor, top_p: Tensor, level: Tensor) -> tuple[Tensor, Tensor]:
    """Find where the nucleus' cumulated probability passes `level`, in rows of falling probability.

    Returns the place in each row, and whether it would be the same had the row gone on: its nucleus ends
    within the row or, where there is no nucleus, the level is passed within it.
    """
    cumulated = probability.cumsum(dim=-1)
    kept = cumulated - probability < top_p
    mass = (probability * kept).sum(dim=-1, keepdim=True)
    reached = cumulated[:, -1:]
    unlimited = (top_p >= 1.0) & (level < reached)
    # Without a nucleus the whole vocabulary has the mass 1, of which the row may show a part.
    goal = level * torch.where(unlimited, torch.ones_like(mass), mass)
    index = (cumulated <= goal).sum(dim=-1)
    last = kept.sum(dim=-1) - 1
    return torch.minimum(index, last.clamp(min=0)), (
        unlimited | ((reached >= top_p) & (top_p < 1.0))
    ).squeeze(1)


def _draw_exactly(scores: Tensor, chooser: Chooser, uniform: float) -> int:
    """Draw one row, (vocabulary,), from all that top-k allows, with the random number that it has already."""
    top_k = chooser.top_k(len(scores))
    likeliest, ids = (scores / chooser.sampling.temperature).sort(descending=True)
    probability = likeliest[:top_k].double().softmax(dim=-1).unsqueeze(0)
    columns = probability.new_tensor([[chooser.sampling.top_p]]), probability.new_tensor([[uniform]])
    index, _ = _invert(probability, *columns)
    return int(ids[index[0]])
