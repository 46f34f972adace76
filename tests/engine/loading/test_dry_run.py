"""Whether a model runs here is known from its configuration and its tokenizer, before its weights are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from transformers import (
    BertConfig,
    DeepseekV3Config,
    Gemma3TextConfig,
    Gemma4TextConfig,
    GptOssConfig,
    LlamaConfig,
    PreTrainedConfig,
    Qwen3MoeConfig,
    XmodConfig,
)

from engine.errors import ModelNotUsable
from engine.loading.preflight import PreflightResult
from engine.loading.probe import NotTestable, reduced, try_small_model
from engine.machine import EngineOptions
from tests.engine.conftest import small_tokenizer

SHARES = Gemma4TextConfig(num_hidden_layers=12, num_kv_shared_layers=6)
"""As Gemma 4 E2B and E4B."""
PRINTED = "import sys; from engine.loading.loader import load; load(sys.argv[1], device='cpu')"


@pytest.mark.parametrize("kind", [LlamaConfig, Qwen3MoeConfig, Gemma3TextConfig, DeepseekV3Config])
def test_a_model_of_any_size_is_tried_in_seconds(kind: type[PreTrainedConfig]) -> None:
    config = kind()
    assert reduced(config).num_hidden_layers == config.num_hidden_layers
    assert config.hidden_size > 500 > reduced(config).hidden_size
    try_small_model(config)


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


def test_a_small_model_that_does_not_run_by_itself_proves_nothing() -> None:
    with pytest.raises(NotTestable, match="language"):
        try_small_model(XmodConfig(num_hidden_layers=2))


def in_cache(cache: Path, name: str, config: PreTrainedConfig) -> None:
    """Put a configuration and a tokenizer where the hub's client keeps them, without weights."""
    folder = cache / f"models--{name.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0" * 40)
    config.save_pretrained(folder / "snapshots" / ("0" * 40))
    small_tokenizer().save_pretrained(folder / "snapshots" / ("0" * 40))


def run(cache: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = os.environ | {"HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [sys.executable, *arguments], env=environ, capture_output=True, text=True, check=False, timeout=110
    )


def verdict(cache: Path, model: str) -> PreflightResult:
    options = msgspec.json.encode(EngineOptions(model=model, device="cpu", dtype="bfloat16")).decode()
    return msgspec.json.decode(
        run(cache, "-m", "engine.loading", "check", options).stdout, type=PreflightResult
    )


def test_the_answer_comes_without_weights(tmp_path: Path) -> None:
    in_cache(tmp_path, "some/llama", LlamaConfig(num_hidden_layers=2, max_position_embeddings=4096))
    reported = verdict(tmp_path, "some/llama")
    assert reported.serves
    assert "LlamaForCausalLM runs in this engine, with 1.3 GB of weights in bfloat16" in reported.words
    assert "context of about 4,096 tokens" in reported.words


def test_a_start_refuses_before_it_fetches_weights(tmp_path: Path) -> None:
    in_cache(tmp_path, "some/gemma", SHARES)
    ended = run(tmp_path, "-c", PRINTED, "some/gemma")
    assert "attend to keys and values of other layers" in ended.stderr.splitlines()[-1]
