"""The models that are measured: shapes alone, for their weights are drawn at random. Knows no torch."""

from __future__ import annotations

import msgspec

WINDOW = 8192


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """A Llama of random weights. `window` counts positions, prompt and reply together.

    `logit_spread` is the standard deviation of the logits. At 3 and temperature 0.8, top-p 0.95 keeps some dozens of
    tokens, as it does in a trained model; freshly drawn weights would give 0.3, and a nucleus of the whole vocabulary.
    """

    name: str
    hidden: int
    layers: int
    heads: int
    intermediate: int
    vocabulary: int
    window: int = WINDOW
    logit_spread: float = 3.0


TINY = Shape(name="tiny", hidden=256, layers=6, heads=4, intermediate=688, vocabulary=2048)
SMALL = Shape(name="small", hidden=768, layers=12, heads=12, intermediate=2048, vocabulary=8192)
SPECK = Shape(name="speck", hidden=64, layers=2, heads=2, intermediate=128, vocabulary=512, window=128)
"""For what needs many turns and no speed."""

SHAPES = {shape.name: shape for shape in (TINY, SMALL, SPECK)}
