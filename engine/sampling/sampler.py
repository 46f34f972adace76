"""Chooses the next token of each reply from its logits.

The limits are those of transformers, in its order: repetition penalty, temperature, top-k, top-p. Each reply has
random numbers of its own, so that a seed gives the same text alone and in a batch. The vocabulary is never
sorted: a small top-k makes a shortlist, and all other rows are drawn from the whole (`nucleus.py`), which measured
faster than a first look at their likeliest tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from random import Random
from typing import assert_never

import torch
from torch import Tensor

from engine.sampling import device_draw, nucleus
from engine.sampling.device_draw import sent
from engine.text.prepared import Sampling

LONGEST_SHORTLIST = 1024
"""A top-k beyond this is a border in the whole vocabulary: one such row must not lengthen the others' shortlists."""

CACHED_SCORES = 2**20
"""So many scores are drawn from at once on a CPU: with them in its cache, 32 rows of 151,936 took half the time."""

COLDEST = 1e-5
"""Temperatures below are greedy: dividing by them leaves the range of float32."""


class Way(Enum):
    """How a row is drawn. Depends on the row alone, as the numbers that it takes must."""

    LIKELIEST = auto()
    SHORTLIST = auto()
    WHOLE = auto()


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
    def way(self) -> Way:
        """How this reply's rows are drawn."""
        chosen = self.sampling
        if not chosen.do_sample or chosen.temperature < COLDEST or chosen.top_k == 1 or chosen.top_p <= 0:
            return Way.LIKELIEST
        return Way.SHORTLIST if 0 < chosen.top_k <= LONGEST_SHORTLIST else Way.WHOLE


@dataclass(frozen=True, slots=True)
class _Group:
    """The rows of a step that are drawn in one way, with their limits as columns of shape (rows, 1)."""

    way: Way
    places: list[int]
    """Where the rows stand in the step."""
    index: slice | Tensor
    """The same for tensors: a slice, which copies nothing, where they stand in a row."""
    randoms: list[Random]
    temperature: Tensor
    top_p: Tensor | None
    """Infinite for a row without a nucleus; None where no row has one."""
    top_k: list[int]
    top_ks: Tensor
    """The same as a column."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """What a step's rows ask for. Kept while the rows stay the same."""

    slots: tuple[int, ...]
    groups: list[_Group]
    slot_index: Tensor
    fed_from: Tensor
    """Where each row's token is left for the next step."""
    penalty: Tensor | None
    """A column of (rows, 1); None where no row has one."""


