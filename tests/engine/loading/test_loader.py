"""What is loaded, and what is refused with a sentence for the operator."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import nn
from transformers import (
    BartConfig,
    BloomConfig,
    FalconConfig,
    FalconH1Config,
    Gemma3TextConfig,
    GenerationConfig,
    JambaConfig,
    Lfm2Config,
    LlamaConfig,
    MambaConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    Qwen3NextConfig,
    RwkvConfig,
    ViTConfig,
)

from engine.errors import ModelNotUsable
from engine.loading.loader import defaults_of, eos_ids_of, load
from engine.loading.preflight import check_options, check_quantization
from engine.loading.probe import window_of
from engine.machine import EngineOptions
from engine.messages import REPLY_TOKENS, Params
from engine.model.cpu.kernels import CpuLinear
from tests.engine.conftest import TEMPLATE, small_tokenizer


@pytest.fixture
def folder(tiny_llama: Path, tmp_path: Path) -> Path:
    """A copy of a good model, to be spoilt."""
    return Path(shutil.copytree(tiny_llama, tmp_path / "model"))


def edit(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def refusal(model: str | Path, **options: object) -> str:
    with pytest.raises(ModelNotUsable) as caught:
        load(EngineOptions(model=str(model), **({"device": "cpu", "dtype": "float32"} | options)))
    message = str(caught.value)
    assert "\n" not in message
    assert "Traceback" not in message
    return message


def test_a_good_folder_is_loaded_with_its_facts(folder: Path) -> None:
    generation = {
        "do_sample": True,
        "temperature": 0.3,
        "top_p": 0.9,
        "eos_token_id": [1, 2],
        "max_new_tokens": 99,
    }
    (folder / "generation_config.json").write_text(json.dumps(generation))
    model = load(EngineOptions(model=str(folder), device="cpu", dtype="float32", max_batch=3))
    facts = model.facts()
    assert (facts.model, facts.device, facts.dtype, facts.max_batch) == (str(folder), "cpu", "float32", 3)
    assert facts.context_tokens == 4096
    assert facts.parameters == model.module.num_parameters() > 0
    assert model.eos_ids == {1, 2, model.tokenizer.eos_token_id}
    defaults = facts.defaults
    assert (defaults.max_new_tokens, defaults.do_sample, defaults.temperature) == (99, True, 0.3)
    assert (defaults.top_p, defaults.top_k, defaults.repetition_penalty) == (0.9, 50, 1.0)


def test_the_weights_are_told_one_by_one(tiny_llama: Path) -> None:
    """The start of a large model is no minute of silence."""
    seen: list[tuple[str, float]] = []
    load(
        EngineOptions(model=str(tiny_llama), device="cpu"),
        progress=lambda stage, share: seen.append((stage, share)),
    )
    shares = [share for _, share in seen]
    assert shares == sorted(shares)
    assert (shares[0], seen[-1]) == (0.0, ("ready", 1.0))
    weights = [share for stage, share in seen if "weights" in stage]
    assert len(weights) > 10
    assert weights[-1] == pytest.approx(0.8)


def test_a_model_is_quantized_on_request(tiny_llama: Path) -> None:
    stages: list[str] = []
    model = load(
        EngineOptions(model=str(tiny_llama), device="cpu", dtype="bf16", quantize="int8"),
        progress=lambda stage, _: stages.append(stage),
    )
    layers = [layer for layer in model.module.modules() if isinstance(layer, nn.Linear | CpuLinear)]
    with pytest.raises(ModelNotUsable, match="run on CPUs only"):
        check_quantization("int8", device="cuda", dtype="bfloat16")
    assert "quantizing" in stages
    assert {layer.weight.dtype for layer in layers} == {torch.int8}
    assert model.facts().dtype == "bfloat16"


def test_memory_for_keys_and_values_bounds_the_context(tiny_llama: Path) -> None:
    bytes_per_token = 2 * 2 * 2 * 8 * 4  # keys and values, layers, heads, size, float32
    model = load(
        EngineOptions(
            model=str(tiny_llama), device="cpu", dtype="fp32", max_batch=4, kv_bytes=100 * bytes_per_token
        )
    )
    assert (model.context_tokens, model.kv.pages) == (64, 1)
    assert "MIDSTREAM_KV_MEMORY" in refusal(tiny_llama, kv_bytes=10 * bytes_per_token)


def test_unless_it_is_set_memory_is_bounded_by_what_replies_can_use(tiny_llama: Path) -> None:
    model = load(EngineOptions(model=str(tiny_llama), device="cpu", dtype="fp32", max_batch=3))
    assert model.kv.pages * model.kv.page_size == 3.75 * 4096
    assert (
        load(EngineOptions(model=str(tiny_llama), device="cpu", max_batch=3, kv_bytes=10**9)).kv.total_bytes
        > 999_000_000
    )


@pytest.mark.parametrize(
    ("model", "word"),
    [
        ("/no/such/folder", "does not exist"),
        ("./nowhere", "does not exist"),
        ("nobody/no-such-model", "the hub can't be reached"),
    ],
)
def test_an_unknown_model_is_named(model: str, word: str) -> None:
    message = refusal(model)
    assert model in message
    assert word in message


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"device": "toaster"}, "not the name of a device"),
        ({"device": "xla"}, "does not find it"),
        ({"dtype": "float3"}, "not a dtype"),
        ({"quantize": "int8", "dtype": "fp16"}, "slower than float16"),
        ({"quantize": "int4"}, "the only ones that were measured"),
        ({"quantize": "awq"}, "--engine vllm"),
    ],
)
def test_an_impossible_wish_is_named(tiny_llama: Path, options: dict[str, object], word: str) -> None:
    assert word in refusal(tiny_llama, **options)


def without(*names: str) -> Callable[[Path], None]:
    return lambda folder: [path.unlink() for name in names for path in folder.glob(name)] and None


def less_one_weight(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def spoil(name: str, text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(text) and None


SPOILT = {
    "no config": (without("config.json"), "no config.json"),
    "broken config": (spoil("config.json", "{"), "can't be read"),
    "unknown type": (lambda f: edit(f / "config.json", model_type="quantum"), "does not know"),
    "own code": (
        lambda f: edit(f / "config.json", model_type="own", auto_map={"AutoConfig": "own.Config"}),
        "--engine vllm",
    ),
    "no tokenizer": (without("tokenizer*"), "no tokenizer"),
    "no template": (without("chat_template.jinja"), "no chat template"),
    "no weights": (without("model.safetensors"), "missing"),
    "broken weights": (spoil("model.safetensors", "these are no weights"), "can't be used"),
    "a weight less": (less_one_weight, "lacks 1 of the weights"),
    "other shapes": (lambda f: edit(f / "config.json", intermediate_size=48), "shapes"),
    "far too large": (
        lambda f: edit(f / "config.json", hidden_size=2**16, intermediate_size=2**22, head_dim=64), "GiB"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SPOILT)
def test_a_spoilt_folder_is_refused_with_the_reason(folder: Path, case: str) -> None:
    spoiling, word = SPOILT[case]
    spoiling(folder)
    assert word in refusal(folder)


SMALL = {"vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 2}
OTHERS = {
    "encoder-decoder": lambda: BartConfig(
        vocab_size=300,
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
    ),
    "no language model": lambda: ViTConfig(hidden_size=32, num_hidden_layers=1, intermediate_size=32),
    "a KV cache alone does not serve": lambda: MambaConfig(**SMALL),
    "linear_attention": lambda: Qwen3NextConfig(**SMALL),
    "can't be replaced": lambda: BloomConfig(**SMALL),
    "makes no model": lambda: FalconConfig(**SMALL, num_attention_heads=5),
    "recurrent": lambda: RwkvConfig(**SMALL),
    "hybrid": lambda: FalconH1Config(**SMALL, num_attention_heads=4, num_key_value_heads=2),
    "jamba": lambda: JambaConfig(**SMALL, num_attention_heads=4, num_key_value_heads=2),
    "lfm2": lambda: Lfm2Config(**SMALL, num_attention_heads=4, layer_types=["conv", "full_attention"]),
    "quantized (gptq)": lambda: LlamaConfig(**SMALL, quantization_config={"quant_method": "gptq", "bits": 4}),
    "quantized (in some way)": lambda: LlamaConfig(**SMALL, quantization_config={"bits": 4}),
}
WORDS = {
    "no language model": "not a causal language model",
    "jamba": "a KV cache alone does not serve",
    "lfm2": "a KV cache alone does not serve (conv)",
}


ELSEWHERE = (
    *("a KV cache alone does not serve", "linear_attention", "can't be replaced", "recurrent"),
    *("hybrid", "jamba", "lfm2", "quantized (gptq)", "quantized (in some way)"),
)
"""What another engine may serve."""


@pytest.mark.parametrize("case", OTHERS)
def test_an_architecture_that_would_come_out_wrong_is_refused_before_its_weights_are_read(
    tmp_path: Path, case: str
) -> None:
    """The refusal names the engine that may serve it."""
    OTHERS[case]().save_pretrained(tmp_path)
    small_tokenizer().save_pretrained(tmp_path)
    message = refusal(tmp_path)
    assert WORDS.get(case, case) in message
    assert case not in ELSEWHERE or "--engine vllm" in message


def test_so_does_a_refusal_for_want_of_memory(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.loading.probe.available_bytes", lambda _device: 1)
    assert "--engine vllm --engine-arg tensor-parallel-size=2" in refusal(tiny_llama)


def test_too_little_memory_for_a_forward_pass_is_told(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The allocator is asked for more than any machine has, in the warm-up."""

    def hungry(*_arguments: object) -> torch.Tensor:
        return torch.empty(2**58)

    monkeypatch.setattr("engine.kv_cache.LayerPages.make", hungry)
    assert "does not fit into the memory of cpu" in refusal(tiny_llama)


