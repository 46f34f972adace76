"""A decode step with a row for every slot gives those that run what they get without it, and touches no one else."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.cache.slot_batch import Span
from engine.cache.slots import SlotCache
from engine.execution.padded_decode import DecodeShape, PaddedBatch, decode_shape, padded_inputs
from engine.execution.runner import Runner
from engine.model.fused_decoder import FusedDecoder, fused_decoder
from tests.engine.model.test_fused_decoder import made
from tests.engine.tiny_models import WINDOW, prompt, served

pytestmark = pytest.mark.usefixtures("cpu_operations")

SLOTS = 5


@pytest.fixture
def decoder() -> FusedDecoder:
    fused = fused_decoder(made("qwen3"))
    assert fused is not None
    return fused


@torch.inference_mode()
def running(decoder: FusedDecoder) -> Runner:
    """Slots 1 and 3 hold prompts, slot 2 something that is not a number, as a reply that failed leaves it."""
    run = Runner(decoder, slots=SLOTS, tokens=WINDOW)
    run.cache = SlotCache(slots=SLOTS, tokens=WINDOW, lazy=False, fixed=True)
    for slot, length in ((1, 30), (3, 9), (2, 4)):
        run.run([Span(slot, 0, prompt(length, slot), samples=False)])
    for layer in run.cache.layers:
        layer.keys[2, :, :4] = torch.nan
    return run


@torch.inference_mode()
def padded(run: Runner, decoder: FusedDecoder, spans: list[Span]) -> torch.Tensor:
    shape = decode_shape(spans, slots=SLOTS, tokens=WINDOW)
    assert shape is not None
    batch = PaddedBatch(padded_inputs(spans, shape, spare=SLOTS), shape, tokens=WINDOW)
    run.cache.begin(batch)
    every = decoder(
        input_ids=batch.input_ids, position_ids=batch.position_ids, past_key_values=run.cache,
        logits_to_keep=0, slots=batch,
    ).logits[0]  # fmt: skip
    assert len(every) == shape.rows
    return every[[span.slot for span in spans]]


def test_those_that_run_get_the_same_logits_and_leave_the_same_behind(decoder: FusedDecoder) -> None:
    plain, other = running(decoder), running(decoder)
    for step in range(3):
        spans = [Span(slot, start + step, [7 + step], samples=True) for slot, start in ((1, 30), (3, 9))]
        torch.testing.assert_close(padded(other, decoder, spans), plain.run(spans), atol=1e-4, rtol=1e-4)
    for one, two in zip(plain.cache.layers, other.cache.layers, strict=True):
        for slot in (0, 1, 3, 4):
            torch.testing.assert_close(one.keys[slot], two.keys[slot], atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(one.values[slot], two.values[slot], atol=1e-4, rtol=1e-4)


def test_slots_with_a_spare_one_stay_where_they_are(decoder: FusedDecoder) -> None:
    run = running(decoder)
    places = [layer.keys.data_ptr() for layer in run.cache.layers]
    run.run([Span(SLOTS - 1, 0, prompt(WINDOW - 1), samples=True)])
    assert [layer.keys.data_ptr() for layer in run.cache.layers] == places
    assert run.cache.layers[0].keys.shape[0] == SLOTS + 1
    assert run.cache.resizes == 0


def test_slots_that_move_are_counted() -> None:
    run = Runner(served("llama").module, slots=2, tokens=WINDOW)
    run.cache = SlotCache(slots=2, tokens=WINDOW, lazy=False)
    run.run([Span(0, 0, [1], samples=False)])
    assert run.cache.resizes == 0
    run.run([Span(1, 0, [1], samples=False)])
    assert run.cache.resizes == len(run.cache.layers)


def test_a_step_with_a_part_of_a_prompt_has_no_such_shape() -> None:
    decoding = Span(0, 5, [1], samples=True)
    assert decode_shape([decoding, Span(1, 0, [1, 2], samples=True)], slots=2, tokens=64) is None
    assert decode_shape([decoding, Span(1, 0, [1], samples=False)], slots=2, tokens=64) is None


def test_what_is_read_in_vain_is_counted() -> None:
    spans = [Span(0, 99, [1], samples=True), Span(2, 199, [1], samples=True)]
    assert DecodeShape(4, 256).read_in_vain(spans) == 4 * 256 - 300


@given(st.dictionaries(st.integers(0, 299), st.integers(0, 8191), min_size=1, max_size=30))
def test_a_shape_holds_all_rows_and_there_are_few_of_them(starts: dict[int, int]) -> None:
    spans = [Span(slot, start, [1], samples=True) for slot, start in sorted(starts.items())]
    shape = decode_shape(spans, slots=300, tokens=8192)
    assert shape is not None
    highest, longest = max(starts) + 1, max(starts.values()) + 1
    assert highest <= shape.rows <= min(300, max(2 * highest, highest + 15))
    assert longest <= shape.extent <= max(256, longest * 3 // 2)
    assert shape.extent in {256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192}
