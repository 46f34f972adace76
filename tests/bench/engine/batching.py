"""The engine of transformers as a contender: its own continuous batching."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.utils import is_flash_attn_2_available

from tests.bench.engine.load import TEMPERATURE, TOP_P, ContenderFailed, GenerationRequest, TokenUpdate

WAIT_S = 0.05
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
