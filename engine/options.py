"""The options of an engine's process, and how several engines share a machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from engine.messages import REPLY_TOKENS

KV_IDLE_S = 900.0
"""Seconds after which keys and values that nobody uses are given up, by default."""

_ON_CPU = frozenset({"cpu", "auto"})


class ForwardOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a forward pass is computed. `engine.loading.preflight` decides what is possible, and why not.

    `quantize`: the kind of the linear layers' weights. `tensor_parallel`: devices that share one model.
    """

    attn: str = "auto"
    quantize: str = "none"
    tensor_parallel: int = 1


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one engine. `model` is a hub name or a folder; None and "auto" leave the choice to the loader.

    `kv_bytes` bounds the memory for keys and values. If it is None, this engine gets the share `memory_share` of what
    the loader would take. `kv_idle_s`: keys and values that nobody uses for so long are given up, on a CPU. `threads`:
    compute threads on the CPU; None: PyTorch's default. `pickled_weights`: also load weights that are not safetensors. `reply_tokens`: the longest reply whose sender names no limit.
    """

    model: str
    device: str = "auto"
    dtype: str = "auto"
    pickled_weights: bool = False
    reply_tokens: int = REPLY_TOKENS
    max_batch: int | None = None
    kv_bytes: int | None = None
    kv_idle_s: float = KV_IDLE_S
    memory_share: float = 1.0
    threads: int | None = None
    forward: ForwardOptions = ForwardOptions()


def spread(
    options: EngineOptions, *, devices: Sequence[str], each: int, cores: int
) -> tuple[EngineOptions, ...]:
    """Return the options of `each` engines on each device, in the order of `devices`.

    Engines of one device share its memory. Those that may use the CPU share its `cores`, with at least one thread each.
    """
    placed = [msgspec.structs.replace(options, device=device) for device in devices for _ in range(each)]
    return shared_out(placed, cores=cores)


def shared_out(engines: Sequence[EngineOptions], *, cores: int) -> tuple[EngineOptions, ...]:
    """Return the options of all engines of one machine, with each one's share of it."""
    together = Counter(engine.device for engine in engines)
    computing = sum(engine.device in _ON_CPU for engine in engines)
    threads = max(1, cores // computing) if computing > 1 else None
    return tuple(
        msgspec.structs.replace(
            engine,
            memory_share=engine.memory_share / together[engine.device],
            threads=threads if engine.device in _ON_CPU else engine.threads,
        )
        for engine in engines
    )
