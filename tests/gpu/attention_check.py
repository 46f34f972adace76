"""The attention kernels of the device against attention in plain torch, in float32, and the bandwidth they reach."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from engine.kv_cache import LayerPages, page_size
from engine.model.attention import AttentionParams, Backend, Reference
from engine.model.fused_decoder import backend_for
from engine.step_layout import Span, StepLayout, lay_out
from tests.gpu.results import DEVICE, ON_CUDA, expect, keep, print_line

DEVICE_OF_TENSORS = torch.device(DEVICE)
PAGE = page_size(DEVICE_OF_TENSORS.type)
UNIT = 1 if ON_CUDA else 1 / 64
"""Contexts are shorter on a CPU."""


class Heads(NamedTuple):
    """The shape of a layer. Queries share keys and values."""

    queries: int
    shared: int
    size: int


LAYERS = {
    "8B": Heads(32, 8, 128),
    "1.5B": Heads(12, 2, 128),
    "gemma": Heads(8, 4, 256),
    "small": Heads(14, 2, 64),
    "demo": Heads(6, 2, 32),
}
TERMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": int(1000 * UNIT)},
    "softcap": {"softcap": 30.0},
}
MANY_TERMS = {"8B", "demo"}
"""The layers that are tried with all terms."""

DECODING = [max(1, int(tokens * UNIT)) for tokens in (16, 4096, 4112, 4097, 8192)]
PROMPTS = [(int(tokens * UNIT), int(new * UNIT)) for tokens, new in ((1600, 512), (15000, 300))]
"""Lengths of contexts, and how many of their tokens are new."""

TOLERANCE = {torch.bfloat16: 2e-2, torch.float32: 1e-4}


class Step(NamedTuple):
    """A step of random numbers."""

    layout: StepLayout
    layer: LayerPages
    queries: Tensor


def main() -> None:
    torch.manual_seed(0)
    if ON_CUDA:
        torch.cuda.set_device(DEVICE_OF_TENSORS)
        print_line(f"{torch.cuda.get_device_name()}, torch for CUDA {torch.version.cuda}")
    backend = backend_for(DEVICE_OF_TENSORS, torch.bfloat16)
    compare(backend)
    if ON_CUDA:
        measure(backend)


def compare(backend: Backend) -> None:
    """Compare a backend with plain torch on all kinds of layers."""
    reference = Reference()
    errors: dict[str, float] = {}
    for layer, heads in LAYERS.items():
        for kind in TERMS if layer in MANY_TERMS else ("plain",):
            for dtype in TOLERANCE if layer == "8B" else (torch.bfloat16,):
                terms = AttentionParams(heads.size**-0.5, **TERMS[kind])
                step = random_step(heads, [(tokens, 1) for tokens in DECODING] + PROMPTS, dtype)
                got, expected = (
                    one.attend(step.queries, step.layer, step.layout, terms)[: step.layout.rows].float()
                    for one in (backend, reference)
                )
                error = float((got - expected).norm() / expected.norm())
                case = f"{layer}, {kind}, {dtype}"
                errors[case] = error
                expect(error < TOLERANCE[dtype], f"{case} is {error:.2g} apart from plain torch")
    worst = max(errors, key=errors.__getitem__)
    print_line(f"attention: {len(errors)} cases, the largest error is {errors[worst]:.2g} ({worst})")
    keep("attention.json", {"errors": errors})


def random_step(
    heads: Heads, requests: Sequence[tuple[int, int]], dtype: torch.dtype, capacity: int = 0
) -> Step:
    """Return a step of requests, (tokens, new tokens), whose pages lie in any order."""
    counts = [-(-tokens // PAGE) for tokens, _ in requests]
    free = torch.randperm(sum(counts) + 2).tolist()
    tables = [[free.pop() for _ in range(count)] for count in counts]
    spans = [
        Span(slot, tokens - new, [1] * new, samples=True, pages=table)
        for slot, ((tokens, new), table) in enumerate(zip(requests, tables, strict=True))
    ]
    layout = lay_out(spans, page_size=PAGE, device=DEVICE_OF_TENSORS, most_pages=capacity // PAGE)
    like = torch.empty(1, heads.shared, heads.size, dtype=dtype, device=DEVICE_OF_TENSORS)
    layer = LayerPages.make(like, like, sum(counts) + 2, PAGE)
    for store in layer:
        store.normal_()
    queries = like.new_empty(layout.input_ids.shape[1], heads.queries, heads.size).normal_()
    return Step(layout, layer, queries)


def measure(backend: Backend) -> None:
    """Measure how much of the memory's bandwidth decoding reaches, and how fast a prompt is."""
    field = torch.ones(2**30, device=DEVICE_OF_TENSORS)
    bandwidth = field.nbytes / microseconds(field.sum, 5)  # bytes per microsecond
    del field
    heads, terms = LAYERS["8B"], AttentionParams(128**-0.5)
    results: dict[str, Any] = {"read GB/s": bandwidth / 1e3}
    for capacity in (8192, 131072):  # the kernel divides a context by the capacity
        for rows, tokens in ((1, 512), (1, 2048), (1, 8000), (8, 2048), (64, 1000), (256, 1000)):
            step = random_step(heads, [(tokens, 1)] * rows, torch.bfloat16, capacity)
            took = microseconds(recorded(backend, step, terms))
            share = rows * tokens * heads.shared * heads.size * 2 * 2 / took / bandwidth
            name = f"decode, capacity {capacity}, {rows} x {tokens} tokens"
            results[name] = {"us": took, "share of bandwidth": share}
            print_line(f"{name}: {took:.0f} us, {share:.0%} of the bandwidth")
    step = random_step(heads, [(4096, 4096)], torch.bfloat16, 8192)
    took = microseconds(lambda: backend.attend(step.queries, step.layer, step.layout, terms), 5)
    rate = 4 * 4096 * 4096 / 2 * heads.queries * heads.size / took / 1e6
    results["prompt of 4096 tokens"] = {"us": took, "TFLOP/s": rate}
    print_line(f"prompt of 4096 tokens: {took:.0f} us, {rate:.0f} TFLOP/s")
    keep("attention.json", {"times": results})


def recorded(backend: Backend, step: Step, terms: AttentionParams) -> Callable[[], object]:
    """Return what replays a step's attention from a CUDA graph, without the cost of launches."""
    backend.attend(step.queries, step.layer, step.layout, terms)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        backend.attend(step.queries, step.layer, step.layout, terms)
    return graph.replay


def microseconds(call: Callable[[], object], repetitions: int = 20) -> float:
    """Return how long a call keeps the device busy: the median of five series."""
    events: Any = torch.cuda.Event
    call()
    torch.cuda.synchronize()
    times = []
    for _ in range(5):
        start, end = events(enable_timing=True), events(enable_timing=True)
        start.record()
        for _ in range(repetitions):
            call()
        end.record()
        end.synchronize()
        times.append(1e3 * start.elapsed_time(end) / repetitions)
    return statistics.median(times)


if __name__ == "__main__":
    main()
