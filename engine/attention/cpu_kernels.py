"""Kernels of our own for CPUs, `cpu_kernels.c`: attention of decode steps, rotation, norms, gates.

The library holds those of `engine.model.cpu_linear` and `engine.model.cpu_decode` as well.

They are compiled when the package is installed, where there is a C compiler with OpenMP. Where there was none, and for
tensors that they do not serve, torch's operations do the same: ask `serve` first. They share torch's threads: the
library takes OpenMP from what torch has loaded, so torch is imported first. Rows are contiguous, unless said otherwise.
"""

from __future__ import annotations

import ctypes
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

VERSION = 2
"""Of the signatures below: that of the library must be the same."""

_DTYPES = frozenset({torch.bfloat16, torch.float32})
_POINTER, _COUNT, _FLOAT, _FLAG = ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_float, ctypes.c_int
_SIGNATURES = {
    "attend": (
        *(_POINTER, _COUNT, _COUNT, _POINTER, _POINTER),
        *(_POINTER, _POINTER, *5 * (_COUNT,)),
        *(_FLOAT, _FLAG, _POINTER),
    ),
    "rotate_and_store": (
        *(_POINTER, _COUNT, _POINTER, _COUNT),
        *4 * (_POINTER,),
        *(*5 * (_COUNT,), _FLAG),
        *3 * (_POINTER,),
    ),
    "rms_norm": (_POINTER, _POINTER, _COUNT, _COUNT, _FLOAT, _FLAG, _POINTER),
    "silu_product": (_POINTER, _COUNT, _COUNT, _FLAG, _POINTER),
    "linear": (*3 * (_POINTER,), _COUNT, _FLAG, _FLAG, _POINTER),
    "vectors": (_FLAG,),
    "decode": (_POINTER, _POINTER),
    "decode_room": (_POINTER, _COUNT, _COUNT),
}
_RESULTS = {"linear": _FLAG, "vectors": _FLAG, "decode": _FLAG, "decode_room": _COUNT}


class NoKernels(Exception):
    """Why there are none, in words for whoever runs the service."""


def load(module: str = "engine._cpu_kernels") -> ctypes.CDLL:
    """Return what was compiled. Raises NoKernels."""
    found = find_spec(module)
    if found is None or found.origin is None:
        raise NoKernels(
            "they were not compiled when the package was installed, which takes a C compiler with OpenMP (gcc); "
            "`touch engine/attention/cpu_kernels.c && make install` does it anew"
        )
    try:
        library = ctypes.CDLL(found.origin)
        version = ctypes.c_int.in_dll(library, "midstream_version").value
    except (OSError, ValueError) as error:  # made for another machine, say
        raise NoKernels(f"they can't be loaded: {error}") from error
    if version != VERSION:
        raise NoKernels(
            "they were compiled from an older source; `touch engine/attention/cpu_kernels.c && make install` does it anew"
        )
    for name, signature in _SIGNATURES.items():
        function = getattr(library, f"midstream_{name}")
        function.argtypes, function.restype = signature, _RESULTS.get(name)
    return library


@cache
def _library() -> ctypes.CDLL | NoKernels:
    try:
        return load()
    except NoKernels as why:
        return why


def trouble() -> str:
    """Return why there are no kernels, nothing where there are."""
    library = _library()
    return str(library) if isinstance(library, NoKernels) else ""


def serve(tensor: Tensor, *others: Tensor) -> bool:
    """Whether there are kernels for a tensor; `others` must have the same dtype and be contiguous."""
    if tensor.dtype not in _DTYPES or tensor.device.type != "cpu" or isinstance(_library(), NoKernels):
        return False
    return all(other.dtype is tensor.dtype and other.is_contiguous() for other in others)


def attend(
    queries: Tensor, keys: Tensor, values: Tensor, places: tuple[Tensor, Tensor], scaling: float
) -> Tensor:
    """Attend with one query for each row and head, (rows, heads, size), to its slot up to and including its position.

    Queries may have strides. `keys`, `values`: (slots, KV heads, tokens, size). `places`: slots and positions, int64,
    (rows,). Returns (rows, heads, size).
    """
    rows, heads, size = queries.shape
    queries = queries if queries.stride(2) == 1 else queries.contiguous()
    mixed = queries.new_empty(rows, heads, size)
    library().midstream_attend(
        *(queries.data_ptr(), queries.stride(0), queries.stride(1), keys.data_ptr(), values.data_ptr()),
        *(places[0].data_ptr(), places[1].data_ptr(), rows, heads, keys.shape[1], keys.shape[2], size),
        *(scaling, _is_half(queries), mixed.data_ptr()),
    )
    return mixed


def rotate_and_store(
    projected: Tensor,
    values: Tensor,
    angles: tuple[Tensor, Tensor],
    places: tuple[Tensor, Tensor],
    stores: tuple[Tensor, Tensor],
) -> Tensor:
    """Turn queries and keys, (rows, heads + KV heads, size), to their positions; store keys and values, (rows, KV heads, size).

    `angles`: cosines and signed sines as `RotaryTable` has them, (rows, 1, size). `places`: slots (below 0: nothing is
    stored) and positions, int64, (rows,). `stores`: keys and values, (slots, KV heads, tokens, size). Returns the turned
    queries, (rows, heads, size).
    """
    rows, all_heads, size = projected.shape
    _, kv_heads, tokens, _ = stores[0].shape
    heads = all_heads - kv_heads
    turned = projected.new_empty(rows, heads, size)
    library().midstream_rotate_and_store(
        *(projected.data_ptr(), projected.stride(0), values.data_ptr(), values.stride(0)),
        *(angles[0].data_ptr(), angles[1].data_ptr(), places[0].data_ptr(), places[1].data_ptr()),
        *(rows, heads, kv_heads, tokens, size, _is_half(projected)),
        *(turned.data_ptr(), stores[0].data_ptr(), stores[1].data_ptr()),
    )
    return turned


def rms_norm(given: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Normalize the last dimension by its root mean square, and multiply by `weight`, (size,)."""
    given = given.contiguous()
    made, size = torch.empty_like(given), given.shape[-1]
    library().midstream_rms_norm(
        *(given.data_ptr(), weight.data_ptr(), given.numel() // size, size),
        *(epsilon, _is_half(given), made.data_ptr()),
    )
    return made


def silu_product(gate_up: Tensor) -> Tensor:
    """Return silu(gate) * up, (rows, size), of both side by side, (rows, 2 * size), contiguous."""
    rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    made = gate_up.new_empty(rows, size)
    library().midstream_silu_product(gate_up.data_ptr(), rows, size, _is_half(gate_up), made.data_ptr())
    return made


def library() -> ctypes.CDLL:
    """Return what was compiled. Raises NoKernels."""
    library = _library()
    if isinstance(library, NoKernels):
        raise library
    return library


def _is_half(tensor: Tensor) -> bool:
    return tensor.dtype is torch.bfloat16
