"""Weights of other kinds: served, or refused with the reason."""

from __future__ import annotations

import pytest

from engine.errors import ModelNotUsable
from engine.loading.preflight import check_quantization


@pytest.mark.parametrize(
    ("quantize", "device", "dtype", "reason"),
    [
        ("int4", "cpu", "bfloat16", "the only ones that were measured"),
        ("int8", "cuda", "bfloat16", "run on CPUs only"),
        ("int8", "cpu", "float16", "slower than float16"),
    ],
)
def test_what_is_not_served_is_refused_with_the_reason(
    quantize: str, device: str, dtype: str, reason: str
) -> None:
    with pytest.raises(ModelNotUsable, match=reason):
        check_quantization(quantize, device=device, dtype=dtype)


def test_weights_as_they_are_run_everywhere() -> None:
    check_quantization("none", device="cuda", dtype="float16")
    check_quantization("int8", device="cpu", dtype="bfloat16")
