"""The forward pass over slots, its layout and its memory."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.attention.attend import AttentionNotSupported, cpu_kernels
from engine.attention.attend import attend as attention
from engine.cache import lazy_memory
from engine.cache.lazy_memory import LazyMemory
from engine.cache.slot_batch import SPLIT_COST, SlotBatch, Span, partition
from engine.cache.slots import SlotCache
from engine.execution.runner import Runner
from engine.model.fused_decoder import fused_decoder
from tests.engine.tiny_models import VOCABULARY, WINDOW, make, prompt, served

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage")

needs_kernels = pytest.mark.skipif(bool(cpu_kernels.trouble()), reason=cpu_kernels.trouble())
with_each = pytest.mark.usefixtures("cpu_operations")


@torch.inference_mode()
def by_itself(family: str, tokens: list[int]) -> torch.Tensor:
    return make(family)(torch.tensor([tokens])).logits[0, -1]


def close(got: torch.Tensor, expected: torch.Tensor) -> bool:
    return torch.allclose(got, expected, atol=1e-4)


def runner(*, slots: int = 8, lazily: bool = True, family: str = "llama") -> Runner:
    made = Runner(served(family).module, slots=slots, tokens=WINDOW)
    made.cache = SlotCache(slots=slots, tokens=WINDOW, lazy=lazily)
    return made


@with_each
def test_idle_slots_between_running_ones_do_not_matter() -> None:
    run = runner()
    slots, texts = (0, 3, 7), [prompt(9), prompt(20, 1), prompt(15, 2)]
    run.run([Span(slot, 0, text[:-1], samples=False) for slot, text in zip(slots, texts, strict=True)])
    logits = run.run([Span(s, len(t) - 1, t[-1:], samples=True) for s, t in zip(slots, texts, strict=True)])
    assert all(close(row, by_itself("llama", text)) for row, text in zip(logits, texts, strict=True))


@with_each
def test_the_last_token_of_a_prompt_may_run_below_the_slot_of_a_running_reply() -> None:
    run, texts = runner(), (prompt(9), prompt(6, 1))
    run.run([Span(slot, 0, text[:-1], samples=False) for slot, text in zip((3, 1), texts, strict=True)])
    logits = run.run([Span(s, len(t) - 1, t[-1:], samples=True) for s, t in zip((3, 1), texts, strict=True)])
    assert all(close(row, by_itself("llama", text)) for row, text in zip(logits, texts, strict=True))


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_a_prompt_longer_than_a_block_of_queries(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "QUERY_BLOCK", 16)
    logits = runner(family=family).run([Span(1, 0, prompt(50), samples=True)])
    assert close(logits[0], by_itself(family, prompt(50)))


def test_running_the_same_spans_again_changes_nothing() -> None:
    run, spans = runner(), [Span(1, 0, prompt(30), samples=True)]
    first = run.run(spans)
    assert torch.equal(first, run.run(spans))


def test_memory_that_is_committed_at_once_grows_with_use_and_keeps_what_was_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("engine.cache.slots.FIRST_TOKENS", 8)
    run = runner(lazily=False)
    run.run([Span(0, 0, prompt(7), samples=False)])
    assert tuple(run.cache.layers[0].keys.shape) == (1, 2, 8, 8)
    run.run([Span(0, 7, prompt(30)[7:29], samples=False), Span(2, 0, prompt(3), samples=False)])
    assert tuple(run.cache.layers[0].keys.shape) == (4, 2, 32, 8)
    assert close(run.run([Span(0, 29, prompt(30)[29:], samples=True)])[0], by_itself("llama", prompt(30)))


def test_memory_never_grows_beyond_its_bounds() -> None:
    run = runner(slots=3, lazily=False)
    run.run([Span(slot, 0, prompt(WINDOW - 1), samples=False) for slot in range(3)])
    assert run.cache.layers[0].keys.shape[0] == 3
    assert run.cache.layers[0].keys.shape[2] == WINDOW


def test_untouched_memory_is_zero() -> None:
    cache = SlotCache(slots=64, tokens=2**18, lazy=True)
    cache.begin(SlotBatch([Span(5, 70, [1], samples=True)], tokens=2**18, device=torch.device("cpu")))
    keys, _ = cache.update(torch.ones(1, 2, 1, 64), torch.ones(1, 2, 1, 64), 0)
    assert tuple(keys.shape) == (64, 2, 128, 64)
    assert (keys[5, :, 70] == 1).all()
    assert not keys[5, :, :70].any()
    assert not keys[5, :, 71:].any()


@with_each
def test_slots_grow_ahead_of_need_one_layer_a_step() -> None:
    run, text = runner(slots=3), prompt(WINDOW)
    lengths: list[tuple[int, ...]] = []
    run.run([Span(0, 0, text[:61], samples=False), Span(2, 0, text[:9], samples=False)])
    for place in range(61, 70):
        logits = run.run([Span(0, place, text[place : place + 1], samples=True)])
        lengths.append(tuple(layer.tokens for layer in run.cache.layers))
        assert close(logits[0], by_itself("llama", text[: place + 1]))
    changes = [sum(a != b for a, b in zip(*pair, strict=True)) for pair in pairwise(lengths)]
    assert max(changes) == 1
    assert sum(changes) == len(lengths[0]) - 1
    assert set(lengths[-1]) == {128}


def test_slots_shrink_when_the_long_replies_have_left_and_keep_what_the_others_hold() -> None:
    cache = SlotCache(slots=2, tokens=4096, lazy=True)

    def write(slot: int, start: int, count: int) -> None:
        cache.begin(
            SlotBatch([Span(slot, start, [1] * count, samples=True)], tokens=4096, device=torch.device("cpu"))
        )
        cache.update(torch.ones(1, 1, count, 8), torch.ones(1, 1, count, 8), 0)

    write(0, 0, 30)
    write(1, 0, 900)
    assert cache.layers[0].tokens == 1088
    cache.leave(1, 900)
    write(0, 30, 1)
    assert cache.layers[0].tokens == 64
    assert cache.layers[0].keys[0, 0].sum() == 31 * 8


def roomy_runner(monkeypatch: pytest.MonkeyPatch, *, positions: int, tokens: int) -> Runner:
    """A fused Llama whose slots have room for so many positions at first, and for `tokens` at last."""
    monkeypatch.setattr("engine.cache.slots.ROOMY_BYTES", positions * 3 * 2 * 8 * 4)
    fused = fused_decoder(make("llama"))
    assert fused is not None
    return Runner(fused, slots=3, tokens=tokens)


def lengths(run: Runner) -> set[int]:
    return {layer.tokens for layer in run.cache.layers}


@needs_kernels
def test_slots_are_long_from_the_start_where_no_more_is_read_than_they_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("engine.cache.slots.unwritten_is_free", lambda: True)
    run = roomy_runner(monkeypatch, positions=WINDOW, tokens=WINDOW)
    run.run([Span(1, 0, prompt(3), samples=False)])
    assert lengths(run) == {WINDOW}
    run.run([Span(0, 0, prompt(100)[:99], samples=False)])
    assert close(run.run([Span(0, 99, prompt(100)[99:], samples=True)])[0], by_itself("llama", prompt(100)))
    assert run.cache.resizes == 0


@needs_kernels
def test_a_reply_outgrows_even_long_slots_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.cache.slots.unwritten_is_free", lambda: True)
    run, text = roomy_runner(monkeypatch, positions=WINDOW, tokens=4 * WINDOW), prompt(WINDOW + 2)
    run.run([Span(0, 0, text[:5], samples=False)])
    assert lengths(run) == {WINDOW}
    run.run([Span(0, 5, text[5 : WINDOW - 4], samples=False)])
    for place in range(WINDOW - 4, WINDOW + 2):
        logits = run.run([Span(0, place, text[place : place + 1], samples=True)])
    assert close(logits[0], by_itself("llama", text))
    assert min(lengths(run)) > WINDOW


@pytest.mark.skipif(not HUGE_PAGES.exists(), reason="this kernel has no huge pages")
def test_a_first_byte_commits_a_small_page() -> None:
    made = LazyMemory((4, 2**20), torch.float32)
    place, flags = made.tensor.data_ptr(), {}
    for line in Path("/proc/self/smaps").read_text().splitlines():
        word, _, rest = line.partition(" ")
        if "-" in word:
            begin, end = (int(edge, 16) for edge in word.split("-"))
        elif word == "VmFlags:":
            flags[range(begin, end)] = rest.split()
    assert "nh" in next(told for span, told in flags.items() if place in span)


@needs_kernels
@pytest.mark.parametrize("counted", ["by the system", "by a limit of the process"])
def test_where_address_space_is_counted_slots_are_as_short_as_they_may_be(
    counted: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if counted == "by the system":
        (tmp_path / "overcommit").write_text("2\n")
        monkeypatch.setattr(lazy_memory, "OVERCOMMIT", tmp_path / "overcommit")
    else:
        monkeypatch.setattr("resource.getrlimit", lambda _kind: (2**40, 2**40))
    run = roomy_runner(monkeypatch, positions=WINDOW, tokens=WINDOW)
    run.run([Span(1, 0, prompt(3), samples=False)])
    assert lengths(run) == {64}


def test_the_cache_takes_nothing_outside_a_step() -> None:
    with pytest.raises(RuntimeError, match="outside a step"):
        SlotCache(slots=1, tokens=8, lazy=True).update(torch.ones(1, 1, 1, 1), torch.ones(1, 1, 1, 1), 0)


def test_masks_of_a_model_s_own_making_are_refused() -> None:
    with pytest.raises(AttentionNotSupported):
        attention.mask_rule(mask_function=lambda *_: torch.tensor(True), use_vmap=True)


def test_logits_of_every_row_where_one_was_wanted_are_refused() -> None:
    module = served("llama").module
    module.register_forward_pre_hook(
        lambda _module, arguments, options: (arguments, options | {"logits_to_keep": 0}), with_kwargs=True
    )
    with pytest.raises(AttentionNotSupported, match="single positions"):
        Runner(module, slots=1, tokens=WINDOW).run([Span(0, 0, prompt(5), samples=True)])


def cost(slots: list[int], lengths: list[int], begin: int, end: int) -> int:
    return (slots[end - 1] - slots[begin] + 1) * max(lengths[begin:end])


@given(st.dictionaries(st.integers(0, 60), st.integers(1, 9000), max_size=20))
def test_a_partition_covers_all_rows_in_order_and_beats_both_extremes(running: dict[int, int]) -> None:
    slots = sorted(running)
    lengths = [running[slot] for slot in slots]
    ranges = partition(slots, lengths)
    assert [row for begin, end in ranges for row in range(begin, end)] == list(range(len(slots)))
    total = sum(cost(slots, lengths, begin, end) + SPLIT_COST for begin, end in ranges)
    assert total <= sum(lengths) + SPLIT_COST * len(slots)


def test_replies_of_like_length_in_neighbouring_slots_are_read_together() -> None:
    assert partition([0, 1, 2, 3], [100, 120, 90, 100]) == [(0, 4)]


def test_one_long_reply_does_not_make_the_short_ones_read_as_much() -> None:
    assert partition([0, 1, 2, 3], [100, 100, 8000, 100]) == [(0, 2), (2, 3), (3, 4)]


def test_the_vocabulary_is_the_width_of_the_logits() -> None:
    assert runner().run([Span(0, 0, [1], samples=True)]).shape == (1, VOCABULARY)