class Sampler:
    """Chooses tokens for up to `slots` replies over a vocabulary of `vocabulary` tokens."""

    def __init__(self, *, slots: int, vocabulary: int, device: torch.device) -> None:
        self._choosers: list[Chooser | None] = [None] * slots
        self._vocabulary = vocabulary
        self._device = device
        self._at_once = max(1, CACHED_SCORES // vocabulary) if device.type == "cpu" else slots
        self._rows: _Rows | None = None
        self.last = torch.zeros(slots, dtype=torch.int64, device=device)
        """The token that was chosen last in each slot, on the device: that of slot s is `last[-1 - s]`."""
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
        self._seen[slot].index_fill_(0, sent(torch.tensor(list(tokens)), self._device), value=True)

    @torch.inference_mode()
    def sample(self, logits: Tensor, slots: Sequence[int]) -> list[int | None]:
        """Choose a token for each row of logits, (rows, vocabulary), of the replies in these slots.

        A row whose logits are not numbers gives None. Waits for the device once. Leaves the logits as they are.
        """
        if self._device.type == "cuda":
            return [None if token < 0 else token for token in self.choose(logits, slots).tolist()]
        rows = self._rows_of(tuple(slots))
        scores = self._penalised(logits.float(), rows)
        tokens: list[int | None] = [None] * len(slots)
        for group in rows.groups:
            for place, token in zip(group.places, _draw(scores[group.index], group), strict=True):
                tokens[place] = token
        self._remember(rows, sent(torch.tensor([token or 0 for token in tokens]), self._device))
        return tokens

    @torch.inference_mode()
    def choose(self, logits: Tensor, slots: Sequence[int]) -> Tensor:
        """Begin to choose as `sample` does, on a CUDA device: tokens, (rows,) of int64, -1 for a row that gives None.

        Waits for nothing.
        """
        rows = self._rows_of(tuple(slots))
        scores = self._penalised(logits.float(), rows)
        tokens = torch.empty(len(slots), dtype=torch.int64, device=self._device)
        for group in rows.groups:
            tokens[group.index] = _choose(scores[group.index], group).squeeze(1)
        self._remember(rows, tokens.clamp(min=0))
        return tokens

    @torch.inference_mode()
    def feed(self, logits: Tensor, slots: Sequence[int]) -> Tensor:
        """Choose as `choose` does, on any device, and leave the tokens in `last` for the next step.

        Waits for a device that is not CUDA's.
        """
        if self._device.type == "cuda":
            tokens = self.choose(logits, slots)
        else:
            known = [-1 if token is None else token for token in self.sample(logits, slots)]
            tokens = torch.tensor(known, device=self._device)
        self.last.index_copy_(0, self._rows_of(tuple(slots)).fed_from, tokens.clamp(min=0))
        return tokens

    def _rows_of(self, slots: tuple[int, ...]) -> _Rows:
        if self._rows is None or self._rows.slots != slots:
            choosers = [chooser for slot in slots if (chooser := self._choosers[slot]) is not None]
            penalties = [chooser.sampling.repetition_penalty for chooser in choosers]
            self._rows = _Rows(
                slots=slots,
                groups=_groups(choosers, self._at_once, self._device),
                slot_index=sent(torch.tensor(slots), self._device),
                fed_from=sent(len(self._choosers) - 1 - torch.tensor(slots), self._device),
                penalty=_column(penalties, self._device) if any(p != 1.0 for p in penalties) else None,
            )
        return self._rows

    def _penalised(self, logits: Tensor, rows: _Rows) -> Tensor:
        """Source: CTRL (Keskar et al. 2019), section 4.1, with transformers' rule for negative logits."""
        if rows.penalty is None or self._seen is None:
            return logits
        weighted = torch.where(logits < 0, logits * rows.penalty, logits / rows.penalty)
        return torch.where(self._seen[rows.slot_index] & (rows.penalty != 1.0), weighted, logits)

    def _remember(self, rows: _Rows, tokens: Tensor) -> None:
        """Count tokens for the penalty. A row that has none ends here: what is noted for it is never read."""
        if rows.penalty is not None and self._seen is not None:
            # An assignment would send the value; this one is made on the device.
            self._seen.index_put_((rows.slot_index, tokens), torch.ones_like(tokens, dtype=torch.bool))


def _groups(choosers: Sequence[Chooser], most: int, device: torch.device) -> list[_Group]:
    """Gather the rows of each way; up to `most` at a time of those that are drawn from the whole."""
    ways: dict[Way, list[int]] = {}
    for place, chooser in enumerate(choosers):
        ways.setdefault(chooser.way, []).append(place)
    parts = []
    for way, places in ways.items():
        at_once = most if way is Way.WHOLE else len(places)
        parts += [(way, places[first : first + at_once]) for first in range(0, len(places), at_once)]
    return [_group(way, part, [choosers[place] for place in part], device) for way, part in parts]


def _group(way: Way, places: list[int], choosers: Sequence[Chooser], device: torch.device) -> _Group:
    samplings = [chooser.sampling for chooser in choosers]
    # A mass that is rounded may be 1 before all tokens are counted: no limit has to be beyond it.
    top_p = [one.top_p if one.top_p < 1 else math.inf for one in samplings]
    top_k = [one.top_k for one in samplings]
    return _Group(
        way=way,
        places=places,
        index=_index(places, device),
        randoms=[chooser.random for chooser in choosers],
        temperature=_column([one.temperature for one in samplings], device),
        top_p=_column(top_p, device) if min(top_p) < 1 else None,
        top_k=top_k,
        top_ks=_column(top_k, device),
    )


def _index(places: list[int], device: torch.device) -> slice | Tensor:
    between = slice(places[0], places[-1] + 1)
    whole = between.stop - between.start == len(places)
    return between if whole else sent(torch.tensor(places), device)


def _column(values: list[float] | list[int], device: torch.device) -> Tensor:
    return sent(torch.tensor(values).unsqueeze(1), device)


def _draw(scores: Tensor, group: _Group) -> list[int | None]:
    match group.way:
        case Way.LIKELIEST:
            best, tokens = scores.max(dim=-1, keepdim=True)
            return nucleus.fetch(tokens, best.isfinite())
        case Way.SHORTLIST:
            return nucleus.fetch(*_from_shortlist(scores, group))
        case Way.WHOLE:
            scaled = _without_tail(scores / group.temperature, group.top_k)
            return nucleus.draw(scaled.softmax(dim=-1), group.top_p, group.randoms)
        case _:
            assert_never(group.way)


def _choose(scores: Tensor, group: _Group) -> Tensor:
    """Choose as `_draw` does without waiting: tokens, (rows, 1), and -1 where it gives None."""
    match group.way:
        case Way.LIKELIEST:
            best, tokens = scores.max(dim=-1, keepdim=True)
            return tokens.masked_fill_(~best.isfinite(), -1)
        case Way.SHORTLIST:
            tokens, usable = _from_shortlist(scores, group)
            return tokens.masked_fill_(~usable, -1)
        case Way.WHOLE:
            return device_draw.draw(
                _without_tail(scores / group.temperature, group.top_k), group.top_p, group.randoms
            )
        case _:
            assert_never(group.way)


def _from_shortlist(scores: Tensor, group: _Group) -> tuple[Tensor, Tensor]:
    """Draw each row from its likeliest tokens: the tokens and whether they mean anything, both (rows, 1)."""
    longest = min(max(group.top_k), scores.shape[1])
    likeliest, ids = scores.topk(longest)
    if min(group.top_k) < longest:
        place = torch.arange(longest, device=scores.device)
        likeliest = likeliest.masked_fill(place >= group.top_ks, -torch.inf)
    weights = (likeliest / group.temperature).softmax(dim=-1)
    if group.top_p is not None:
        weights = nucleus.cut_ranked(weights, group.top_p)
    index, usable = nucleus.invert(weights, group.randoms)
    return ids.gather(1, index), usable


def _without_tail(scaled: Tensor, top_k: list[int]) -> Tensor:
    """Take, in place, what is below each row's top-k out of the draw. Tokens like the last one stay, as in transformers."""
    vocabulary = scaled.shape[1]
    for place, limit in enumerate(top_k):
        if 0 < limit < vocabulary:
            row = scaled[place]
            row.masked_fill_(row < row.kthvalue(vocabulary - limit + 1).values, -torch.inf)
    return scaled
