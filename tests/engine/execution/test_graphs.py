"""Decode steps that are recorded: on the CPU a recording computes anew from the place where its input lies."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from engine.execution.executor import Runner
from engine.loading.probe import probe
from engine.model.cpu import kernels as cpu_kernels
from engine.model.cuda.graphs import padded_rows
from engine.model.fused_decoder import FusedDecoder
from engine.step_layout import Span
from tests.engine.conftest import NO_KERNELS
from tests.engine.families import VOCABULARY
from tests.engine.model.paged import DEVICE
from tests.engine.tiny_models import make, prompt

PAGE = 16
TABLES = ([5, 0, 3], [7, 1, 8], [2, 9, 4])


def computes_anew(run: Callable[[], Tensor]) -> tuple[Callable[[], object], Tensor]:
    """Stands for a device's own recording: the same operations on the same places."""
    logits = run()
    return lambda: logits.copy_(run()), logits


def fails_beyond_two(run: Callable[[], Tensor]) -> tuple[Callable[[], object], Tensor]:
    repeat, logits = computes_anew(run)
    if len(logits) > 2:
        raise RuntimeError("no memory for so many rows")
    return repeat, logits


@pytest.fixture(autouse=True)
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of nobody are for devices: the C kernels refuse them."""
    monkeypatch.setattr(cpu_kernels, "_library", lambda: NO_KERNELS)


@pytest.fixture
def module() -> FusedDecoder:
    fused = probe(make("llama").to(DEVICE), VOCABULARY).module
    assert isinstance(fused, FusedDecoder)
    return fused


def runner(module: FusedDecoder) -> Runner:
    return Runner(module, pages=10, page_size=PAGE, context_tokens=48)


def steps_of(run: Runner, lengths: tuple[int, ...]) -> Tensor:
    """The logits of three decode steps behind prompts of these lengths."""
    texts = [prompt(length + 3, salt) for salt, length in enumerate(lengths)]
    requested = list(zip(texts, TABLES, strict=False))
    run.run([Span(n, 0, text[:-3], samples=False, pages=table) for n, (text, table) in enumerate(requested)])
    rows = []
    for place in (-3, -2, -1):
        spans = [
            Span(n, len(text) + place, [text[place]], samples=True, pages=table)
            for n, (text, table) in enumerate(requested)
        ]
        rows.append(run.run(spans).clone())
    return torch.cat(rows)


@pytest.mark.parametrize("lengths", [(5,), (20, 3), (30, 14, 2)])
def test_recorded_steps_compute_what_plain_ones_do(module: FusedDecoder, lengths: tuple[int, ...]) -> None:
    """Three replies take the steps of four: nobody's row has no keys and stores none."""
    recorded, plain = runner(module), runner(module)
    recorded.record(4, computes_anew)
    torch.testing.assert_close(steps_of(recorded, lengths), steps_of(plain, lengths), rtol=1e-4, atol=1e-4)
    assert recorded._graphs is not None
    assert set(recorded._graphs._recorded) == {1, 2, 4}


def test_a_number_of_rows_that_cannot_be_recorded_is_given_up_alone(
    module: FusedDecoder, caplog: pytest.LogCaptureFixture
) -> None:
    run = runner(module)
    with caplog.at_level(logging.WARNING):
        run.record(4, fails_beyond_two)
    assert "steps of 4 replies are launched plainly" in caplog.text
    assert run._graphs is not None
    assert set(run._graphs._recorded) == {1, 2}
    torch.testing.assert_close(
        steps_of(run, (30, 14, 2)), steps_of(runner(module), (30, 14, 2)), rtol=1e-4, atol=1e-4
    )


@torch.inference_mode()
def test_steps_with_a_prompt_and_rows_that_give_no_token_are_launched_plainly(module: FusedDecoder) -> None:
    run = runner(module)
    run.record(4, computes_anew)
    assert run._graphs is not None
    one = Span(0, 4, [1], samples=True, pages=TABLES[0])
    assert run._graphs.run([one]) is not None
    assert run._graphs.run([one, Span(1, 0, [1, 2], samples=True, pages=TABLES[1])]) is None
    assert run._graphs.run([Span(0, 4, [1], samples=False, pages=TABLES[0])]) is None


def test_rows_are_rounded_up_to_few_numbers() -> None:
    assert [padded_rows(rows) for rows in (1, 3, 8, 9, 16, 17, 256)] == [1, 4, 8, 16, 16, 32, 256]
    assert len({padded_rows(rows) for rows in range(1, 257)}) == 20
