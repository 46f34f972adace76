"""Chooses the next token of each reply from its logits.

The changes that a request asks for come first (`logits_processors.py`). The limits are those of transformers, in its order:
temperature, top-k, top-p, min-p. Each reply has random numbers of its own, so a seed gives the same text alone and in a
batch. The vocabulary is never sorted: a small top-k makes a shortlist, and all other rows are drawn from the whole
(`draw.py`), which measured faster than trying their likeliest tokens first.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from random import Random
from typing import assert_never

import torch
from torch import Tensor

from engine.execution import draw
from engine.execution.draw import likeliest
from engine.execution.guide import Guide
from engine.execution.logits_processors import (
    AllowedTokens,
    LogitsChanges,
    LogitsParams,
    LogitsProcessors,
    width_of,
)
from engine.model.cuda import operators
from engine.model.devices import sent
from engine.text.prepared_request import SamplingParams
from engine.text.reply_text import ScoredToken

LONGEST_SHORTLIST = 1024
"""A larger top-k is applied to the whole vocabulary, since one such row must not lengthen the others' shortlists."""

CACHED_SCORES = 2**20
"""The most scores that are drawn from at once on a CPU. With them in its cache, 32 rows of 151,936 took half the time."""

COLDEST = 1e-5
"""Lower temperatures are greedy, since dividing by them leaves the range of float32."""

VERY_UNLIKELY = -9999.0
"""OpenAI's value for a probability of 0, whose logarithm JSON can't write."""


class SamplingMethod(Enum):
    """How a row is drawn. It depends only on the row, so that its random numbers don't depend on its neighbours."""

    LIKELIEST = auto()
    SHORTLIST = auto()
    WHOLE = auto()


@dataclass(frozen=True, slots=True)
class SamplerState:
    """One reply's sampling state, with its own random numbers. It may move from slot to slot."""

    sampling: SamplingParams
    random: Random
    guide: Guide | None = None

    @classmethod
    def of(cls, sampling: SamplingParams, guide: Guide | None = None) -> SamplerState:
        """Return the state for a new reply. `guide`: holds it to its grammar, if it has one."""
        return cls(sampling, Random(sampling.seed), guide)

    @property
    def way(self) -> SamplingMethod:
        """How this reply's rows are drawn."""
        chosen = self.sampling
        if not chosen.do_sample or chosen.temperature < COLDEST or chosen.top_k == 1 or chosen.top_p <= 0:
            return SamplingMethod.LIKELIEST
        return SamplingMethod.SHORTLIST if 0 < chosen.top_k <= LONGEST_SHORTLIST else SamplingMethod.WHOLE


@dataclass(frozen=True, slots=True)
class _Limits:
    """The limits of rows, as columns of shape (rows, 1)."""

    temperature: Tensor
    top_p: Tensor | None
    """Infinite for a row without a nucleus; None if no row has one."""
    top_k: list[int]
    top_ks: Tensor
    """The same as a column."""
    min_p: Tensor | None
    """None if no row has one."""


@dataclass(frozen=True, slots=True)
class _Group:
    """The rows of a step that are drawn in one way."""

    way: SamplingMethod
    places: list[int]
    """Where the rows are in the step."""
    index: slice | Tensor
    """The same for tensors: a slice, which copies nothing, if the rows are neighbours."""
    randoms: list[Random]
    limits: _Limits
    slots: list[int]
    changes: LogitsChanges | None
    """The changes of their logits; None if no row asks for any."""
    width: int
    """The width of the rows if grammars leave so few tokens that only those are read; 0: the whole vocabulary is."""
    has_kernel: bool
    """Whether a kernel for CPUs knows all of the rows' limits."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """The groups of a step's rows. They are kept while the rows stay the same, and ask for the same."""

    slots: tuple[int, ...]
    widths: tuple[int, ...]
    groups: list[_Group]
    fed_from: Tensor
    """The place in `last` where each row's token is left for the next step."""


