"""The parts of a step that are specific to CUDA: recording it as a graph, fetching its tokens, measuring it.

Source: https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

REPETITIONS = 20
"""Calls that are measured together, since a kernel of ten microseconds is shorter than the launch of the next one."""


class CudaRecorder:
    """Records steps on one device. They share memory, so only one of them may run at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, run: Callable[[], Tensor]) -> tuple[Callable[[], object], Tensor]:
        """Run a step once, so that everything it needs exists, then record it. Raises RuntimeError.

        Returns what replays the step, and the logits that each replay writes.
        """
        before = torch.cuda.current_stream(self._device)
        graph = torch.cuda.CUDAGraph()
        try:
            self._stream.wait_stream(before)
            with torch.cuda.stream(self._stream):
                run()
            before.wait_stream(self._stream)
            # CUDA calls of this process's other threads must not break the recording.
            with torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"):
                logits = run()
        except RuntimeError:
            # A recording that failed may have left its own stream as the current one.
            torch.cuda.set_stream(before)
            torch.cuda.synchronize(self._device)
            raise
        return graph.replay, logits

    def measure(self, call: Callable[[], None]) -> float:
        """Return how many seconds a call keeps the device busy. Waits for the device."""
        events: Any = torch.cuda.Event
        start, end = events(enable_timing=True), events(enable_timing=True)
        call()
        start.record()
        for _ in range(REPETITIONS):
            call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1000 / REPETITIONS


class PendingTokens:
    """Numbers on their way from a device. Only a CUDA device makes anybody wait; others have them at once."""

    def __init__(self, numbers: Tensor) -> None:
        """Begin to fetch them, behind all work that was launched so far."""
        self._there: Any = None
        self._host = numbers
        if numbers.device.type == "cuda":
            self._host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            self._host.copy_(numbers, non_blocking=True)
            self._there = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._there.record(torch.cuda.current_stream(numbers.device))

    def numbers(self) -> list[int]:
        """Return them once they have arrived. Does not wait for work that was launched since."""
        if self._there is not None:
            self._there.synchronize()
        return self._host.tolist()
