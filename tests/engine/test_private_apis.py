"""The private names of other projects that the engine uses are still there. Each place says why no public name serves."""

from __future__ import annotations

import pytest
import torch
from transformers import MambaForCausalLM, PreTrainedModel
from transformers.models.mt5.modeling_mt5 import MT5Attention
from transformers.models.t5.modeling_t5 import T5Attention


def test_models_still_say_that_they_keep_a_state() -> None:
    """`engine.loading.probe.check_kind` refuses these before their weights are fetched."""
    assert (PreTrainedModel._is_stateful, MambaForCausalLM._is_stateful) == (False, True), (
        "transformers has renamed `PreTrainedModel._is_stateful`: adapt engine/loading/probe.py"
    )


@pytest.mark.parametrize("attention", [T5Attention, MT5Attention])
def test_t5_still_has_its_buckets_of_distances(attention: type) -> None:
    bucket = getattr(attention, "_relative_position_bucket", None)
    assert bucket is not None, (
        "transformers has renamed T5's `_relative_position_bucket`: adapt engine/model/encoder_decoder.py"
    )
    apart = torch.tensor([-200, -3, 0, 3, 200])
    found = bucket(apart, bidirectional=True, num_buckets=32, max_distance=128)
    assert found.tolist() == [15, 3, 0, 19, 31]


def test_torch_still_says_whether_the_processor_has_tiles() -> None:
    ask = getattr(torch.cpu, "_is_amx_tile_supported", None)
    assert ask is not None, (
        "torch has renamed `torch.cpu._is_amx_tile_supported`: adapt engine/model/cpu/kernels.py"
    )
    assert ask() in (False, True)
