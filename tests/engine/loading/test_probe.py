"""A model is served only if it says through the slots what it says by itself; whether it does is known before its weights are."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    DeepseekV3Config,
    Gemma3TextConfig,
    Gemma4TextConfig,
    GptOssConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3MoeConfig,
    StableLmConfig,
    StableLmForCausalLM,
    XmodConfig,
)

from engine.errors import ModelNotUsable
from engine.loading.probe import (
    NotTestable,
    agrees,
    kv_bytes_per_token,
    largest_step,
    probe,
    reduced,
    try_small_model,
)
from tests.engine.conftest import small_tokenizer
from tests.engine.families import FAMILIES, SIZES, VOCABULARY, WINDOW
from tests.engine.families_table import PAGE, answer, page
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


SHARES = Gemma4TextConfig(num_hidden_layers=12, num_kv_shared_layers=6)
"""As Gemma 4 E2B and E4B."""
PRINTED = (
    "import sys; from engine.loading.loader import load; from engine.machine import EngineOptions; "
    "load(EngineOptions(model=sys.argv[1], device='cpu'))"
)


@pytest.mark.long
@pytest.mark.parametrize("kind", [LlamaConfig, Qwen3MoeConfig, Gemma3TextConfig, DeepseekV3Config])
def test_a_model_of_any_size_is_tried_in_seconds(kind: type[PreTrainedConfig]) -> None:
    config = kind()
    assert reduced(config).num_hidden_layers == config.num_hidden_layers
    assert config.hidden_size > 500 > reduced(config).hidden_size
    try_small_model(config)


@pytest.mark.long
@pytest.mark.parametrize(
    ("config", "words"),
    [
        (SHARES, "some of its layers attend to keys and values of other layers"),
        (GptOssConfig(num_hidden_layers=4), "attention sinks"),
        (BertConfig(num_hidden_layers=2), "masks attention with rules of its own"),
    ],
    ids=["gemma4", "gpt-oss", "bert"],
)
def test_what_is_not_built_is_said_in_words(config: PreTrainedConfig, words: str) -> None:
    with pytest.raises(ModelNotUsable, match=words) as caught:
        try_small_model(config)
    assert "--engine vllm" in str(caught.value)
    assert "indices" not in str(caught.value)


@pytest.mark.long
def test_a_small_model_that_does_not_run_by_itself_proves_nothing() -> None:
    with pytest.raises(NotTestable, match="language"):
        try_small_model(XmodConfig(num_hidden_layers=2))


@pytest.mark.long
def test_a_start_refuses_before_it_fetches_weights(tmp_path: Path) -> None:
    """A configuration and a tokenizer are where the hub's client keeps them, without weights."""
    folder = tmp_path / "models--some--gemma"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0" * 40)
    SHARES.save_pretrained(folder / "snapshots" / ("0" * 40))
    small_tokenizer().save_pretrained(folder / "snapshots" / ("0" * 40))
    environ = os.environ | {"HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", PRINTED, "some/gemma"]
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=110)
    assert "attend to keys and values of other layers" in ended.stderr.splitlines()[-1]


DOCUMENTED = ("llama", "qwen3", "gpt_oss", "falcon", "mamba", "bert")


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_the_whole_list_is_that_of_today() -> None:
    assert page() == PAGE.read_text()


def test_some_families_are_answered_as_the_list_says() -> None:
    served = re.findall(r"^- \*\*Served\*\* \(\d+\): ([^:]+?)\n- ", PAGE.read_text(), re.MULTILINE)
    assert {"llama", "qwen3"} <= set(" ".join(served[0].split()).split(", "))
    known = {kind.model_type: kind for kind in AutoModelForCausalLM._model_mapping}
    assert [answer(known[name]) for name in DOCUMENTED] == [
        "", "", "attention sinks", "can't be replaced", "keeps a state", "rules of its own",
    ]  # fmt: skip