class Sampler:
    """Chooses tokens for up to `slots` replies over a vocabulary of `vocabulary` tokens."""

    def __init__(
        self, *, slots: int, vocabulary: int, device: torch.device, ends: Collection[int] = ()
    ) -> None:
        """`ends`: the tokens that end a reply. Replies that are too short don't get them."""
        self._sampler_states: list[SamplerState | None] = [None] * slots
        self._device = device
        self._vocabulary = vocabulary
        self._at_once = max(1, CACHED_SCORES // vocabulary) if device.type == "cpu" else slots
        self._rows: _Rows | None = None
        self._drawing = draw.CpuDrawer()
        self._adjustments = LogitsProcessors(slots=slots, vocabulary=vocabulary, device=device, ends=ends)
        self.last = torch.zeros(slots, dtype=torch.int64, device=device)
        """The last token of each slot, on the device: that of slot s is `last[-1 - s]`."""

    def join(
        self, slot: int, sampler_state: SamplerState, tokens: Sequence[int], *, generated: int = 0
    ) -> None:
        """Take a reply into a slot. Its tokens so far, prompt included, count for its repetition penalty.

        `generated`: how many of them are its own. The penalties for presence and frequency count only these.
        """
        self._sampler_states[slot] = sampler_state
        self._rows = None
        self._adjustments.join(
            slot, LogitsParams(sampler_state.sampling, sampler_state.guide, generated), tokens
        )

    @torch.inference_mode()
    def sample(self, logits: Tensor, slots: Sequence[int]) -> list[int | None]:
        """Choose a token for each row of logits, (rows, vocabulary), of the replies in these slots.

        A row with NaN gives None. Waits for the device. Leaves the logits as they are.
        """
        if self._device.type == "cuda":
            return [None if token < 0 else token for token in self.choose(logits, slots).tolist()]
        tokens: list[int | None] = [None] * len(slots)
        for group in self._rows_of(tuple(slots)).groups:
            drawn = self._drawn(logits, group)
            for place, token in zip(group.places, drawn, strict=True):
                tokens[place] = token
            if group.changes is not None:
                self._remember(group, group.changes, torch.tensor([token or 0 for token in drawn]))
        return tokens

    @torch.inference_mode()
    def choose(self, logits: Tensor, slots: Sequence[int]) -> Tensor:
        """Begin to choose as `sample` does, on a CUDA device: tokens, (rows,) of int64, with -1 in place of None.

        Does not wait for the device.
        """
        tokens = torch.empty(len(slots), dtype=torch.int64, device=self._device)
        for group in self._rows_of(tuple(slots)).groups:
            drawn = _choose(self._scores(logits, group), group).squeeze(1)
            tokens[group.index] = drawn
            if group.changes is not None:
                self._remember(group, group.changes, drawn.clamp(min=0))
        return tokens

    @torch.inference_mode()
    def feed(self, logits: Tensor, slots: Sequence[int]) -> Tensor:
        """Choose as `choose` does, on any device, and leave the tokens in `last` for the next step.

        Waits for the device unless it is a CUDA device.
        """
        fed_from = self._rows_of(tuple(slots)).fed_from
        if self._device.type == "cuda":
            tokens = self.choose(logits, slots)
        else:
            known = [-1 if token is None else token for token in self.sample(logits, slots)]
            tokens = torch.tensor(known, device=self._device)
        self.last.index_copy_(0, fed_from, tokens.clamp(min=0))
        return tokens

    def _rows_of(self, slots: tuple[int, ...]) -> _Rows:
        widths = tuple(map(self._width, slots)) if self._device.type == "cpu" else (0,) * len(slots)
        if self._rows is None or self._rows.slots != slots or self._rows.widths != widths:
            parts = self._parts(slots, widths)
            self._rows = _Rows(
                slots=slots,
                widths=widths,
                groups=[self._group(way, width, places, slots) for way, width, places in parts],
                fed_from=sent(len(self._sampler_states) - 1 - torch.tensor(slots), self._device),
            )
        return self._rows

    def _width(self, slot: int) -> int:
        guide = self._adjustments.guide_alone(slot)
        return width_of(guide, self._vocabulary) if guide is not None else 0

    def _parts(
        self, slots: Sequence[int], widths: Sequence[int]
    ) -> list[tuple[SamplingMethod, int, list[int]]]:
        """Group the rows by way, by width, by whether their logits are changed, and by whether a kernel knows their limits.

        Of rows that are drawn from the whole, a group has only as many as fit into the cache.
        """
        ways: dict[tuple[SamplingMethod, int, bool, bool], list[int]] = {}
        for place, (slot, width) in enumerate(zip(slots, widths, strict=True)):
            if (sampler_state := self._sampler_states[slot]) is not None:
                has_kernel = not _cuts(sampler_state, self._vocabulary)
                ways.setdefault(
                    (sampler_state.way, width, self._adjustments.is_changed(slot), has_kernel), []
                ).append(place)
        parts = []
        for (way, width, _, _), places in ways.items():
            at_once = len(places) if way is SamplingMethod.SHORTLIST or width else self._at_once
            parts += [
                (way, width, places[first : first + at_once]) for first in range(0, len(places), at_once)
            ]
        return parts

    def _group(self, way: SamplingMethod, width: int, places: list[int], slots: Sequence[int]) -> _Group:
        own = [slots[place] for place in places]
        choosers = [
            sampler_state for slot in own if (sampler_state := self._sampler_states[slot]) is not None
        ]
        return _Group(
            way=way,
            places=places,
            index=_index(places, self._device),
            randoms=[sampler_state.random for sampler_state in choosers],
            limits=_limits([sampler_state.sampling for sampler_state in choosers], self._device),
            slots=own,
            changes=None if width else self._adjustments.changes(own),
            width=width,
            has_kernel=way is SamplingMethod.LIKELIEST
            or (way is SamplingMethod.WHOLE and not _cuts(choosers[0], self._vocabulary)),
        )

    def _drawn(self, logits: Tensor, group: _Group) -> list[int | None]:
        if group.width:
            allowed = AllowedTokens.by(self._guides(group), group.width)
            places = self._draw(allowed.of(logits, group.places).float(), group)
            return [allowed.token(row, place) for row, place in enumerate(places)]
        masks = self._masks(group)
        drawn = None if masks is None else self._by_kernel(logits, group.places, masks, group)
        return self._draw(self._scores(logits, group), group) if drawn is None else drawn

    def _masks(self, group: _Group) -> list[Tensor | None] | None:
        """Return the masks of a group's rows; None if anything else changes these."""
        if group.changes is None:
            return [None] * len(group.slots)
        return [guide.mask for guide in self._guides(group)] if group.changes.are_masks else None

    def _draw(self, scores: Tensor, group: _Group) -> list[int | None]:
        drawn = self._by_kernel(scores, range(len(scores)), [None] * len(scores), group)
        if drawn is not None:
            return drawn
        match group.way:
            case SamplingMethod.LIKELIEST:
                best, tokens = likeliest(scores)
                return draw.fetch(tokens, best.isfinite())
            case SamplingMethod.SHORTLIST:
                return draw.fetch(*_from_shortlist(scores, group))
            case SamplingMethod.WHOLE:
                scaled = _without_tail(scores / group.limits.temperature, group.limits.top_k)
                weights = _without_unlikely(scaled.softmax(dim=-1), group.limits.min_p)
                return draw.draw(weights, group.limits.top_p, group.randoms)
            case _:
                assert_never(group.way)

    def _by_kernel(
        self, scores: Tensor, rows: Sequence[int], masks: Sequence[Tensor | None], group: _Group
    ) -> list[int | None] | None:
        """Draw some rows of scores; None if there is no kernel for them."""
        if not (group.has_kernel and draw.serves(scores)):
            return None
        if group.way is SamplingMethod.LIKELIEST:
            return self._drawing.likeliest(scores, rows, masks)
        limits, randoms = group.limits, group.randoms
        return self._drawing.draw(
            scores, rows, temperature=limits.temperature, top_p=limits.top_p, masks=masks, randoms=randoms
        )

    def _guides(self, group: _Group) -> list[Guide]:
        return [guide for slot in group.slots if (guide := self._adjustments.guide_alone(slot)) is not None]

    def _scores(self, logits: Tensor, group: _Group) -> Tensor:
        rows = logits[group.index].float()
        return rows if group.changes is None else self._adjustments.changed(rows, group.changes)

    def _remember(self, group: _Group, changes: LogitsChanges, tokens: Tensor) -> None:
        """Count tokens for the penalties. A row without a token ends now, so what is noted for it is never read."""
        if self._adjustments.remember(group.slots, changes, tokens):
            self._rows = None


def _cuts(sampler_state: SamplerState, vocabulary: int) -> bool:
    """Whether a row's limits need its likeliest tokens, or the weight of the likeliest one."""
    return 0 < sampler_state.sampling.top_k < vocabulary or sampler_state.sampling.min_p > 0


def _limits(samplings: Sequence[SamplingParams], device: torch.device) -> _Limits:
    # A rounded mass may reach 1 before all tokens are counted, so a top-p of 1 must be no limit at all.
    top_p = [one.top_p if one.top_p < 1 else math.inf for one in samplings]
    top_k = [one.top_k for one in samplings]
    min_p = [one.min_p for one in samplings]
    return _Limits(
        temperature=_column([one.temperature for one in samplings], device),
        top_p=_column(top_p, device) if min(top_p) < 1 else None,
        top_k=top_k,
        top_ks=_column(top_k, device),
        min_p=_column(min_p, device) if max(min_p) > 0 else None,
    )


def _index(places: list[int], device: torch.device) -> slice | Tensor:
    between = slice(places[0], places[-1] + 1)
    whole = between.stop - between.start == len(places)
    return between if whole else sent(torch.tensor(places), device)


def _column(values: list[float] | list[int], device: torch.device) -> Tensor:
    return sent(torch.tensor(values).unsqueeze(1), device)


def _choose(scores: Tensor, group: _Group) -> Tensor:
    """Choose as `_draw` does, but without waiting: tokens, (rows, 1), with -1 in place of None."""
    match group.way:
        case SamplingMethod.LIKELIEST:
            best, tokens = likeliest(scores)
            return tokens.masked_fill_(~best.isfinite(), -1)
        case SamplingMethod.SHORTLIST:
            tokens, usable = _from_shortlist(scores, group)
            return tokens.masked_fill_(~usable, -1)
        case SamplingMethod.WHOLE:
            scaled = _without_tail(scores / group.limits.temperature, group.limits.top_k)
            if group.limits.min_p is None:
                return operators.draw(scaled, group.limits.top_p, group.randoms)
            # top-p is a share of the mass before min-p, so it is a larger share of the mass that is left.
            weights = _without_unlikely(scaled.softmax(dim=-1), group.limits.min_p)
            top_p = (
                None if group.limits.top_p is None else group.limits.top_p / weights.sum(dim=-1, keepdim=True)
            )
            return operators.draw(weights.log(), top_p, group.randoms)
        case _:
            assert_never(group.way)


def _from_shortlist(scores: Tensor, group: _Group) -> tuple[Tensor, Tensor]:
    """Draw each row from its likeliest tokens. Returns the tokens, and whether they are usable, both (rows, 1)."""
    longest = min(max(group.limits.top_k), scores.shape[1])
    largest, ids = scores.topk(longest)
    if min(group.limits.top_k) < longest:
        place = torch.arange(longest, device=scores.device)
        largest = largest.masked_fill(place >= group.limits.top_ks, -torch.inf)
    weights = (largest / group.limits.temperature).softmax(dim=-1)
    if group.limits.top_p is not None:
        weights = draw.cut_ranked(weights, group.limits.top_p)
    weights = _without_unlikely(weights, group.limits.min_p)
    index, usable = draw.invert(weights, group.randoms)
    return ids.gather(1, index), usable


def _without_unlikely(weights: Tensor, min_p: Tensor | None) -> Tensor:
    """Set weights below `min_p` times the row's largest to 0. Source: min-p (Nguyen et al. 2024)."""
    if min_p is None:
        return weights
    return weights.masked_fill(weights < min_p * weights.amax(dim=-1, keepdim=True), 0.0)


def _without_tail(scaled: Tensor, top_k: list[int]) -> Tensor:
    """Set scores below each row's top-k to -inf, in place. Ties with the last one stay, as in transformers."""
    vocabulary = scaled.shape[1]
    for place, limit in enumerate(top_k):
        if 0 < limit < vocabulary:
            row = scaled[place]
            row.masked_fill_(row < row.kthvalue(vocabulary - limit + 1).values, -torch.inf)
    return scaled


class LogprobScorer:
    """Knows which slots ask for log-probabilities, and of how many likeliest tokens."""

    def __init__(self) -> None:
        self._tops: dict[int, int] = {}

    def join(self, slot: int, top: int | None) -> None:
        """Take a reply into a slot. `top`: of how many likeliest tokens; None if it does not ask."""
        self.leave(slot)
        if top is not None:
            self._tops[slot] = top

    def leave(self, slot: int) -> None:
        """Note that a slot is free."""
        self._tops.pop(slot, None)

    def score(
        self, logits: Tensor, slots: Sequence[int], tokens: Sequence[int | None]
    ) -> dict[int, ScoredToken]:
        """Return the scores of tokens that were chosen from logits, (rows, vocabulary), by the slots that asked.

        Waits for the device if any slot asked. Leaves the logits as they are.
        """
        if not self._tops:
            return {}
        requested = [
            (place, slot, token)
            for place, (slot, token) in enumerate(zip(slots, tokens, strict=True))
            if token is not None and slot in self._tops
        ]
        return self._score(logits, requested) if requested else {}

    @torch.inference_mode()
    def _score(self, logits: Tensor, requested: Sequence[tuple[int, int, int]]) -> dict[int, ScoredToken]:
        """Score rows: the place, the slot and the token of each."""
        places, slots, chosen = zip(*requested, strict=True)
        rows = logits if len(places) == len(logits) else logits[list(places)]
        most = min(max(self._tops[slot] for slot in slots), logits.shape[1])
        own, likeliest, ids = _look(rows.float(), chosen, most)
        return {
            slot: ScoredToken(
                chosen[row], own[row], list(zip(ids[row], likeliest[row], strict=True))[: self._tops[slot]]
            )
            for row, slot in enumerate(slots)
        }


def _look(
    logits: Tensor, chosen: Sequence[int], most: int
) -> tuple[list[float], list[list[float]], list[list[int]]]:
    """Return log-probabilities of each row's chosen token and of its `most` likeliest ones, and the ids of these."""
    index = torch.tensor(chosen, device=logits.device).unsqueeze(1)
    likeliest, ids = logits.topk(most)
    scores = torch.cat((logits.gather(1, index), likeliest), dim=1) - logits.logsumexp(dim=1, keepdim=True)
    fetched = scores.clamp_(min=VERY_UNLIKELY).tolist()
    return [row[0] for row in fetched], [row[1:] for row in fetched], ids.tolist()
