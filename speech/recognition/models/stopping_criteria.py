"""Ends rows of a batch within a step: those that nobody waits for, too long ones, and those with invalid numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

from speech.recognition.models.interface import CancelCheck


class BatchStops:
    """The checks of `generate` between its steps."""

    def __init__(self, watch: CancelCheck, rows: int, most: Sequence[int] | None = None) -> None:
        """`most`: tokens of each row; None: the model's limit."""
        self.lost = [False] * rows
        """Rows with scores that are invalid numbers."""
        self.prompt = 0
        """Tokens before the first step."""
        self._watch = watch
        self._most = most

    @property
    def processors(self) -> LogitsProcessorList:
        """For `logits_processor`: checks the scores without changing them."""
        return LogitsProcessorList([_ScoreCheck(self)])

    @property
    def criteria(self) -> StoppingCriteriaList:
        """For `stopping_criteria`."""
        return StoppingCriteriaList([_StopCheck(self)])

    def check_scores(self, input_ids: torch.Tensor, scores: torch.Tensor) -> None:
        """Note rows with invalid numbers."""
        self.prompt = self.prompt or input_ids.shape[1]
        wrong = torch.isnan(scores).any(dim=-1).tolist()
        self.lost = [before or now for before, now in zip(self.lost, wrong, strict=True)]

    def over(self, input_ids: torch.Tensor) -> list[bool]:
        """Return which rows end here."""
        over = [lost or gone for lost, gone in zip(self.lost, self._watch(), strict=True)]
        if self._most is None:
            return over
        made = input_ids.shape[1] - self.prompt
        return [done or made >= most for done, most in zip(over, self._most, strict=True)]


class _ScoreCheck(LogitsProcessor):
    def __init__(self, stops: BatchStops) -> None:
        self._stops = stops

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self._stops.check_scores(input_ids, scores)
        return scores


class _StopCheck(StoppingCriteria):
    def __init__(self, stops: BatchStops) -> None:
        self._stops = stops

    def __call__(self, input_ids: torch.Tensor, _scores: torch.Tensor, **_more: object) -> torch.Tensor:
        return torch.tensor(self._stops.over(input_ids), device=input_ids.device)
