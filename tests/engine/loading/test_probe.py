"""A model is served only if it says through the slots what it says by itself."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    Gemma4TextConfig,
    GptOssConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    StableLmConfig,
    StableLmForCausalLM,
)

from engine.errors import ModelNotUsable
from engine.loading.probe import (
    agrees,
    kv_bytes_per_token,
    largest_step,
    probe,
)
from tests.engine.families import FAMILIES, SIZES, VOCABULARY, WINDOW
from tests.engine.tiny_models import make


@pytest.mark.parametrize("family", FAMILIES)
def test_models_that_agree_with_themselves_pass_and_tell_their_bytes(family: str) -> None:
    module = make(family)
    with torch.inference_mode():
        kept = module(torch.tensor([[1, 2, 3]])).past_key_values
    own = sum(store[0, :, 0].nbytes for layer in kept.layers for store in (layer.keys, layer.values))
    assert probe(module, VOCABULARY).bytes_per_token == own > 0
    assert kv_bytes_per_token(module.config, torch.float32) == own, "known from the sizes alone"


def eager(module: PreTrainedModel) -> PreTrainedModel:
    module.set_attn_implementation("eager")
    return module.eval()


def test_an_attention_that_needs_more_than_is_built_is_refused() -> None:
    with pytest.raises(ModelNotUsable, match="does not pass on"):
        probe(eager(StableLmForCausalLM(StableLmConfig(**SIZES))), VOCABULARY)


class Broken(LlamaForCausalLM):
    """Raises whatever it is given."""

    def forward(self, *_arguments: object, **_options: object) -> object:
        raise TypeError("it needs a processor")


def test_a_model_that_computes_nothing_by_itself_is_refused() -> None:
    with pytest.raises(ModelNotUsable, match="it needs a processor"):
        probe(eager(Broken(LlamaConfig(**SIZES))), VOCABULARY)


class Forgetful(LlamaForCausalLM):
    """Adds up what it saw in a state of its own, which no KV cache knows of."""

    def forward(self, *arguments: object, **options: object) -> object:
        output = super().forward(*arguments, **options)
        output.logits = output.logits + output.logits.cumsum(1)
        return output


def test_a_model_that_says_something_else_through_the_slots_is_refused() -> None:
    torch.manual_seed(0)
    with pytest.raises(ModelNotUsable, match="does not go through the KV cache"):
        probe(eager(Forgetful(LlamaConfig(**SIZES))), VOCABULARY)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_the_largest_step_is_computed_at_once_within_the_window(family: str) -> None:
    module = probe(make(family), VOCABULARY).module
    assert largest_step(module, VOCABULARY, WINDOW).shape == (1, VOCABULARY)


def test_a_fused_pass_that_says_something_else_is_left_out_and_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A hook changes what the module says, and the fused form knows weights alone."""
    agreeing = make("llama").to(torch.bfloat16)
    assert probe(agreeing, VOCABULARY).module is not agreeing
    assert not caplog.text
    module = make("llama")
    module.model.layers[0].mlp.register_forward_hook(lambda _module, _given, made: 3 * made)
    assert probe(module, VOCABULARY).module is module
    assert "the fused form of LlamaForCausalLM gives different logits" in caplog.text


@pytest.mark.parametrize("spoiled", range(4))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_no_row_may_be_garbage_in_any_precision(dtype: torch.dtype, spoiled: int) -> None:
    expected = torch.randn(4, 100, generator=torch.Generator().manual_seed(1))
    got = expected * (1 + 1e-4)
    assert agrees(got, expected, dtype)
    got[spoiled] = torch.randn(100, generator=torch.Generator().manual_seed(2))
    assert not agrees(got, expected, dtype)
    got[spoiled] = torch.nan
    assert not agrees(got, expected, dtype)


NOT_BUILT = {
    "gemma4": (
        Gemma4TextConfig(
            **SIZES | {"num_hidden_layers": 12}, num_kv_shared_layers=6, vocab_size_per_layer_input=VOCABULARY
        ),
        "some of its layers attend to keys and values of other layers",
    ),
    "gpt-oss": (GptOssConfig(**SIZES, num_local_experts=4), "attention sinks"),
    "bert": (BertConfig(**SIZES), "masks attention with rules of its own"),
}


@pytest.mark.parametrize("case", NOT_BUILT)
def test_what_is_not_built_is_said_in_words(case: str) -> None:
    config, words = NOT_BUILT[case]
    with pytest.raises(ModelNotUsable, match=words) as caught:
        probe(eager(AutoModelForCausalLM.from_config(config)), VOCABULARY)
    assert "--engine vllm" in str(caught.value)
    assert "indices" not in str(caught.value)
