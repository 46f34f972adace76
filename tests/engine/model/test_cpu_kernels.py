"""The kernels for CPUs compile without a warning, and what can't be loaded is reported."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from functools import cache
from pathlib import Path

import pytest
import torch

from engine.model.cpu import kernels as cpu_kernels
from engine.model.cpu.kernels import NoKernels
from tests.engine.conftest import needs_kernels

COMPILER = (sysconfig.get_config_var("CC") or "cc").partition(" ")[0]
FLAGS = ("-O3", "-fopenmp", "-std=gnu11", "-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Werror")
SOURCE = Path(cpu_kernels.__file__).with_suffix(".c")


GCC_WITH_HEADERS = """
#include <math.h>
#ifdef __clang__
#error its OpenMP is not the one that torch brings
#endif
"""


@cache
def complaint(source: str) -> str:
    """What the compiler has to say of a source."""
    if shutil.which(COMPILER) is None:
        return f"there is no {COMPILER}"
    command = [COMPILER, *FLAGS, "-I", str(SOURCE.parent), "-x", "c", "-c", "-", "-o", os.devnull]
    return subprocess.run(command, input=source, capture_output=True, text=True, check=False).stderr


needs_a_compiler = pytest.mark.skipif(bool(complaint(GCC_WITH_HEADERS)), reason=complaint(GCC_WITH_HEADERS))


@needs_a_compiler
@pytest.mark.parametrize("source", sorted(SOURCE.parent.glob("*.c")), ids=lambda source: source.name)
def test_where_there_is_a_compiler_there_are_kernels_and_it_has_nothing_to_say(source: Path) -> None:
    assert cpu_kernels.trouble() == ""
    assert complaint(source.read_text()) == ""


@needs_kernels
def test_other_tensors_are_left_to_torch() -> None:
    assert not cpu_kernels.serve(torch.ones(1, dtype=torch.float16))
    assert not cpu_kernels.serve(torch.ones(1, device="meta"))
    assert not cpu_kernels.serve(torch.ones(1), torch.ones(1, dtype=torch.bfloat16))
    assert not cpu_kernels.serve(torch.ones(1), torch.ones(2, 2).t())
    assert cpu_kernels.serve(torch.ones(1), torch.ones(2, 2))


def test_what_can_t_be_loaded_is_told_and_nobody_may_call_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NoKernels, match="not compiled"):
        cpu_kernels.load("engine._no_such_kernels")
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    (tmp_path / f"_of_another_machine{suffix}").write_bytes(b"\x7fELF of another kind")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(NoKernels, match="_of_another_machine"):
        cpu_kernels.load("_of_another_machine")
    monkeypatch.setattr(cpu_kernels, "_library", lambda: NoKernels("none"))
    assert cpu_kernels.trouble() == "none"
    with pytest.raises(NoKernels):
        cpu_kernels.library()


@needs_kernels
def test_what_an_older_source_gave_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_kernels, "VERSION", cpu_kernels.VERSION + 1)
    with pytest.raises(NoKernels, match="another version of the source"):
        cpu_kernels.load()
