"""Compile the kernels for other devices, as the operators launch them, and print the shared memory that each one takes.

python -m tests.engine.model.compile_kernels 80 90: one line of JSON a kernel. Triton brings NVIDIA's assembler with it.
"""

from __future__ import annotations

import json
import sys
from random import Random
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime.jit import JITFunction

from engine.kv_cache import LayerPages
from engine.model.attention import AttentionParams
from engine.model.cuda import operators
from engine.model.cuda.operators import Cuda
from engine.step_layout import Span, lay_out

TERMS = {
    "plain": AttentionParams(0.1),
    "all": AttentionParams(0.1, window=4096, softcap=30.0),
}
HEADS = {"8B": (32, 8, 128), "1.5B": (12, 2, 128), "small": (14, 2, 64), "wide": (8, 4, 256)}


class Absent(DriverBase):
    """The driver of an absent device. It tells what to compile for, and launches nothing."""

    def __init__(self, capability: int) -> None:
        self._target = GPUTarget("cuda", capability, 32)

    @classmethod
    def is_active(cls) -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return self._target.arch

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_benchmarker(self) -> Any:
        raise NotImplementedError


def launch_all(terms: AttentionParams, heads: int, kv_heads: int, size: int, dtype: torch.dtype) -> None:
    """Call each operator once, for replies and for a prompt, with pages of 256 and contexts of 32k."""
    counts = (1, 1, 1, 50)
    spans = [Span(slot, 0, [0] * count, True, [0]) for slot, count in enumerate(counts)]
    step = lay_out(spans, page_size=256, device=torch.device("cpu"), most_pages=128)
    together = torch.zeros(step.input_ids.shape[1], heads + 2 * kv_heads, size, dtype=dtype)
    queries, keys, values = together.split([heads, kv_heads, kv_heads], dim=1)
    layer = LayerPages.make(keys, values, 2, 256)
    Cuda(processors=132).store(layer, step, keys, values)
    Cuda(processors=132).attend(queries, layer, step, terms)


def main(capabilities: list[int]) -> None:
    about: dict[str, Any] = {}

    def compiling(function: Any, grid: Any) -> Any:
        def launch(*args: Any, **kwargs: Any) -> None:
            kernel = function.run(*args, grid=grid, warmup=True, **kwargs)
            made = {**about, "kernel": function.__name__, "shared": kernel.metadata.shared}
            sys.stdout.write(json.dumps(made) + "\n")

        return launch

    JITFunction.__getitem__ = compiling
    operators._precision = lambda queries: (
        "ieee" if queries.dtype is torch.float32 else "tf32"
    )  # as on a device
    for capability in capabilities:
        triton.runtime.driver.set_active(Absent(capability))
        about |= {"capability": capability}
        operators.draw(torch.zeros(2, 151_936), None, [Random(0), Random(1)])
        for model, (heads, kv_heads, size) in HEADS.items():
            for terms in TERMS if model == "8B" else ("plain",):
                about |= {"capability": capability, "model": model, "terms": terms}
                launch_all(TERMS[terms], heads, kv_heads, size, torch.bfloat16)


if __name__ == "__main__":
    main([int(one) for one in sys.argv[1:]])
