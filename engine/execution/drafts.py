"""How much of a draft is what greedy decoding says: the longest beginning whose tokens are each the likeliest one.

Speculative decoding (Leviathan et al. 2023) where nothing is drawn: what a draft had right is kept, and the first token that it
had not is chosen behind that. So a reply is the same with any draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, takewhile

import torch
from torch import Tensor

from engine.cache.layout import Span
from engine.sampling.device_draw import sent
from engine.sampling.likeliest import likeliest


def checked(spans: Sequence[Span], logits: Tensor) -> tuple[Tensor, dict[int, int]]:
    """Compare the drafts of spans with the logits that were computed for them, and wait for that.

    Returns the logits that each span that samples goes on from, (some, vocabulary), and how many tokens of each draft
    were right, by slots. Raises RuntimeError where there are other logits than those.
    """
    sampled = [span for span in spans if span.samples]
    *starts, end = accumulate((1 + span.drafted for span in sampled), initial=0)
    if len(logits) != end:
        raise RuntimeError(f"{len(logits)} rows of logits were computed where drafts take {end}")
    drafted = zip(sampled, starts, strict=True)
    places = [start + place for span, start in drafted for place in range(span.drafted)]
    _, tokens = likeliest(_rows(logits, places).float())
    predicted = iter(tokens.squeeze(1).tolist())
    right = {span.slot: _right(span, [next(predicted) for _ in range(span.drafted)]) for span in sampled}
    rows = [start + right[span.slot] for span, start in zip(sampled, starts, strict=True)]
    return _rows(logits, rows), right


def _right(span: Span, predicted: Sequence[int]) -> int:
    draft = span.tokens[len(span.tokens) - span.drafted :]
    pairs = zip(draft, predicted, strict=True)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _rows(logits: Tensor, places: Sequence[int]) -> Tensor:
    return logits[sent(torch.tensor(places), logits.device)]
