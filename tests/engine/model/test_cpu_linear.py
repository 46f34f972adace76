"""Products of few rows say what torch's say, whatever vectors the processor has, and read nothing beyond the weights."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from engine.model.cpu import kernels as cpu_kernels
from engine.model.cpu.kernels import CpuLinear, can_pack, matrix, multiply, quantized, serve_linear, take_over

pytestmark = pytest.mark.skipif(bool(cpu_kernels.trouble()), reason=cpu_kernels.trouble())

SEEDS = st.integers(0, 2**31)
DTYPES = st.sampled_from((torch.float32, torch.bfloat16))
KINDS = st.sampled_from(("as the rows", "int8"))
BESIDE = st.sampled_from(("nothing", "a bias and more"))
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


@pytest.mark.usefixtures("vectors", "threads")
@settings(max_examples=40)
@given(DTYPES, KINDS, SEEDS, st.integers(0, 15), st.integers(0, 300), WIDTHS, BESIDE)
def test_products_are_torch_s(  # noqa: PLR0917 - one for each dimension
    dtype: torch.dtype, kind: str, seed: int, rows: int, outputs: int, inputs: int, beside: str
) -> None:
    torch.manual_seed(seed)
    weight, given_rows = (
        anywhere(torch.randn(outputs, inputs).to(dtype)),
        anywhere(torch.randn(rows, inputs).to(dtype)),
    )
    bias = anywhere(torch.randn(outputs).to(dtype)) if beside != "nothing" else None
    added = None if bias is None else anywhere(torch.randn(rows, outputs).to(dtype))
    wide = weight.double()
    if kind == "int8":
        codes, scale = quantized(weight) if outputs else (weight.to(torch.int8), weight[:, 0].contiguous())
        codes, scale = anywhere(codes), anywhere(scale)
        by, wide = matrix(codes, bias, scale), codes.double() * scale.double().unsqueeze(1)
    else:
        by = matrix(weight, bias)
    expected = given_rows.double() @ wide.t()
    if bias is not None and added is not None:
        expected = expected + bias.double() + added.double()
    got = multiply(by, given_rows, added)
    assert got.dtype is dtype
    close(got, expected)


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


def test_rows_and_weights_that_do_not_go_together_are_refused() -> None:
    weight = torch.ones(4, 8)
    for given_rows, added in (
        (torch.ones(2, 7), None),
        (torch.ones(2, 8, dtype=torch.bfloat16), None),
        (torch.ones(2, 8), torch.ones(2, 5)),
        (torch.ones(2, 8), torch.ones(3, 4)),
    ):
        with pytest.raises(ValueError, match="do not fit together"):
            multiply(matrix(weight), given_rows, added)
    assert serve_linear(weight, weight)
    assert serve_linear(weight, weight.to(torch.int8))
    assert not serve_linear(weight, weight.bfloat16())
    assert not serve_linear(weight, torch.ones(4, 4).t())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("rows", [1, 13, 97])
@torch.no_grad()
def test_a_layer_says_the_same_for_few_rows_and_for_many(
    dtype: torch.dtype, *, packed: bool, rows: int
) -> None:
    torch.manual_seed(1)
    linear = nn.Linear(48, 80).to(dtype)
    if packed and not can_pack(linear.weight.device, dtype):
        pytest.skip("this processor has no packed layers of this dtype")
    layer = CpuLinear(linear, packed=packed)
    given_rows, added = torch.randn(rows, 48).to(dtype), torch.randn(rows, 80).to(dtype)
    expected = functional.linear(given_rows.double(), linear.weight.double(), linear.bias.double())
    close(layer(given_rows), expected)
    close(layer(given_rows, added), expected + added.double())


def test_no_second_copy_is_kept_of_bfloat16_nor_of_a_large_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)

    def copies(dtype: torch.dtype) -> list[bool]:
        model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4)).to(dtype)
        weights = [layer.weight.data_ptr() for layer in model]
        take_over(model)
        assert [layer.weight.data_ptr() for layer in model] == weights
        return [layer.packed is not None for layer in model]

    assert copies(torch.bfloat16) == [False, False]
    assert copies(torch.float32) == [True, True]
    monkeypatch.setattr(cpu_kernels, "LARGEST_COPY", 4 * (8 * 16 + 16 * 4) - 1)
    assert copies(torch.float32) == [False, False]
