"""Chooses the next token of each reply from its logits.

The changes that a request asks for come first: masks, biases, penalties, minimum lengths. The limits are those of
transformers, in its order: temperature, top-k, top-p, min-p. Each reply has random numbers of its own, so a seed gives the
same text alone and in a batch. The vocabulary is never sorted: a small top-k makes a shortlist, and all other rows are
drawn from the whole vocabulary, which measured faster than trying their likeliest tokens first.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from random import Random
from typing import assert_never

import torch
from torch import Tensor

from engine.execution.guide import Guide, masked
from engine.model.cpu import kernels as cpu_kernels
from engine.model.cuda import operators
from engine.model.devices import sent
from engine.text.reply_text import SamplingParams, ScoredToken

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


@dataclass(slots=True)
class SamplerState:
    """One reply's sampling state, with its own random numbers. It may move from slot to slot.

    `generated`: how many tokens the reply has.
    """

    sampling: SamplingParams
    random: Random
    guide: Guide | None = None
    generated: int = 0

    @classmethod
    def of(cls, sampling: SamplingParams, guide: Guide | None = None) -> SamplerState:
        """Return the state for a new reply. `guide`: holds the reply to its grammar, if it has one."""
        return cls(sampling, Random(sampling.seed), guide)

    @property
    def way(self) -> SamplingMethod:
        """How this reply's rows are drawn."""
        chosen = self.sampling
        if not chosen.do_sample or chosen.temperature < COLDEST or chosen.top_k == 1 or chosen.top_p <= 0:
            return SamplingMethod.LIKELIEST
        return SamplingMethod.SHORTLIST if 0 < chosen.top_k <= LONGEST_SHORTLIST else SamplingMethod.WHOLE

    @property
    def may_not_end(self) -> bool:
        """Whether the reply is too short to end. Guides check that themselves."""
        return self.guide is None and self.generated < self.sampling.min_tokens

    @property
    def counts(self) -> bool:
        """Whether it matters how often each token has come."""
        return bool(self.sampling.presence_penalty or self.sampling.frequency_penalty)

    @property
    def changes_logits(self) -> bool:
        """Whether the reply's logits are changed before a token is chosen."""
        weighs = self.sampling.repetition_penalty != 1.0 or self.sampling.logit_bias or self.counts
        return bool(weighs or self.guide or self.may_not_end)


