"""Wishes about the forward pass: served, or refused with the reason."""

from __future__ import annotations

import pytest

from engine.errors import ModelNotUsable
from engine.loading.preflight import check_forward, check_quantization
from engine.machine import ForwardOptions


@pytest.mark.parametrize("attn", ["auto", "midstream"])
def test_the_attention_over_slots_is_served_under_both_of_its_names(attn: str) -> None:
    check_forward(ForwardOptions(attn=attn, quantize="int8"))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (ForwardOptions(attn="sdpa"), "can't read the pages"),
        (ForwardOptions(attn="flash_attention_2"), "can't read the pages"),
        (ForwardOptions(attn="eagre"), "not the name of an attention"),
        (ForwardOptions(quantize="int4"), "the only ones that were measured"),
        (ForwardOptions(tensor_parallel=2), "runs a model on one device"),
    ],
)
def test_what_is_not_served_is_refused_with_the_reason(options: ForwardOptions, reason: str) -> None:
    with pytest.raises(ModelNotUsable, match=reason):
        check_forward(options)


@pytest.mark.parametrize(
    ("device", "dtype", "reason"),
    [("cuda", "bfloat16", "run on CPUs only"), ("cpu", "float16", "slower than float16")],
)
def test_int8_weights_are_refused_where_they_gain_nothing(device: str, dtype: str, reason: str) -> None:
    with pytest.raises(ModelNotUsable, match=reason):
        check_quantization(ForwardOptions(quantize="int8"), device=device, dtype=dtype)


def test_weights_as_they_are_run_everywhere() -> None:
    check_quantization(ForwardOptions(), device="cuda", dtype="float16")
    check_quantization(ForwardOptions(quantize="int8"), device="cpu", dtype="bfloat16")
