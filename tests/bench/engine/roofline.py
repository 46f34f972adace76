"""Compares a decode step with its unavoidable work: matrix products, and reading keys and values."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModelForCausalLM

from tests.bench.engine.contender import GenerationRequest, prompt
from tests.bench.engine.midstream_contender import MidstreamEngine
from tests.bench.engine.records import Bound, BoundFacts

PRODUCTS_REPEATS = 15
BANDWIDTH_BYTES = 512 * 2**20
"""Bytes to read; far more than any cache holds."""
BANDWIDTH_BYTES_GPU = 4 * 2**30
CPU = torch.device("cpu")
BANDWIDTH_REPEATS = 7


def measure(engine: MidstreamEngine, job: Bound) -> BoundFacts:
    """Measure a load's steps, then the products at the same shape with the model's own weights, on this thread.

    On a GPU the products are as fast as their weights are read, up to hundreds of rows: that is their bound there.
    """
    step_s = _median_step(engine, job)
    if engine.model.device.type == "cuda":
        return _on_gpu(engine, job, step_s)
    plain: Any = AutoModelForCausalLM.from_pretrained(engine.model.name, dtype=engine.model.dtype)
    return BoundFacts(
        step_s=step_s,
        matrices_s=_products(plain, job.at_once),
        kv_bytes=_kv_bytes(plain, job),
        bandwidth=_bandwidth(),
    )


def _median_step(engine: MidstreamEngine, job: Bound) -> float:
    """Return the median time of the steps in which all streams make a token, in seconds."""
    names = [f"bound-{number}" for number in range(job.at_once)]
    for name in names:
        tokens = prompt(job.prompt_tokens, engine.model.vocabulary, name)
        engine.submit([GenerationRequest(name, tokens, job.new_tokens, name)])
    times = []
    while engine.core.busy:
        started = time.perf_counter()
        news = engine.wait()
        if sum(one.tokens for one in news) == job.at_once:
            times.append(time.perf_counter() - started)
    return median(times[1:])  # the first is the end of the prefill


def _kv_bytes(module: Any, job: Bound) -> float:
    """Return the bytes of keys and values that a step in the middle of the replies has to read."""
    config = module.config
    heads = config.num_key_value_heads * (config.hidden_size // config.num_attention_heads)
    per_token = 2 * config.num_hidden_layers * heads * module.dtype.itemsize
    positions = job.prompt_tokens + job.new_tokens / 2
    return float(job.at_once * positions * per_token)


@torch.inference_mode()
def _products(module: nn.Module, rows: int) -> float:
    """Return the seconds of all matrix products of one step, one after the other as the model has them."""
    weights: list[Tensor] = [one.weight for one in module.modules() if isinstance(one, nn.Linear)]
    inputs = {weight.shape[1]: torch.randn(rows, weight.shape[1]).to(weight.dtype) for weight in weights}

    def run() -> None:
        for weight in weights:
            functional.linear(inputs[weight.shape[1]], weight)

    return _median_time(run, PRODUCTS_REPEATS)


def _on_gpu(engine: MidstreamEngine, job: Bound, step_s: float) -> BoundFacts:
    linears = [one for one in engine.model.module.modules() if isinstance(one, nn.Linear)]
    weight_bytes = sum(one.weight.numel() * one.weight.itemsize for one in linears)
    positions = job.prompt_tokens + job.new_tokens / 2
    bandwidth = _bandwidth(engine.model.device)
    return BoundFacts(
        step_s=step_s,
        matrices_s=weight_bytes / bandwidth,
        kv_bytes=job.at_once * positions * engine.model.kv.bytes_per_token,
        bandwidth=bandwidth,
    )


def _bandwidth(device: torch.device = CPU) -> float:
    """Return how many bytes a second a device, all compute threads of a CPU together, reads from memory."""
    size = BANDWIDTH_BYTES if device.type == "cpu" else BANDWIDTH_BYTES_GPU
    field = torch.ones(size // 4, dtype=torch.float32, device=device)
    # `item` waits for the device: some microseconds beside a millisecond.
    return size / _median_time(lambda: field.sum().item(), BANDWIDTH_REPEATS)


def _median_time(act: Callable[[], object], repeats: int) -> float:
    act()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        act()
        times.append(time.perf_counter() - started)
    return median(times)