class Sampler:
    """Chooses tokens for up to `slots` replies over a vocabulary of `vocabulary` tokens."""

    def __init__(
        self, *, slots: int, vocabulary: int, device: torch.device, ends: Collection[int] = ()
    ) -> None:
        """`ends`: the tokens that end a reply. Replies that are too short don't get them."""
        self._shape = slots, vocabulary
        self._device = device
        self._at_once = max(1, CACHED_SCORES // vocabulary) if device.type == "cpu" else slots
        self._ends = sent(torch.tensor(sorted(ends)), device) if ends else None
        self._states: dict[int, SamplerState] = {}
        self._rows: _Rows | None = None
        self._room = torch.empty(0, device=device)
        # The tokens that penalties count, by slot.
        self._seen: Tensor | None = None
        self._counts: Tensor | None = None
        self.last = torch.zeros(slots, dtype=torch.int64, device=device)
        """The last token of each slot, on the device: that of slot s is `last[-1 - s]`."""

    def join(self, slot: int, state: SamplerState, tokens: Sequence[int], *, generated: int = 0) -> None:
        """Take a reply into a slot. Its tokens so far, prompt included, count for its repetition penalty.

        `generated`: how many of them are its own. The penalties for presence and frequency count only these.
        """
        state.generated = generated
        self._states[slot] = state
        self._rows = None
        if state.sampling.repetition_penalty != 1.0:
            self._seen = self._table(self._seen, torch.bool)
            self._seen[slot].zero_()
            self._seen[slot].index_fill_(0, sent(torch.tensor(list(tokens)), self._device), value=True)
        if state.counts:
            self._counts = self._table(self._counts, torch.int32)
            self._counts[slot].zero_()
            own = torch.tensor(list(tokens[len(tokens) - generated :]), dtype=torch.int64)
            own = sent(own, self._device)
            self._counts[slot].index_add_(0, own, torch.ones_like(own, dtype=torch.int32))

    @torch.inference_mode()
    def choose(self, logits: Tensor, slots: Sequence[int]) -> Tensor:
        """Choose a token for each row of logits, (rows, vocabulary), of the replies in these slots: (rows,) of int64.

        A row with NaN gives -1. Does not wait for a CUDA device. Leaves the logits as they are.
        """
        tokens = torch.empty(len(slots), dtype=torch.int64, device=self._device)
        for group in self._rows_of(tuple(slots)).groups:
            drawn = _choose(self._scores(logits, group), group).squeeze(1)
            tokens[group.index] = drawn
            if group.changes is not None:
                self._remember(group.slots, group.changes, drawn.clamp(min=0))
        return tokens

    @torch.inference_mode()
    def feed(self, logits: Tensor, slots: Sequence[int]) -> Tensor:
        """Choose as `choose` does, and leave the tokens in `last` for the next step."""
        tokens = self.choose(logits, slots)
        self.last.index_copy_(0, self._rows_of(tuple(slots)).fed_from, tokens.clamp(min=0))
        return tokens

    def _rows_of(self, slots: tuple[int, ...]) -> _Rows:
        if self._rows is None or self._rows.slots != slots:
            self._rows = _Rows(
                slots=slots,
                groups=[self._group(way, places, slots) for way, places in self._parts(slots)],
                fed_from=sent(self._shape[0] - 1 - torch.tensor(slots), self._device),
            )
        return self._rows

    def _parts(self, slots: Sequence[int]) -> list[tuple[SamplingMethod, list[int]]]:
        """Group the rows by way, and by whether their logits are changed.

        Of rows that are drawn without a shortlist, a group has only as many as fit into the cache.
        """
        ways: dict[tuple[SamplingMethod, bool], list[int]] = {}
        for place, slot in enumerate(slots):
            state = self._states[slot]
            ways.setdefault((state.way, state.changes_logits), []).append(place)
        parts = []
        for (way, _), places in ways.items():
            at_once = len(places) if way is SamplingMethod.SHORTLIST else self._at_once
            parts += [(way, places[first : first + at_once]) for first in range(0, len(places), at_once)]
        return parts

    def _group(self, way: SamplingMethod, places: list[int], slots: Sequence[int]) -> _Group:
        own = [slots[place] for place in places]
        states = [self._states[slot] for slot in own]
        samplings, device = [state.sampling for state in states], self._device
        top_k = [one.top_k for one in samplings]
        # A rounded mass may reach 1 before all tokens are counted, so a top-p of 1 must be no limit at all.
        top_p = [one.top_p if one.top_p < 1 else math.inf for one in samplings]
        return _Group(
            way=way,
            index=_index(places, device),
            slots=own,
            randoms=[state.random for state in states],
            temperature=_column([one.temperature for one in samplings], device),
            top_p=_column_unless(math.inf, top_p, device),
            top_k=top_k,
            top_ks=_column(top_k, device),
            min_p=_column_unless(0.0, [one.min_p for one in samplings], device),
            changes=self._changes(own, states) if states[0].changes_logits else None,
        )

    def _scores(self, logits: Tensor, group: _Group) -> Tensor:
        """Return a group's changed scores, (rows, vocabulary) of float32, to be overwritten."""
        shape = len(group.slots), logits.shape[1]
        if self._room.numel() < math.prod(
            shape
        ):  # Kept: megabytes that are new each step are slow to write to.
            self._room = torch.empty(math.prod(shape), device=self._device)
        scores = self._room[: math.prod(shape)].view(shape).copy_(logits[group.index])
        return scores if group.changes is None else self._changed(scores, group.changes)

    def _changes(self, slots: Sequence[int], states: Sequence[SamplerState]) -> LogitsChanges:
        """Return the changes for the rows of these slots."""
        samplings, device = [state.sampling for state in states], self._device
        return LogitsChanges(
            slots=sent(torch.tensor(list(slots)), device),
            penalty=_column_unless(1.0, [one.repetition_penalty for one in samplings], device),
            presence=_column_unless(0.0, [one.presence_penalty for one in samplings], device),
            frequency=_column_unless(0.0, [one.frequency_penalty for one in samplings], device),
            bias=_biases([one.logit_bias for one in samplings], device),
            may_not_end=_column_unless(False, [state.may_not_end for state in states], device),
            guides=tuple((row, state.guide) for row, state in enumerate(states) if state.guide is not None),
        )

    def _changed(self, scores: Tensor, changes: LogitsChanges) -> Tensor:
        """Return scores, (rows, vocabulary) of float32, with the changes. Overwrites `scores`; does not wait for the device.

        Sources: CTRL (Keskar et al. 2019), section 4.1, with transformers' rule; OpenAI's API.
        """
        penalty = changes.penalty
        if penalty is not None and self._seen is not None:
            weighted = torch.where(scores < 0, scores * penalty, scores / penalty)
            scores = torch.where(self._seen[changes.slots] & (penalty != 1.0), weighted, scores)
        if changes.frequency is not None and self._counts is not None:
            scores -= self._counts[changes.slots] * changes.frequency
        if changes.presence is not None and self._counts is not None:
            scores -= (self._counts[changes.slots] > 0) * changes.presence
        if changes.bias is not None:
            scores.scatter_add_(1, *changes.bias)
        if changes.may_not_end is not None and self._ends is not None:
            ends = scores.index_select(1, self._ends).masked_fill(changes.may_not_end, -torch.inf)
            scores.index_copy_(1, self._ends, ends)
        masks = [guide.mask for _, guide in changes.guides if guide.mask is not None]
        if not masks:
            return scores
        packed = sent(torch.stack(masks), self._device)
        if len(masks) == len(scores):
            return masked(scores, packed)
        rows = [row for row, guide in changes.guides if guide.mask is not None]
        index = sent(torch.tensor(rows), self._device)
        return scores.index_copy_(0, index, masked(scores.index_select(0, index), packed))

    def _remember(self, slots: Sequence[int], changes: LogitsChanges, tokens: Tensor) -> None:
        """Count tokens for the penalties. A row without a token ends now, so what is noted for it is never read."""
        if changes.penalty is not None and self._seen is not None:
            # An assignment would send the value from the host; this one is made on the device.
            self._seen.index_put_((changes.slots, tokens), torch.ones_like(tokens, dtype=torch.bool))
        if self._counts is not None and (changes.presence is not None or changes.frequency is not None):
            ones = torch.ones_like(tokens, dtype=torch.int32)
            self._counts.index_put_((changes.slots, tokens), ones, accumulate=True)
        states = [self._states[slot] for slot in slots]
        before = [state.may_not_end for state in states]
        for state in states:
            state.generated += 1
        if [state.may_not_end for state in states] != before:
            self._rows = None  # some reply may end from now on

    def _table(self, table: Tensor | None, dtype: torch.dtype) -> Tensor:
        return torch.zeros(self._shape, dtype=dtype, device=self._device) if table is None else table


@torch.inference_mode()
def scores_of(
    logits: Tensor, slots: Sequence[int], tokens: Sequence[int | None], tops: Mapping[int, int]
) -> dict[int, ScoredToken]:
    """Return the scores of tokens chosen from logits, (rows, vocabulary), by slot, for the slots that ask.

    `tops`: how many likeliest tokens each slot that asks gets. Waits for the device if any slot asks. Leaves the logits as
    they are.
    """
    requested = [
        (place, slot, token)
        for place, (slot, token) in enumerate(zip(slots, tokens, strict=True))
        if token is not None and slot in tops
    ]
    if not requested:
        return {}
    places, asking, chosen = zip(*requested, strict=True)
    rows = logits if len(places) == len(logits) else logits[list(places)]
    most = min(max(tops[slot] for slot in asking), logits.shape[1])
    own, likeliest, ids = _look(rows.float(), chosen, most)
    return {
        slot: ScoredToken(
            chosen[row], own[row], list(zip(ids[row], likeliest[row], strict=True))[: tops[slot]]
        )
        for row, slot in enumerate(asking)
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


@dataclass(frozen=True, slots=True)
class _Group:
    """The rows of a step that are drawn in one way. Their limits are columns, (rows, 1)."""

    way: SamplingMethod
    index: slice | Tensor
    """Where the rows are in the step: a slice, which copies nothing, if they are neighbours."""
    slots: list[int]
    randoms: list[Random]
    temperature: Tensor
    top_p: Tensor | None
    """Infinite for a row without a nucleus; None if no row has one."""
    top_k: list[int]
    top_ks: Tensor
    """`top_k` as a column."""
    min_p: Tensor | None
    """None if no row has one."""
    changes: LogitsChanges | None
    """The changes of their logits; None if no row asks for any."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """The groups of a step's rows. They are kept while the rows stay the same, and ask for the same."""

    slots: tuple[int, ...]
    groups: list[_Group]
    fed_from: Tensor
    """The place in `last` where each row's token is left for the next step."""


def _index(places: list[int], device: torch.device) -> slice | Tensor:
    between = slice(places[0], places[-1] + 1)
    whole = between.stop - between.start == len(places)
    return between if whole else sent(torch.tensor(places), device)


def _column(values: Sequence[float], device: torch.device) -> Tensor:
    return sent(torch.tensor(values).unsqueeze(1), device)


def _column_unless(neutral: float, values: Sequence[float], device: torch.device) -> Tensor | None:
    """Return values as a column; None if all of them are neutral."""
    return None if all(value == neutral for value in values) else _column(values, device)


def _biases(
    biases: Sequence[Sequence[tuple[int, float]]], device: torch.device
) -> tuple[Tensor, Tensor] | None:
    longest = max(map(len, biases))
    if not longest:
        return None
    rows = [[*bias, *[(0, 0.0)] * (longest - len(bias))] for bias in biases]
    ids = torch.tensor([[token for token, _ in row] for row in rows])
    values = torch.tensor([[value for _, value in row] for row in rows], dtype=torch.float32)
    return sent(ids, device), sent(values, device)


def _choose(scores: Tensor, group: _Group) -> Tensor:
    """Choose tokens, (rows, 1), with -1 in a row with NaN. Overwrites the scores. Does not wait for a CUDA device."""
    match group.way:
        case SamplingMethod.LIKELIEST:
            best, tokens = likeliest(scores)
            return tokens.masked_fill_(~best.isfinite(), -1)
        case SamplingMethod.SHORTLIST:
            tokens, usable = _from_shortlist(scores, group)
            return tokens.masked_fill_(~usable, -1)
        case SamplingMethod.WHOLE:
            scaled = _without_tail(scores.div_(group.temperature), group.top_k)
            top_p = group.top_p
            if group.min_p is not None:
                weights = _without_unlikely(scaled.softmax(dim=-1), group.min_p)
                # top-p is a share of the mass before min-p, so it is a larger share of the mass that is left.
                top_p = None if top_p is None else top_p / weights.sum(dim=-1, keepdim=True)
                scaled = weights.log()
            return draw(scaled, top_p, group.randoms)
        case _:
            assert_never(group.way)


def _from_shortlist(scores: Tensor, group: _Group) -> tuple[Tensor, Tensor]:
    """Draw each row from its likeliest tokens. Returns the tokens, and whether they are usable, both (rows, 1)."""
    longest = min(max(group.top_k), scores.shape[1])
    largest, ids = scores.topk(longest)
    if min(group.top_k) < longest:
        place = torch.arange(longest, device=scores.device)
        largest = largest.masked_fill(place >= group.top_ks, -torch.inf)
    weights = (largest / group.temperature).softmax(dim=-1)
    if group.top_p is not None:
        weights = cut_ranked(weights, group.top_p)
    weights = _without_unlikely(weights, group.min_p)
    index, usable = invert(weights, group.randoms)
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


@dataclass(frozen=True, slots=True)
class LogitsChanges:
    """The changes of some rows. Tensors have a row for each, (rows, 1) or (rows, some); None if no row asks for that change."""

    slots: Tensor
    penalty: Tensor | None
    presence: Tensor | None
    frequency: Tensor | None
    bias: tuple[Tensor, Tensor] | None
    """Token ids and what is added to their logits. Rows with fewer biases than others add 0 to token 0."""
    may_not_end: Tensor | None
    guides: tuple[tuple[int, Guide], ...]
    """The guides, each with the place of its row."""


BELOW_ONE = 1 - 2**-24
"""The largest float32 below 1. A level has to stay below its row's mass even when it is rounded."""


def likeliest(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return what `scores.max(dim=-1, keepdim=True)` does, (rows, 1) each: the first of equal ones, NaN for a row that has one.

    On a CPU numpy finds them, for 32 rows of 32,000 in a seventh of torch's time.
    """
    if scores.device.type != "cpu" or scores.dtype is not torch.float32:
        return scores.max(dim=-1, keepdim=True)
    places = torch.from_numpy(scores.numpy().argmax(axis=-1)).unsqueeze(1)
    return scores.gather(1, places), places


def draw(scores: Tensor, top_p: Tensor | None, randoms: Sequence[Random]) -> Tensor:
    """Draw a token of each row of scores, (rows, vocabulary) of float32, from its nucleus: (rows, 1), -1 in a row with NaN.

    `top_p`, (rows, 1) and above 0: infinite for a row without a nucleus; None if no row has one. What a row takes from its
    own Random does not depend on its neighbors. Overwrites the scores. Does not wait for a CUDA device.
    """
    if scores.device.type == "cuda":
        return operators.draw(scores, top_p, randoms)
    if cpu_kernels.serve(scores):
        return cpu_kernels.draw(scores, top_p, randoms)
    return draw_weighted(scores.softmax(dim=-1), top_p, randoms)


def draw_weighted(weights: Tensor, top_p: Tensor | None, randoms: Sequence[Random]) -> Tensor:
    """Draw a token of each row of `weights`, (rows, vocabulary) and none negative, from its nucleus: (rows, 1).

    `top_p` as in `draw`, in the unit of the weights. Each row takes a number from its own Random, and one more for each
    time that it is drawn again. A row with NaN gives -1. Overwrites the weights. Waits for the device once a round.
    """
    places, usable = invert(weights, randoms)
    tokens = places.masked_fill(~usable, -1)
    if top_p is None:
        return tokens
    own = weights.gather(1, places)
    # In units of the drawn token's weight the likelier ones are above 1. A mask of the row's size would cost more.
    likelier, top_p = torch.threshold_(weights.div_(own), 1.0, 0.0), top_p / own
    rejected = (likelier.sum(dim=-1, keepdim=True) >= top_p).squeeze(1)
    if again := rejected.nonzero().flatten().tolist():
        tokens[again] = draw_weighted(likelier[again], top_p[again], [randoms[row] for row in again])
    return tokens


def cut_ranked(weights: Tensor, top_p: Tensor) -> Tensor:
    """Return rows of descending weights, (rows, tokens), with 0 outside of each row's nucleus."""
    return weights.masked_fill(weights.cumsum(dim=-1) - weights >= top_p, 0.0)


def invert(weights: Tensor, randoms: Sequence[Random]) -> tuple[Tensor, Tensor]:
    """Take a random number for each row, and find the place where the row's cumulated weights pass it.

    Returns the places, and whether they are usable (never in a row with NaN); both (rows, 1).
    """
    cumulated = weights.cumsum(dim=-1)
    total = cumulated[:, -1:]
    numbers = [[min(random.random(), BELOW_ONE)] for random in randoms]
    levels = sent(torch.tensor(numbers, dtype=total.dtype), total.device)
    places = torch.searchsorted(cumulated, levels * total, right=True)
    return places.clamp_(max=weights.shape[1] - 1), total > 0
