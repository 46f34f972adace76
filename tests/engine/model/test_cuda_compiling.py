"""The CUDA kernels become machine code for devices that are not here, and fit into them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

SHARED_MEMORY = {89: 99 * 1024, 90: 227 * 1024}
"""What a program may have at most, by compute capability: a small device's (L4, RTX 4090) and an H200's."""


@pytest.mark.parametrize("capability", SHARED_MEMORY)
def test_each_kernel_compiles_and_fits(capability: int) -> None:
    """In a process of its own: here Triton may interpret."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.engine.model.compile_kernels", str(capability)]
    made = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert not made.returncode, made.stderr[-4000:]
    kernels = [json.loads(line) for line in made.stdout.splitlines()]
    assert {one["kernel"] for one in kernels} == {
        *("decode_partitions", "merge_partitions", "attend_prompts", "store_rows", "draw_rows")
    }
    for one in kernels:
        assert one["shared"] <= SHARED_MEMORY[capability], one