def test_weights_that_are_not_safetensors_are_loaded_only_if_that_is_set(folder: Path) -> None:
    """PyTorch unpickles them, and a flaw in that would run code of their author."""
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    load(EngineOptions(model=str(folder), device="cpu", dtype="float32"))
    (folder / "model.safetensors").unlink()
    assert "safetensors: convert them" in refusal(folder)
    with pytest.raises(ModelNotUsable, match="--pickled-weights"):
        check_options(EngineOptions(model=str(folder), device="cpu"))
    check_options(EngineOptions(model=str(folder), device="cpu", pickled_weights=True))
    load(EngineOptions(model=str(folder), device="cpu", dtype="float32", pickled_weights=True))


@pytest.fixture
def without_bytes(folder: Path) -> Path:
    """A model whose tokenizer knows words, not bytes."""
    backend = Tokenizer(models.WordLevel({"[UNK]": 0, "hello": 1, "there": 2, "</s>": 3}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.WordPiece()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", unk_token="[UNK]")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


def test_a_tokenizer_without_bytes_leaves_formats_out_and_says_why(
    without_bytes: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loaded = load(EngineOptions(model=str(without_bytes), device="cpu", dtype="float32"))
    assert loaded.grammars is None
    assert loaded.facts().features == ()
    assert "can't be held to formats" in caplog.text


def test_an_empty_generation_config_gives_transformers_own_values() -> None:
    expected = Params(
        REPLY_TOKENS, do_sample=False, temperature=1.0, top_p=1.0, top_k=50, repetition_penalty=1.0
    )
    assert defaults_of(GenerationConfig()) == expected


@pytest.mark.parametrize(
    ("named", "tokenizer", "ids"),
    [
        ([1, 2], 3, {1, 2, 3}),
        (0, 3, {0, 3}),
        (0, 0, {0}),
        (7, None, {7}),
        (None, 3, {3}),
        (None, None, set()),
    ],
)
def test_the_generation_config_and_the_tokenizer_both_name_end_tokens(
    named: Any, tokenizer: int | None, ids: set[int]
) -> None:
    assert eos_ids_of(GenerationConfig(eos_token_id=named), tokenizer) == ids


LONGROPE = {
    "rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 64, "factor": 4.0,
    "short_factor": [1.0] * 32, "long_factor": [2.0] * 32,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "window"),
    [
        (LlamaConfig(max_position_embeddings=77), 77),
        (Gemma3TextConfig(max_position_embeddings=99), 99),
        (MambaConfig(), None),
        (LlamaConfig(head_dim=64, max_position_embeddings=256, rope_parameters=LONGROPE), 64),
    ],
    ids=["llama", "gemma", "no positions", "frequencies that would switch for the whole batch"],
)
def test_the_window_is_what_the_positions_allow(config: PreTrainedConfig, window: int | None) -> None:
    assert window_of(config) == window
