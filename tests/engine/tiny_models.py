"""Models of random weights, small enough to run in milliseconds, and requests for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from engine import attention
from engine.core import Core
from engine.kv_budget import KVBudget
from engine.loaded_model import LoadedModel
from engine.messages import Chunk, Finished, Output, Params
from engine.prepared import PreparedRequest, Sampling
from tests.engine.conftest import small_tokenizer

VOCABULARY = 256
WINDOW = 128
SLIDING = 12

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": WINDOW,
    # Wide enough that the likeliest tokens are far apart: greedy replies have no ties.
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}

FAMILIES: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "qwen2": lambda: Qwen2ForCausalLM(
        Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=SLIDING, max_window_layers=1)
    ),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=SLIDING)),
    "gemma2": lambda: Gemma2ForCausalLM(
        Gemma2Config(**SIZES, sliding_window=SLIDING, attn_logit_softcapping=5.0, final_logit_softcapping=10.0)
    ),
    "gemma3": lambda: Gemma3ForCausalLM(
        Gemma3TextConfig(**SIZES, sliding_window=SLIDING, sliding_window_pattern=2)
    ),
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY, n_positions=WINDOW, n_embd=32, n_layer=3, n_head=4, initializer_range=0.3,
            bos_token_id=None, eos_token_id=None, pad_token_id=None,
        )
    ),
}  # fmt: skip


def make(family: str) -> PreTrainedModel:
    """The same weights each time."""
    torch.manual_seed(1)
    module = FAMILIES[family]().eval()
    module.set_attn_implementation("eager")
    return module


def served(
    family: str, *, max_batch: int = 4, eos_ids: frozenset[int] = frozenset(), kv_tokens: int = 4 * WINDOW
) -> LoadedModel:
    attention.register()
    module = make(family)
    module.set_attn_implementation(attention.NAME)
    budget = KVBudget(kv_tokens, kv_tokens, min(WINDOW, kv_tokens), 1)
    return LoadedModel(family, module, small_tokenizer(), Params(), eos_ids, max_batch, VOCABULARY, budget)


def tokenizer() -> PreTrainedTokenizerFast:
    return small_tokenizer()


class Said(NamedTuple):
    text: str
    stopped: bool


class Numbers:
    """A reply whose text is its token ids. `holds` keeps each one back until the next; `stop` ends it."""

    def __init__(self, *, stop: int | None = None, holds: bool = False) -> None:
        self._stop = stop
        self._holds = holds
        self._held = ""

    def push(self, token_id: int) -> Said:
        if token_id == self._stop:
            return Said("", stopped=True)
        ready, self._held = self._held, f"{token_id} "
        return Said(ready, stopped=False) if self._holds else Said(self.flush(), stopped=False)

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held


GREEDY = Sampling(
    max_new_tokens=8, do_sample=False, temperature=1.0, top_p=1.0, top_k=0,
    repetition_penalty=1.0, seed=None, max_time_s=None,
)  # fmt: skip


def prompt(length: int, salt: int = 0) -> list[int]:
    return [(37 * place + 11 * salt + 5) % VOCABULARY for place in range(length)]


def asking(
    request_id: str,
    tokens: Sequence[int],
    sampling: Sampling = GREEDY,
    reply: Numbers | None = None,
    **how: str | int,
) -> PreparedRequest:
    return PreparedRequest(request_id, tokens, sampling, reply or Numbers(), **how)  # type: ignore[arg-type]


def run_out(core: Core) -> list[Output]:
    """Step until nothing is left to do."""
    outputs: list[Output] = []
    while core.busy:
        outputs += core.step()
    return outputs


def tokens_of(outputs: Sequence[Output], request_id: str) -> list[int]:
    text = "".join(o.text for o in outputs if isinstance(o, Chunk) and o.request_id == request_id)
    return [int(number) for number in text.split()]


def end_of(outputs: Sequence[Output], request_id: str) -> Finished:
    """The one end of a request, which is also its last output."""
    own = [o for o in outputs if o.request_id == request_id]
    ends = [o for o in own if isinstance(o, Finished)]
    assert len(ends) == 1
    assert own[-1] is ends[0]
    return ends[0]
