"""Int8 weights say nearly what the weights say that they were made of."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional
from transformers import MixtralConfig, MixtralForCausalLM

from engine.errors import ModelNotUsable
from engine.model.cpu.kernels import INT8_MOST_ROWS, LARGEST_CODE, CpuLinear, quantize, quantized
from engine.scheduling.core import EngineCore
from tests.engine.families import SIZES
from tests.engine.tiny_models import make, prepared_request, prompt, run_out, served, tokens_of


def apart(got: Tensor, expected: Tensor) -> float:
    return ((got.float() - expected.float()).norm() / expected.float().norm()).item()


@given(st.integers(1, 40), st.integers(1, 70), st.integers(0, 2**32 - 1))
def test_a_weight_is_its_code_times_its_scale_up_to_half_a_step(outputs: int, inputs: int, seed: int) -> None:
    weight = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(seed))
    codes, scale = quantized(weight)
    assert codes.dtype is torch.int8
    assert codes.abs().max() <= LARGEST_CODE
    off = (codes * scale.unsqueeze(1) - weight).abs()
    assert (off <= scale.unsqueeze(1) * 0.5001).all()


def test_a_row_of_zeros_stays_one() -> None:
    codes, scale = quantized(torch.zeros(2, 8, dtype=torch.bfloat16))
    assert not codes.any()
    assert not scale.any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("rows", [0, 1, 40, INT8_MOST_ROWS + 1])
@pytest.mark.parametrize("inputs", [64, 33])
def test_any_number_of_rows_of_any_width_is_multiplied(dtype: torch.dtype, rows: int, inputs: int) -> None:
    torch.manual_seed(0)
    weight, bias = torch.randn(48, inputs, dtype=dtype), torch.randn(48, dtype=dtype)
    rows_in = torch.randn(1, rows, inputs, dtype=dtype)
    with torch.inference_mode():
        codes, scale = quantized(weight)
        got = CpuLinear(codes, bias, scale)(rows_in)
    assert got.dtype is dtype
    assert got.shape == (1, rows, 48)
    assert rows == 0 or apart(got, functional.linear(rows_in, weight, bias)) < 0.02


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_quantized_model_says_nearly_the_same(family: str) -> None:
    plain, smaller = make(family), make(family)
    quantize(smaller)
    assert any(isinstance(layer, CpuLinear) for layer in smaller.modules())
    assert not any(type(layer) is nn.Linear for layer in smaller.modules())
    ids = torch.tensor([prompt(20)])
    with torch.inference_mode():
        assert apart(smaller(ids).logits, plain(ids).logits) < 0.1


def test_a_quantized_model_is_served_alike_alone_and_in_a_batch() -> None:
    model = served("llama")
    quantize(model.module)
    core = EngineCore(model)
    core.submit(prepared_request("alone", prompt(9)))
    alone = tokens_of(run_out(core), "alone")
    for n in range(4):
        core.submit(prepared_request(f"r{n}", prompt(9 if n == 2 else 20 + n)))
    assert tokens_of(run_out(core), "r2") == alone


def test_a_model_that_is_hardly_linear_layers_is_refused() -> None:
    experts = MixtralForCausalLM(MixtralConfig(**SIZES, num_local_experts=8))
    with pytest.raises(ModelNotUsable, match="hold only"):
        quantize(experts)
