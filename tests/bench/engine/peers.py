"""The contenders of transformers: its own continuous batching, and a thread for each request in `generate`."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, StoppingCriteriaList
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.generation.streamers import BaseStreamer
from transformers.utils import is_flash_attn_2_available

from tests.bench.engine.load import TEMPERATURE, TOP_P, ContenderFailed, GenerationRequest, TokenUpdate
from tests.bench.thread_server import Stopped

WAIT_S = 0.05
GOODBYE_S = 10.0
BLOCKS = 96
"""Blocks of 256 tokens: room for 32 short replies, or for 16 beside a prompt of 4,096 tokens. By default it takes most of
the free memory and fills it at its start."""
BATCH_TOKENS = 2048
"""Tokens of one step: 32 prompts of 64 tokens at once. Its attention mask grows with this and the blocks."""


class ContinuousBatching:
    """The manager, its loop in its own thread, and the progress of each request; with the best settings for each device."""

    def __init__(self, folder: str, dtype: str, device: str) -> None:
        dtype_of_torch, configuration = getattr(torch, dtype), GenerationConfig
        model: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype_of_torch, attn_implementation="sdpa"
        )
        generation: Any = configuration(  # type: ignore[no-untyped-call]
            do_sample=True, temperature=TEMPERATURE, top_p=TOP_P, top_k=0, eos_token_id=-1, pad_token_id=0
        )
        # No two prompts are alike, and looking for shared blocks costs time.
        settings = (
            # There is no flash attention on a CPU, and asking for it asks the hub.
            ContinuousBatchingConfig(
                num_blocks=BLOCKS,
                max_batch_tokens=BATCH_TOKENS,
                allow_block_sharing=False,
                auto_switch_to_flash=False,
            )
            if device == "cpu"
            else ContinuousBatchingConfig(  # its own choice of sizes
                allow_block_sharing=False,
                use_cuda_graph=True,
                auto_switch_to_flash=bool(is_flash_attn_2_available()),
            )
        )
        self._manager = model.to(device).init_continuous_batching(
            generation_config=generation, continuous_batching_config=settings
        )
        self._reported: dict[str, int] = {}
        self._given_up: deque[TokenUpdate] = deque()
        self._manager.start()

    def submit(self, requests: Sequence[GenerationRequest]) -> None:
        """See `Contender`."""
        for one in requests:
            self._reported[one.name] = 0
            self._manager.add_request(
                list(one.prompt), request_id=one.name, max_new_tokens=one.new_tokens, streaming=True
            )

    def wait(self) -> Sequence[TokenUpdate]:
        """See `Contender`."""
        if self._given_up:
            return [self._given_up.popleft()]
        output = self._manager.get_result(timeout=WAIT_S)
        if output is None:
            if not self._manager.is_running() or self._manager.background_thread_status.fatal_error:
                raise ContenderFailed(f"its loop ended: {self._manager.background_thread_status.fatal_error}")
            return []
        if output.error:
            raise ContenderFailed(f"a request failed: {output.error}")
        name = output.request_id
        if name not in self._reported:  # it was cancelled meanwhile
            return []
        fresh = len(output.generated_tokens) - self._reported[name]
        self._reported[name] += fresh
        if ended := output.is_finished():
            del self._reported[name]
        return [TokenUpdate(name, fresh, ended)]

    def cancel(self, name: str) -> None:
        """See `Contender`. The manager reports no end after a cancel, so this method does."""
        if self._reported.pop(name, None) is not None:
            self._manager.cancel_request(name)
            self._given_up.append(TokenUpdate(name, 0, ended=True))

    def close(self) -> None:
        """See `Contender`."""
        self._manager.stop(block=True, timeout=GOODBYE_S, hard_stop=True)


class _Streamer(BaseStreamer):
    """Reports each token; `generate` passes the prompt first, which is not one."""

    def __init__(self, name: str, news: SimpleQueue[TokenUpdate | Exception]) -> None:
        self._name = name
        self._news = news
        self._seen_prompt = False

    def put(self, value: torch.Tensor) -> None:
        """Take the prompt, then each token; `generate` calls it."""
        if self._seen_prompt:
            self._news.put(TokenUpdate(self._name, value.numel(), ended=False))
        self._seen_prompt = True

    def end(self) -> None:
        """Do nothing at the end, which is reported once the thread is done; `generate` calls it."""


class ThreadPerRequest:
    """The model, and a thread for each of its requests: the usual first design."""

    def __init__(self, folder: str, dtype: str) -> None:
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
        self._model = model.eval()
        self._news: SimpleQueue[TokenUpdate | Exception] = SimpleQueue()
        self._running: dict[str, Stopped] = {}

    def submit(self, requests: Sequence[GenerationRequest]) -> None:
        """See `Contender`. Requests share the cores: more compute threads than cores are slower."""
        share = max(1, (os.cpu_count() or 1) // len(requests))
        for request in requests:
            stopped = self._running[request.name] = Stopped()
            threading.Thread(target=self._generate, args=(request, stopped, share), daemon=True).start()

    def wait(self) -> Sequence[TokenUpdate]:
        """See `Contender`."""
        try:
            news = self._news.get(timeout=WAIT_S)
        except Empty:
            return []
        if isinstance(news, Exception):
            raise ContenderFailed(f"generate failed: {news}") from news
        return [news]

    def cancel(self, name: str) -> None:
        """See `Contender`."""
        if stopped := self._running.get(name):
            stopped.event.set()

    def close(self) -> None:
        """See `Contender`."""
        for name in list(self._running):
            self.cancel(name)

    def _generate(self, request: GenerationRequest, stopped: Stopped, compute_threads: int) -> None:
        try:
            torch.set_num_threads(compute_threads)  # OpenMP's own count for this thread
            ids = torch.tensor([list(request.prompt)])
            with torch.inference_mode():
                self._model.generate(
                    input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=request.new_tokens,
                    do_sample=True, temperature=TEMPERATURE, top_p=TOP_P, top_k=0, pad_token_id=0,
                    streamer=_Streamer(request.name, self._news), stopping_criteria=StoppingCriteriaList([stopped]),
                )  # fmt: skip
        except Exception as error:  # noqa: BLE001 - the boundary of this thread; the reader raises it
            self._news.put(error)
        finally:
            del self._running[request.name]
            self._news.put(TokenUpdate(request.name, 0, ended=True))
