"""A fake CUDA device. Steps are traced on it, with their shapes and devices, and their launches are counted.

torch's `FakeTensorMode` computes no numbers. Operations that would wait for the device raise: a number can't be read, and
an index can't be made of a mask. Tensors on two devices in one operation raise, too.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, LlamaConfig

from engine.model.fused_decoder import FusedDecoder, fused_decoder

CUDA = torch.device("cuda", 0)
_META, _CUDA, _KINDS = 14, 1, 22
NO_LAUNCH = frozenset(
    f"aten::{name}"
    for name in (
        *("view", "slice", "select", "split", "expand", "permute", "transpose", "t", "detach", "alias"),
        *(
            "as_strided",
            "unsqueeze",
            "squeeze",
            "reshape",
            "_unsafe_view",
            "empty",
            "empty_like",
            "new_empty",
        ),
        *("empty_strided", "chunk", "split_with_sizes", "_reshape_alias", "unbind", "narrow"),
    )
)
"""Operations that only view a tensor differently, or make room for one."""

LAUNCHES = {"midstream::attend_decode": 2}
"""How many kernels an operation launches, if more than one."""

COPIES = frozenset({"aten::to", "aten::_to_copy", "aten::copy_"})
"""Operations that copy between devices and compute nothing. In inference mode `cpu()` and `cuda()` are `aten::to`."""


class Launches(TorchDispatchMode):
    """Counts the launches of operations on the device, and its copies to and from the host. A matrix product is one launch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()

    @property
    def total(self) -> int:
        """All launches."""
        return self.found.total()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        name = func.name().split(".")[0]
        given, results = _tensors((args, kwargs or {})), _tensors(made)
        crossing = _crossing(given, results, copies=name in COPIES)
        if crossing is not None:
            self.sent[crossing] += 1
        devices = {one.device.type for one in (*given, *results)}
        copied = crossing is not None and name in COPIES
        if "cuda" in devices and not copied and name not in NO_LAUNCH and not name.startswith("prim::"):
            self.found[name] += LAUNCHES.get(name, 1)
        return made


def _crossing(given: list[torch.Tensor], results: list[torch.Tensor], *, copies: bool) -> str | None:
    """Return which way an operation sends data between host and device. Kernels take a single number with their launch."""
    sources, targets = {one.device.type for one in given}, {one.device.type for one in results}
    if "cuda" in sources and "cpu" in targets:
        return "fetched"
    large = any(one.device.type == "cpu" and (copies or one.dim() > 0) for one in given)
    return "sent" if large and "cuda" in targets else None


def _tensors(given: Any) -> list[torch.Tensor]:
    return [one for one in torch.utils._pytree.tree_leaves(given) if isinstance(one, torch.Tensor)]


@contextmanager
def fake_cuda() -> Iterator[None]:
    """Let tensors be on CUDA inside the block. They have no numbers."""
    _let_indexing_pass()
    with _without_constants(), torch.inference_mode(), FakeTensorMode(allow_non_fake_inputs=True):
        yield


@contextmanager
def _without_constants() -> Iterator[None]:
    """Keep torch from computing tensors of at most one number for real, which it would send to a missing device."""
    before, fake_tensor.CONSTANT_NUMEL_LIMIT = fake_tensor.CONSTANT_NUMEL_LIMIT, -1
    try:
        yield
    finally:
        fake_tensor.CONSTANT_NUMEL_LIMIT = before


def _let_indexing_pass() -> None:
    """Give a CPU build of torch the guard of meta tensors for CUDA, since indexing selects the device first, and has none."""
    if torch.cuda.is_available() or torch.version.cuda is not None:
        return
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    guards = (ctypes.c_void_p * _KINDS).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    guards[_CUDA] = guards[_META]


LAYERS, PAGE, CONTEXT = 2, 256, 8192


def llama() -> FusedDecoder:
    """Return a model in the shape of Llama 8B, with fewer layers, whose weights have no numbers."""
    config = LlamaConfig(
        vocab_size=128_256, hidden_size=4096, intermediate_size=14_336, num_hidden_layers=LAYERS,
        num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=CONTEXT,
    )  # fmt: skip
    with torch.device(CUDA):
        module: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    fused = fused_decoder(module)
    assert fused is not None
    return fused
