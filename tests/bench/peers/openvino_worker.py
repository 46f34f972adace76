"""OpenVINO GenAI's continuous batching as a contender's process: `python -m … WORKER`, run by its own Python.

`WORKER` is JSON whose `folder` is a model that was exported for OpenVINO. Jobs and answers are the engine benchmark's.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from typing import Any

from tests.bench.engine.load import TEMPERATURE, TOP_P, GenerationRequest, TokenUpdate
from tests.bench.engine.worker import serve

CACHE_GB = 2
STEP_TOKENS = 512
MOST_AT_ONCE = 64


class OpenVino:
    """A pipeline and its open requests. `wait` is one step of it."""

    def __init__(self, folder: str) -> None:
        genai, openvino = importlib.import_module("openvino_genai"), importlib.import_module("openvino")
        scheduling = genai.SchedulerConfig()
        scheduling.cache_size = CACHE_GB
        scheduling.max_num_batched_tokens = STEP_TOKENS
        scheduling.max_num_seqs = MOST_AT_ONCE
        hints = {"INFERENCE_PRECISION_HINT": "bf16"}
        self._pipeline = genai.ContinuousBatchingPipeline(folder, scheduling, "CPU", hints)
        self._genai, self._tensor = genai, openvino.Tensor
        self._numpy = importlib.import_module("numpy")
        self._open: dict[str, tuple[Any, int]] = {}
        """By name: the pipeline's request, and the number of tokens still to come."""
        self._request_id = 0

    def submit(self, requests: Sequence[GenerationRequest]) -> None:
        """See `Contender`."""
        for requested in requests:
            self._request_id += 1
            tokens = self._tensor(self._numpy.array([requested.prompt], dtype=self._numpy.int64))
            handle = self._pipeline.add_request(self._request_id, tokens, self._config(requested.new_tokens))
            self._open[requested.name] = handle, requested.new_tokens

    def wait(self) -> Sequence[TokenUpdate]:
        """See `Contender`."""
        if self._pipeline.has_non_finished_requests():
            self._pipeline.step()
        return [news for name in list(self._open) if (news := self._news(name)) is not None]

    def cancel(self, name: str) -> None:
        """See `Contender`."""
        self._open[name][0].cancel()
        self._open[name] = self._open[name][0], 0

    def close(self) -> None:
        """See `Contender`: nothing runs outside this thread."""

    def _news(self, name: str) -> TokenUpdate | None:
        """Return the news of a request; its end comes with its last token, or after a cancel."""
        handle, left = self._open[name]
        fresh = 0
        while left and handle.can_read():
            fresh += sum(len(output.generated_ids) for output in handle.read().values())
        left -= fresh
        if left <= 0:
            del self._open[name]
            return TokenUpdate(name, fresh, ended=True)
        self._open[name] = handle, left
        return TokenUpdate(name, fresh, ended=False) if fresh else None

    def _config(self, new_tokens: int) -> Any:
        config = self._genai.GenerationConfig()
        config.max_new_tokens = new_tokens
        config.ignore_eos = True
        config.set_eos_token_id(0)  # the model has none, and the pipeline needs one
        config.do_sample = True
        config.temperature = TEMPERATURE
        config.top_p = TOP_P
        return config


if __name__ == "__main__":
    serve(lambda worker: (OpenVino(worker.folder), None))
    os._exit(0)  # as the other contenders' processes: nothing is taken down piece by piece
