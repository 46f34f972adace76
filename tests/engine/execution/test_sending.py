"""What a step tells the device goes there in one piece."""

from __future__ import annotations

import torch

from engine.cache.slot_batch import SlotBatch, Span, send

ELSEWHERE = torch.device("meta")
"""A device that computes nothing, on every machine."""

CPU = torch.device("cpu")


def test_on_a_cpu_nothing_is_copied() -> None:
    tensors = [torch.tensor([1]), torch.tensor([[2, 3]])]
    assert send(tensors, CPU) is tensors


def test_elsewhere_all_of_it_is_parts_of_one_copy() -> None:
    one, two = send([torch.tensor([[1, 2], [3, 4]]), torch.tensor([5])], ELSEWHERE)
    assert (one.shape, two.shape, one.device) == ((2, 2), (1,), ELSEWHERE)
    assert one.untyped_storage().nbytes() == two.untyped_storage().nbytes() == 5 * 8
    assert two.storage_offset() == 4


def test_a_layout_has_the_same_shapes_wherever_it_goes() -> None:
    """Two groups, one of them with idle slots in between, and the end of a prompt."""
    spans = [Span(slot, start, [7], samples=True) for slot, start in ((0, 9), (1, 9), (2, 5000), (9, 5000))]
    spans.append(Span(4, 0, [1, 2, 3], samples=True))
    here, there = (SlotBatch(spans, tokens=8192, device=device) for device in (CPU, ELSEWHERE))
    assert len(here.groups) > 1

    def shapes(batch: SlotBatch) -> list[object]:
        tensors = [batch.input_ids, batch.position_ids, batch.decode_slots, batch.sampled_rows]
        tensors += [one for group in batch.groups for one in (group.query_positions, group.members)]
        return [None if one is None else (one.shape, one.dtype) for one in tensors]

    assert shapes(here) == shapes(there)
    assert all(group.query_positions.device == ELSEWHERE for group in there.groups)
