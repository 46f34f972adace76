"""A Triton kernel that draws a token of each row's nucleus in one launch, by the rule of `engine.sampling.nucleus`.

Each row has a program, which draws again by itself as often as it has to, so the host does not wait.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
STEP_OF_LEVELS: tl.constexpr = tl.constexpr(1 / 16777216)


@triton.jit
def _weights(row, start, vocabulary, highest, limit, BLOCK: tl.constexpr):
    """Return the weights of a block's tokens that are strictly likelier than the limit. The row's likeliest one has 1."""
    place = start + tl.arange(0, BLOCK)
    scores = tl.load(row + place, mask=place < vocabulary, other=-float("inf"))
    return tl.where(scores > limit, tl.exp2((scores - highest) * LOG2_E), 0.0)


@triton.jit
def draw_rows(
    scores, top_ps, levels, tokens, scores_row, vocabulary, ROUNDS: tl.constexpr, BLOCK: tl.constexpr
):
    """Draw a token of each row of scores, whose exponentials are weights. A row with NaN gives -1."""
    number = tl.program_id(0)
    row = scores + number.to(tl.int64) * scores_row
    top_p = tl.load(top_ps + number)
    tops = tl.full([BLOCK], -float("inf"), tl.float32)
    broken = tl.zeros([BLOCK], tl.int32)
    for start in range(0, vocabulary, BLOCK):
        place = start + tl.arange(0, BLOCK)
        some = tl.load(row + place, mask=place < vocabulary, other=-float("inf"))
        tops = tl.maximum(tops, some)
        broken += tl.where(some < float("inf"), 0, 1)  # NaN is not below it either
    highest = tl.max(tops, 0)
    usable = (tl.sum(broken, 0) == 0) & (highest > -float("inf"))
    highest = tl.where(usable, highest, 0.0)
    total = 0.0
    for start in range(0, vocabulary, BLOCK):
        total += tl.sum(_weights(row, start, vocabulary, highest, -float("inf"), BLOCK), 0)
    limit, mass = -float("inf"), total
    drawn, turn = -1, 0
    while usable & (drawn < 0) & (turn < ROUNDS):
        # Levels are whole numbers of 24 bits: below 1, whatever they are multiplied by.
        level = (tl.load(levels + number * ROUNDS + turn) & 0xFFFFFF).to(tl.float32) * STEP_OF_LEVELS * mass
        found, passed = -1, 0.0
        for start in range(0, vocabulary, BLOCK):
            weights = _weights(row, start, vocabulary, highest, limit, BLOCK)
            here = tl.sum(weights, 0)
            if here > 0.0:
                if (found < 0) | (passed <= level):
                    # If rounding leaves no token beyond the level, the last one with a weight is taken.
                    place = start + tl.arange(0, BLOCK)
                    beyond = (passed + tl.cumsum(weights, 0) > level) & (weights > 0.0)
                    last = tl.max(tl.where(weights > 0.0, place, -1), 0)
                    found = tl.minimum(tl.min(tl.where(beyond, place, vocabulary), 0), last)
                passed += here
        own = tl.load(row + found)
        likelier = 0.0
        for start in range(0, vocabulary, BLOCK):
            likelier += tl.sum(_weights(row, start, vocabulary, highest, own, BLOCK), 0)
        if (likelier < top_p * total) | (turn == ROUNDS - 1):
            drawn = found
        limit, mass, turn = own, likelier, turn + 1
    tl.store(tokens + number, drawn)
