"""The kernel that draws on CPUs: what torch's operations draw, of the same random numbers."""

from __future__ import annotations

from random import Random
from typing import cast

import msgspec
import pytest
import torch
from torch import Tensor

from engine.execution import sampler as samplers
from engine.execution.guide import Guide, mask_of, masked
from engine.execution.sampler import Sampler, SamplerState
from engine.model.cpu import kernels as cpu_kernels
from engine.text.reply_text import SamplingParams

pytestmark = pytest.mark.skipif(bool(cpu_kernels.trouble()), reason="no kernels were compiled")

SIZES = (1, 31, 32, 33, 4096, 4097, 8192, 9001)
"""Tokens of a vocabulary: about the lengths that the kernel works on at a time."""
PLAIN = SamplingParams(
    max_new_tokens=9,
    do_sample=True,
    temperature=0.8,
    top_p=0.9,
    top_k=0,
    repetition_penalty=1.0,
    seed=None,
    max_time_s=None,
)
GREEDY = msgspec.structs.replace(PLAIN, do_sample=False)


def logits(rows: int, size: int, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return (3 * torch.randn(rows, size, generator=torch.Generator().manual_seed(seed))).to(dtype)


def masks(rows: int, size: int, *, share: float = 0.7) -> list[Tensor | None]:
    """A mask for every other row, with at least one token."""
    rng = Random(size)
    sets = [[0, *(token for token in range(size) if rng.random() < share)] for _ in range(rows)]
    return [mask_of(tokens, size) if row % 2 else None for row, tokens in enumerate(sets)]


def without(scores: Tensor, left_out: list[Tensor | None]) -> Tensor:
    """Scores without what masks leave out."""
    pairs = zip(scores.float().split(1), left_out, strict=True)
    return torch.cat([row if mask is None else masked(row, mask.unsqueeze(0)) for row, mask in pairs])


def drawn(
    scores: Tensor, how: SamplingParams, given: list[Tensor | None], *, seed: int = 7
) -> list[int | None]:
    rows = len(scores)
    drawing, temperature = samplers.CpuDrawer(), torch.full((rows, 1), how.temperature)
    if not how.do_sample:
        return drawing.likeliest(scores, range(rows), given)
    randoms = [Random(seed + row) for row in range(rows)]
    top_p = torch.full((rows, 1), how.top_p)
    return drawing.draw(
        scores, range(rows), temperature=temperature, top_p=top_p, masks=given, randoms=randoms
    )


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("how", [PLAIN, GREEDY], ids=["drawn", "likeliest"])
def test_it_takes_what_torch_takes(
    how: SamplingParams, dtype: torch.dtype, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums are rounded otherwise, so one draw of a thousand may be the neighbour."""
    rows = 40
    given, found = masks(rows, size), []
    for seed in range(5):
        scores = logits(rows, size, seed=seed, dtype=dtype)
        found.append(drawn(scores, how, given, seed=1000 * seed))
    monkeypatch.setattr(samplers, "serves", lambda _: False)
    others = 0
    for seed, tokens in enumerate(found):
        scores = without(logits(rows, size, seed=seed, dtype=dtype), given)
        sampler = Sampler(slots=rows, vocabulary=size, device=torch.device("cpu"))
        for row in range(rows):
            sampler.join(row, SamplerState(how, Random(1000 * seed + row)), ())
        expected = sampler.sample(scores, range(rows))
        others += sum(token != other for token, other in zip(tokens, expected, strict=True))
    assert others <= (1 if how.do_sample else 0)


@pytest.mark.parametrize("how", [PLAIN, GREEDY], ids=["drawn", "likeliest"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("place", [0, 4095, 4100, 8999])
def test_a_row_that_holds_no_number_gives_none_and_spoils_no_neighbour(
    how: SamplingParams, bad: float, place: int
) -> None:
    scores, given = logits(3, 9000), masks(3, 9000)
    whole = drawn(scores, how, given)
    scores[0, place] = bad
    assert drawn(scores, how, given) == [None, *whole[1:]]


def test_a_number_that_is_none_spoils_its_row_even_where_a_mask_leaves_it_out() -> None:
    scores = logits(1, 64)
    scores[0, 9] = torch.nan
    assert drawn(scores, PLAIN, [mask_of([1, 2], 64)]) == [None]


@pytest.mark.parametrize("how", [PLAIN, GREEDY], ids=["drawn", "likeliest"])
def test_a_row_of_which_a_mask_leaves_nothing_gives_none(how: SamplingParams) -> None:
    assert drawn(logits(1, 64), how, [mask_of([], 64)]) == [None]


def test_what_the_nucleus_leaves_out_never_comes_and_the_rest_as_often_as_it_weighs() -> None:
    weights = torch.tensor([[0.4, 0.3, 0.2, 0.06, 0.04]])
    rows = 20_000
    scores = weights.log().repeat(rows, 1)
    how = msgspec.structs.replace(PLAIN, temperature=1.0, top_p=0.89)
    counts = torch.bincount(torch.tensor(drawn(scores, how, [None] * rows)), minlength=5) / rows
    assert counts[3:].tolist() == [0, 0]
    torch.testing.assert_close(counts[:3], torch.tensor([4 / 9, 3 / 9, 2 / 9]), atol=0.012, rtol=0)


@pytest.mark.parametrize("level", [0.0, 1 - 2**-24])
def test_the_outermost_levels_never_give_a_token_without_weight(level: float) -> None:
    class Stub(Random):
        def random(self) -> float:
            return level

    scores = torch.full((1, 9000), -torch.inf)
    scores[0, [100, 5000]] = 0.0
    tokens = samplers.CpuDrawer().draw(
        scores, [0], temperature=torch.ones(1, 1), top_p=None, masks=[None], randoms=[Stub()]
    )
    assert tokens == [100 if level == 0 else 5000]


class Masked:
    """What a sampler looks at in a guide."""

    ends = ()

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask


@pytest.mark.parametrize("how", [PLAIN, GREEDY], ids=["drawn", "likeliest"])
def test_each_row_has_its_own_mask(how: SamplingParams) -> None:
    size, rows = 9000, 6
    sampler = Sampler(slots=rows, vocabulary=size, device=torch.device("cpu"))
    own = [set(range(row, size, rows)) for row in range(rows)]
    for row in range(rows):
        guide = cast("Guide", Masked(mask_of(own[row], size)))
        sampler.join(row, SamplerState(how, Random(row), guide), ())
    for seed in range(5):
        tokens = sampler.sample(logits(rows, size, seed=seed, dtype=torch.bfloat16), range(rows))
        assert [token in own[row] for row, token in enumerate(tokens)] == [True] * rows


def test_a_row_is_drawn_by_the_kernel_whatever_its_neighbours_ask_for() -> None:
    """Torch's sums are rounded otherwise, so its text would be another in a batch than alone."""
    requested = [
        PLAIN,
        msgspec.structs.replace(PLAIN, min_p=0.05),
        msgspec.structs.replace(PLAIN, top_k=2000),
    ]
    sampler = Sampler(slots=3, vocabulary=9000, device=torch.device("cpu"))
    for slot, how in enumerate(requested):
        sampler.join(slot, SamplerState(how, Random(slot)), ())
    groups = sampler._rows_of((0, 1, 2)).groups
    assert [(group.slots, group.has_kernel) for group in groups] == [([0], True), ([1, 2], False)]


def test_a_row_that_is_not_there_is_refused() -> None:
    for rows in ([3], [-1, 0]):
        with pytest.raises(ValueError, match="of 3"):
            samplers.CpuDrawer().likeliest(logits(3, 64), rows, [None] * len(rows))


def test_a_mask_that_does_not_cover_the_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match="no bit for each of 65"):
        drawn(logits(1, 65), PLAIN, [mask_of([1], 64)])
