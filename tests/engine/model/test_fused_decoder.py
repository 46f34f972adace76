"""The fused forward pass says what transformers' module says, to the last bits."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from engine.execution.executor import Runner
from engine.model.fused_decoder import fused_decoder, rms_norm
from engine.step_layout import Span
from tests.engine.families import SIZES
from tests.engine.tiny_models import make, prompt

pytestmark = pytest.mark.usefixtures("cpu_operations")

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 10_000.0}
MADE = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, attention_bias=True)),
    "llama with yarn": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters=YARN)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=None)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES)),
}


def model_of(family: str) -> PreTrainedModel:
    torch.manual_seed(2)
    return MADE[family]().eval()


@torch.inference_mode()
def by_itself(module: PreTrainedModel, tokens: list[int]) -> torch.Tensor:
    return module(torch.tensor([tokens])).logits[0, -1]


@pytest.mark.parametrize("family", MADE)
def test_prompts_in_chunks_and_replies_side_by_side_are_what_the_module_says(family: str) -> None:
    module = model_of(family)
    texts = prompt(40), prompt(23, 1)
    expected = [by_itself(module, text) for text in texts]
    fused = fused_decoder(module)
    assert fused is not None
    assert fused.num_parameters() == module.num_parameters()
    assert torch.equal(by_itself(module, texts[0]), expected[0]), "the module stays usable"
    assert matrices(module) == matrices(fused)
    run, tables = Runner(fused, pages=8, page_size=16), ([3, 0, 6], [5, 1])
    run.run([Span(0, 0, texts[0][:17], samples=False, pages=tables[0])])
    spans = [(17, texts[0], tables[0]), (0, texts[1], tables[1])]
    run.run([Span(0, start, text[start:-1], samples=False, pages=table) for start, text, table in spans])
    logits = run.run(
        [Span(0, len(t) - 1, t[-1:], samples=True, pages=p) for t, p in zip(texts, tables, strict=True)]
    )
    for row, wanted in zip(logits, expected, strict=True):
        torch.testing.assert_close(row, wanted, atol=1e-4, rtol=1e-4)


def matrices(module: torch.nn.Module) -> set[int]:
    """Where in memory the matrices are."""
    return {weight.untyped_storage().data_ptr() for weight in module.parameters() if weight.dim() > 1}


@pytest.mark.parametrize("family", ["gemma2", "gpt2", "mistral"])
def test_other_kinds_and_sliding_windows_are_left_to_the_module(family: str) -> None:
    assert fused_decoder(make(family)) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@torch.inference_mode()
def test_norms_are_the_module_s(dtype: torch.dtype) -> None:
    norm = LlamaRMSNorm(24, eps=1e-5).to(dtype)
    norm.weight.copy_(torch.randn(24))
    heads = torch.randn(7, 5, 24, dtype=dtype) * 3 + 1
    torch.testing.assert_close(rms_norm(norm)(heads[:, :3]), norm(heads[:, :3]))
