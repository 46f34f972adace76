"""Which way of attending is taken: the faster one that is right."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from engine.attention.backend import AttentionParams
from engine.attention.cuda.attention import Cuda, Triton, padded_rows
from engine.attention.cuda.operators import AttentionInputs
from engine.attention.cuda.varlen import HAS_VARLEN, Varlen
from engine.cache.paged_cache import LayerPages
from tests.engine.attention.paged import Case, Shape, attended_by_hand, paged

PLAIN = AttentionParams(0.3)


class ByHand:
    """Another way: attention in plain torch, of the one case that it was made for."""

    name = "by hand"

    def __init__(self, case: Case, terms: AttentionParams = PLAIN) -> None:
        self.case, self.terms, self.calls = case, terms, 0

    def serves(self, inputs: AttentionInputs) -> bool:
        return inputs.terms == self.terms

    def decode(self, inputs: AttentionInputs) -> None:
        self.calls += 1
        inputs.out.copy_(attended_by_hand(self.case, self.terms))

    def prompts(self, inputs: AttentionInputs) -> None:
        self.decode(inputs)


class Wrong(ByHand):
    def decode(self, inputs: AttentionInputs) -> None:
        super().decode(inputs)
        inputs.out[0, 0, 0] = torch.nan


class Refused(ByHand):
    def decode(self, inputs: AttentionInputs) -> None:
        raise RuntimeError("no kernel image is available for execution on the device")


class Changed(ByHand):
    def decode(self, inputs: AttentionInputs) -> None:
        raise TypeError("got an unexpected keyword argument 'block_table'")


def case_of(*queries: int) -> Case:
    return paged(Shape(4, 2, 16), lengths=(20,) * len(queries), queries=queries, page=16)


def timed(*seconds: float) -> Callable[[Callable[[], None]], float]:
    """A device on which ours takes the first time, and another way the next."""
    left = list(seconds)
    return lambda _call: left.pop(0)


def trying(way: ByHand, measure: Callable[[Callable[[], None]], float]) -> Cuda:
    """A backend that has measured a step like the way's own."""
    backend = Cuda(processors=2, others=(way,))
    backend.measure = measure
    backend.attend(way.case.queries, way.case.stored, way.case.step, PLAIN)
    backend.measure = None
    return backend


def chosen(way: ByHand, measure: Callable[[Callable[[], None]], float]) -> bool:
    """Whether a step like the way's own is attended to by it."""
    backend = trying(way, measure)
    before = way.calls
    out = backend.attend(way.case.queries, way.case.stored, way.case.step, PLAIN)
    torch.testing.assert_close(out, attended_by_hand(way.case, PLAIN), rtol=1e-4, atol=1e-5)
    return way.calls > before


@pytest.mark.parametrize("queries", [(1, 1), (5, 3)], ids=["replies", "prompts"])
def test_the_faster_way_is_taken(queries: tuple[int, ...]) -> None:
    case = case_of(*queries)
    assert chosen(ByHand(case), timed(2.0, 1.0))
    assert not chosen(ByHand(case), timed(1.0, 2.0))


def test_a_choice_holds_for_its_rows_and_terms_alone() -> None:
    way = ByHand(case_of(1, 1))
    backend = trying(way, timed(2.0, 1.0))
    inputs = AttentionInputs(way.case.queries, way.case.stored, way.case.step, PLAIN, way.case.queries)
    assert backend._way(inputs, 2) is way
    assert isinstance(backend._way(inputs, 3), Triton)
    assert isinstance(backend._way(replace(inputs, terms=AttentionParams(0.3, window=5)), 2), Triton)


def test_rows_are_rounded_up_to_few_numbers() -> None:
    assert [padded_rows(rows) for rows in (0, 1, 3, 8, 9, 16, 17, 256)] == [0, 1, 4, 8, 16, 16, 32, 256]
    assert len({padded_rows(rows) for rows in range(1, 257)}) == 20


@pytest.mark.parametrize(
    ("kind", "why"), [(Wrong, "apart"), (Refused, "no kernel image"), (Changed, "block_table")]
)
def test_a_way_that_is_wrong_or_refused_is_not_taken_and_the_log_says_so(
    kind: type[ByHand], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert not chosen(kind(case_of(1, 1)), timed(2.0, 1.0))
    assert why in caplog.text


def test_a_way_that_does_not_serve_a_layer_is_not_tried() -> None:
    assert not chosen(ByHand(case_of(1, 1), AttentionParams(0.5)), timed(2.0))


def test_torchs_own_attention_serves_what_it_has_kernels_for() -> None:
    if not HAS_VARLEN:
        pytest.skip("NOT TESTED: this torch has no attention over block tables")
    pages = torch.zeros(2, 256, 2, 64, dtype=torch.bfloat16)
    case = case_of(1, 1)
    inputs = AttentionInputs(case.queries, LayerPages(pages, pages), case.step, PLAIN, case.queries)
    assert Varlen().serves(inputs)
    assert Varlen().serves(replace(inputs, terms=AttentionParams(0.3, window=7)))
    for terms in (AttentionParams(0.3, chunk=8), AttentionParams(0.3, softcap=1.0)):
        assert not Varlen().serves(replace(inputs, terms=terms))
    assert not Varlen().serves(replace(inputs, sinks=torch.zeros(4)))
    for other in (pages.float(), pages[:, :16], torch.zeros(2, 256, 2, 60, dtype=torch.bfloat16)):
        assert not Varlen().serves(replace(inputs, layer=LayerPages(other, other)))
    assert not Varlen().serves(replace(inputs, layer=LayerPages(pages, pages[..., :32])))
