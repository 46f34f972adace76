"""Where a model runs and in what."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from engine.errors import ModelNotUsable
from engine.loading.loader import load
from engine.machine import EngineOptions
from engine.model.devices import choose_device, choose_dtype, has_fast_bf16

CPU = torch.device("cpu")


def test_a_wish_is_followed_and_without_one_the_best_is_taken() -> None:
    best = "cuda" if torch.cuda.is_available() else "cpu"
    assert choose_device(None).type == choose_device("auto").type == best
    assert choose_device("cpu") == CPU
    assert choose_dtype("bf16", CPU) is torch.bfloat16
    assert choose_dtype("auto", CPU) in {torch.bfloat16, torch.float32}


@pytest.fixture
def selected(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The CUDA devices that are selected, on a machine that seems to have some."""
    devices: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch._C, "_cuda_setDevice", devices.append, raising=False)
    return devices


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.usefixtures("selected")
def test_the_loader_warns_of_a_missing_c_compiler_on_cuda(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ModelNotUsable, match="no-such-model"):
        load(EngineOptions(model="./no-such-model", device="cuda", dtype="bf16"))
    assert "Install gcc and libc6-dev." in caplog.text


@pytest.mark.parametrize(("device", "index"), [("cuda", 0), ("cuda:1", 1)])
def test_the_loader_selects_a_cuda_device_named_with_or_without_an_index(
    device: str, index: int, selected: list[int]
) -> None:
    with pytest.raises(ModelNotUsable, match="no-such-model"):
        load(EngineOptions(model="./no-such-model", device=device, dtype="bf16"))
    assert selected == [index]


@pytest.mark.parametrize(
    ("cpuinfo", "fast"),
    [
        ("flags\t\t: fpu avx512f avx512_bf16 clzero\n", True),
        ("processor : 0\nflags : amx_tile amx_bf16\n", True),
        ("Features\t: fp asimd bf16 i8mm\n", True),
        ("flags\t\t: fpu avx2 avx512f\n", False),
        ("model name : a bf16 dream\nflags : fpu\n", False),
        ("", False),
    ],
)
def test_bf16_is_for_cpus_that_multiply_it_natively(cpuinfo: str, *, fast: bool) -> None:
    assert has_fast_bf16(cpuinfo) is fast
