"""The private names of other projects that the engine uses are still there. Each place says why no public name serves."""

from __future__ import annotations

import torch
from transformers import MambaForCausalLM, PreTrainedModel


def test_models_still_say_that_they_keep_a_state() -> None:
    """`engine.loading.probe.check_kind` refuses these before their weights are fetched."""
    assert (PreTrainedModel._is_stateful, MambaForCausalLM._is_stateful) == (False, True), (
        "transformers has renamed `PreTrainedModel._is_stateful`: adapt engine/loading/probe.py"
    )


def test_torch_still_says_whether_the_processor_has_tiles() -> None:
    ask = getattr(torch.cpu, "_is_amx_tile_supported", None)
    assert ask is not None, (
        "torch has renamed `torch.cpu._is_amx_tile_supported`: adapt engine/model/cpu/kernels.py"
    )
    assert ask() in (False, True)
