"""The changes of logits that requests ask for: masks, biases, penalties, shortest lengths.

Where a grammar leaves few tokens, only these are read on a CPU, instead of the whole vocabulary. The number of a row's
columns depends only on the row, so its sums don't depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.execution.guide import FEW, Guide, masked
from engine.model.devices import sent
from engine.text.prepared_request import SamplingParams

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


@dataclass(frozen=True, slots=True)
class LogitsParams:
    """The changes that one reply asks for. `generated`: how many tokens it has so far."""

    sampling: SamplingParams
    guide: Guide | None
    generated: int

    @property
    def may_not_end(self) -> bool:
        """Whether the reply is too short to end. Guides check that themselves."""
        return self.guide is None and self.generated < self.sampling.min_tokens

    @property
    def counts(self) -> bool:
        """Whether it matters how often each token has come."""
        return bool(self.sampling.presence_penalty or self.sampling.frequency_penalty)

    @property
    def weighs(self) -> bool:
        """Whether some tokens become likelier or less likely than the model computed."""
        return bool(self.sampling.repetition_penalty != 1.0 or self.sampling.logit_bias or self.counts)

    @property
    def is_none(self) -> bool:
        """Whether the logits stay as they are."""
        return not (self.weighs or self.guide or self.may_not_end)


@dataclass(frozen=True, slots=True)
class LogitsChanges:
    """The changes of some rows. Tensors have a row for each, (rows, 1) or (rows, some); None if no row asks for it."""

    slots: Tensor
    penalty: Tensor | None
    presence: Tensor | None
    frequency: Tensor | None
    bias: tuple[Tensor, Tensor] | None
    """Token ids and what is added to their logits. Rows with fewer biases than others add 0 to token 0."""
    may_not_end: Tensor | None
    guides: tuple[tuple[int, Guide], ...]
    """The guides, each with the place of its row."""

    @property
    def are_masks(self) -> bool:
        """Whether only grammars change the rows."""
        return (self.penalty, self.presence, self.frequency, self.bias, self.may_not_end) == 5 * (None,)


class LogitsProcessors:
    """Holds the wishes of up to `slots` replies, and the tokens that their penalties count."""

    def __init__(self, *, slots: int, vocabulary: int, device: torch.device, ends: Collection[int]) -> None:
        self._shape = slots, vocabulary
        self._device = device
        self._ends = sent(torch.tensor(sorted(ends)), device) if ends else None
        self._params: dict[int, LogitsParams] = {}
        self._seen: Tensor | None = None
        self._counts: Tensor | None = None

    def join(self, slot: int, params: LogitsParams, tokens: Sequence[int]) -> None:
        """Take a reply into a slot, with all its tokens, prompt included. The last `params.generated` are its own."""
        self._params[slot] = params
        if params.sampling.repetition_penalty != 1.0:
            self._seen = self._table(self._seen, torch.bool)
            self._seen[slot].zero_()
            self._seen[slot].index_fill_(0, sent(torch.tensor(list(tokens)), self._device), value=True)
        if params.counts:
            self._counts = self._table(self._counts, torch.int32)
            self._counts[slot].zero_()
            own = sent(
                torch.tensor(list(tokens[len(tokens) - params.generated :]), dtype=torch.int64), self._device
            )
            self._counts[slot].index_add_(0, own, torch.ones_like(own, dtype=torch.int32))

    def is_changed(self, slot: int) -> bool:
        """Whether a slot's logits are to be changed now."""
        return not self._params[slot].is_none

    def guide_alone(self, slot: int) -> Guide | None:
        """Return the guide of a slot whose logits nothing else changes."""
        params = self._params.get(slot)
        return None if params is None or params.weighs else params.guide

    def changes(self, slots: Sequence[int]) -> LogitsChanges | None:
        """Return the changes for the rows of these slots; None if there are none."""
        slot_params = [self._params[slot] for slot in slots]
        if all(params.is_none for params in slot_params):
            return None
        samplings = [params.sampling for params in slot_params]
        return LogitsChanges(
            slots=sent(torch.tensor(list(slots)), self._device),
            penalty=self._column([one.repetition_penalty for one in samplings], neutral=1.0),
            presence=self._column([one.presence_penalty for one in samplings]),
            frequency=self._column([one.frequency_penalty for one in samplings]),
            bias=self._biases([one.logit_bias for one in samplings]),
            may_not_end=self._column([params.may_not_end for params in slot_params]),
            guides=tuple(
                (row, params.guide) for row, params in enumerate(slot_params) if params.guide is not None
            ),
        )

    def changed(self, scores: Tensor, changes: LogitsChanges) -> Tensor:
        """Return rows of scores, (rows, vocabulary) of float32, with the changes. Does not wait for the device."""
        if changes.are_masks and sum(guide.mask is not None for _, guide in changes.guides) == len(scores):
            return self._guided(scores, changes.guides)  # which returns a new tensor
        scores = self._penalised(scores.clone(), changes)
        if changes.bias is not None:
            scores.scatter_add_(1, *changes.bias)
        if changes.may_not_end is not None and self._ends is not None:
            ends = scores.index_select(1, self._ends).masked_fill(changes.may_not_end, -torch.inf)
            scores.index_copy_(1, self._ends, ends)
        return self._guided(scores, changes.guides)

    def remember(self, slots: Sequence[int], changes: LogitsChanges, tokens: Tensor) -> bool:
        """Note the tokens, (rows,), that were drawn. Returns whether some reply asks for other changes from now on."""
        if changes.penalty is not None and self._seen is not None:
            # An assignment would send the value from the host; this one is made on the device.
            self._seen.index_put_((changes.slots, tokens), torch.ones_like(tokens, dtype=torch.bool))
        if self._counts is not None and (changes.presence is not None or changes.frequency is not None):
            ones = torch.ones_like(tokens, dtype=torch.int32)
            self._counts.index_put_((changes.slots, tokens), ones, accumulate=True)
        return sum(map(self._count_generated, slots)) > 0

    def _count_generated(self, slot: int) -> bool:
        """Count a token. Returns whether the reply may end from now on, but might not before."""
        params = self._params[slot]
        more = self._params[slot] = LogitsParams(params.sampling, params.guide, params.generated + 1)
        return more.may_not_end != params.may_not_end

    def _penalised(self, scores: Tensor, changes: LogitsChanges) -> Tensor:
        """Apply the penalties. Sources: CTRL (Keskar et al. 2019), section 4.1, with transformers' rule; OpenAI's API."""
        penalty = changes.penalty
        if penalty is not None and self._seen is not None:
            weighted = torch.where(scores < 0, scores * penalty, scores / penalty)
            scores = torch.where(self._seen[changes.slots] & (penalty != 1.0), weighted, scores)
        if self._counts is None:
            return scores
        if changes.frequency is not None:
            scores -= self._counts[changes.slots] * changes.frequency
        if changes.presence is not None:
            scores -= (self._counts[changes.slots] > 0) * changes.presence
        return scores

    def _guided(self, scores: Tensor, guides: Sequence[tuple[int, Guide]]) -> Tensor:
        masks = [guide.mask for _, guide in guides if guide.mask is not None]
        if not masks:
            return scores
        packed = sent(torch.stack(masks), self._device)
        if len(masks) == len(scores):
            return masked(scores, packed)
        rows = sent(torch.tensor([row for row, guide in guides if guide.mask is not None]), self._device)
        return scores.index_copy_(0, rows, masked(scores.index_select(0, rows), packed))

    def _table(self, table: Tensor | None, dtype: torch.dtype) -> Tensor:
        return torch.zeros(self._shape, dtype=dtype, device=self._device) if table is None else table

    def _column(self, values: list[float] | list[bool], neutral: float = 0.0) -> Tensor | None:
        if all(value == neutral for value in values):
            return None
        return sent(torch.tensor(values).unsqueeze(1), self._device)

    def _biases(self, biases: Sequence[Sequence[tuple[int, float]]]) -> tuple[Tensor, Tensor] | None:
        longest = max(map(len, biases))
        if not longest:
            return None
        rows = [[*bias, *[(0, 0.0)] * (longest - len(bias))] for bias in biases]
        ids = torch.tensor([[token for token, _ in row] for row in rows])
        values = torch.tensor([[value for _, value in row] for row in rows], dtype=torch.float32)
        return sent(ids, self._device), sent(values, self._device)
