"""Linear layers say what torch's say, whatever vectors the processor has, and with int8 weights nearly that."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional
from transformers import MixtralConfig, MixtralForCausalLM

from engine.errors import ModelNotUsable
from engine.model.cpu import kernels as cpu_kernels
from engine.model.cpu.kernels import (
    INT8_MOST_ROWS,
    LARGEST_CODE,
    CpuLinear,
    matrix,
    multiply,
    quantize,
    quantized,
    serve_linear,
    take_over,
)
from engine.scheduling.core import EngineCore
from tests.engine.conftest import computing_on, needs_kernels
from tests.engine.families import SIZES
from tests.engine.tiny_models import make, prepared_request, prompt, reply_to, run_out, served, tokens_of

SEEDS = st.integers(0, 2**31)
DTYPES = st.sampled_from((torch.float32, torch.bfloat16))
KINDS = st.sampled_from(("as the rows", "int8"))
BIASES = st.sampled_from(("", "a bias"))
WIDTHS = st.one_of(st.integers(1, 140), st.sampled_from((255, 256, 257, 768)))


def anywhere(tensor: Tensor, offset: int = 1) -> Tensor:
    """The same numbers where no vector is aligned, up to the very end of their memory."""
    memory = tensor.new_empty(tensor.numel() + offset)
    memory[offset:] = tensor.reshape(-1)
    return memory[offset:].view(tensor.shape)


def close(got: Tensor, expected: Tensor) -> None:
    exact = got.dtype is torch.float32
    torch.testing.assert_close(
        got.double(), expected, rtol=1e-5 if exact else 1e-2, atol=1e-4 if exact else 1e-2, equal_nan=True
    )


@needs_kernels
@pytest.mark.usefixtures("vectors", "threads")
@settings(max_examples=40)
@given(DTYPES, KINDS, SEEDS, st.integers(0, 15), st.integers(0, 300), WIDTHS, BIASES)
def test_products_are_torch_s(  # noqa: PLR0917 - one for each dimension
    dtype: torch.dtype, kind: str, seed: int, rows: int, outputs: int, inputs: int, beside: str
) -> None:
    torch.manual_seed(seed)
    weight, given_rows = (
        anywhere(torch.randn(outputs, inputs).to(dtype)),
        anywhere(torch.randn(rows, inputs).to(dtype)),
    )
    bias = anywhere(torch.randn(outputs).to(dtype)) if beside else None
    wide = weight.double()
    if kind == "int8":
        codes, scale = quantized(weight) if outputs else (weight.to(torch.int8), weight[:, 0].contiguous())
        codes, scale = anywhere(codes), anywhere(scale)
        by, wide = matrix(codes, bias, scale), codes.double() * scale.double().unsqueeze(1)
    else:
        by = matrix(weight, bias)
    with computing_on(1):
        expected = given_rows.double() @ wide.t() + (0 if bias is None else bias.double())
    got = multiply(by, given_rows)
    assert got.dtype is dtype
    close(got, expected)


@needs_kernels
@pytest.mark.usefixtures("vectors", "threads")
@settings(max_examples=40)
@given(DTYPES, SEEDS, st.integers(2, 14), WIDTHS)
def test_a_row_s_numbers_do_not_depend_on_how_many_are_beside_it(
    dtype: torch.dtype, seed: int, rows: int, inputs: int
) -> None:
    torch.manual_seed(seed)
    weight, given_rows = torch.randn(61, inputs).to(dtype), torch.randn(rows, inputs).to(dtype)
    by = matrix(weight)
    alone = torch.cat([multiply(by, row.unsqueeze(0)) for row in given_rows])
    assert torch.equal(multiply(by, given_rows), alone)


@needs_kernels
@pytest.mark.usefixtures("vectors")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf])
def test_what_is_no_number_stays_in_its_own_row_and_its_own_output(dtype: torch.dtype, poison: float) -> None:
    torch.manual_seed(1)
    weight, given_rows = torch.rand(9, 70).to(dtype), torch.rand(3, 70).to(dtype)
    given_rows[1, 69] = poison
    made = multiply(matrix(weight), given_rows)
    assert made.isfinite().all(dim=1).tolist() == [True, False, True]
    assert not made[1].isfinite().any()
    given_rows[1, 69] = 0.5
    weight[4, 69] = poison  # the next row of weights begins behind it
    made = multiply(matrix(weight), given_rows)
    assert made.isfinite().all(dim=0).tolist() == [output != 4 for output in range(9)]
    assert torch.equal(made[:, 4].isnan(), torch.full((3,), poison != poison))  # noqa: PLR0124 - NaN is not itself


@needs_kernels
def test_rows_and_weights_that_do_not_go_together_are_refused() -> None:
    weight = torch.ones(4, 8)
    for given_rows in (torch.ones(2, 7), torch.ones(2, 8, dtype=torch.bfloat16)):
        with pytest.raises(ValueError, match="do not fit together"):
            multiply(matrix(weight), given_rows)
    assert serve_linear(weight, weight)
    assert serve_linear(weight, weight.to(torch.int8))
    assert not serve_linear(weight, weight.bfloat16())
    assert not serve_linear(weight, torch.ones(4, 4).t())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [0, 1, 13, INT8_MOST_ROWS + 1, 97])
@pytest.mark.parametrize("inputs", [48, 33])
@torch.no_grad()
def test_a_layer_says_the_same_for_few_rows_and_for_many(dtype: torch.dtype, rows: int, inputs: int) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(inputs, 80)).to(dtype)
    linear = model[0]
    given_rows = torch.randn(1, rows, inputs).to(dtype)
    expected = functional.linear(given_rows.double(), linear.weight.double(), linear.bias.double())
    coded = CpuLinear(quantized(linear.weight)[0], linear.bias, quantized(linear.weight)[1])(given_rows)
    assert (coded.shape, coded.dtype) == ((1, rows, 80), dtype)
    assert rows == 0 or apart(coded, expected) < 0.02
    if not cpu_kernels.trouble():
        take_over(model)
        assert isinstance(model[0], CpuLinear)
        assert model[0].weight.data_ptr() == linear.weight.data_ptr()
        close(model(given_rows), expected)


def apart(got: Tensor, expected: Tensor) -> float:
    return ((got.float() - expected.float()).norm() / expected.float().norm()).item()


@given(st.integers(1, 40), st.integers(1, 70), st.integers(0, 2**32 - 1))
def test_a_weight_is_its_code_times_its_scale_up_to_half_a_step(outputs: int, inputs: int, seed: int) -> None:
    weight = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(seed))
    codes, scale = quantized(weight)
    assert codes.dtype is torch.int8
    assert codes.abs().max() <= LARGEST_CODE
    assert not quantized(torch.zeros(2, 8, dtype=torch.bfloat16))[0].any()
    off = (codes * scale.unsqueeze(1) - weight).abs()
    assert (off <= scale.unsqueeze(1) * 0.5001).all()


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
    alone = reply_to(core, prepared_request("alone", prompt(9)))
    for n in range(4):
        core.submit(prepared_request(f"r{n}", prompt(9 if n == 2 else 20 + n)))
    assert tokens_of(run_out(core), "r2") == alone


def test_a_model_that_is_hardly_linear_layers_is_refused() -> None:
    experts = MixtralForCausalLM(MixtralConfig(**SIZES, num_local_experts=8))
    with pytest.raises(ModelNotUsable, match="hold only"):
        quantize(experts)
