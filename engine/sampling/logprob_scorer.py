"""How likely the chosen tokens were: log-probabilities of the model's own distribution, for replies that ask for them.

They are computed before penalties, temperature and limits, so that numbers of different requests can be compared.
Rows that do not ask cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.text.reply_logprobs import ScoredToken

VERY_UNLIKELY = -9999.0
"""OpenAI's value for a probability of 0, whose logarithm JSON can't write."""


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
