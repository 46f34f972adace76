"""What `midstream size` tells is held against what was measured here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from huggingface_hub import constants
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis

from app.models import convert
from app.settings import DEMO_MODEL, Settings
from app.sizing import (
    LISTED_BYTES,
    Assumptions,
    Shape,
    ShapeUnknown,
    estimate,
    journal_bytes,
    shape_of,
    size,
    stored_bytes,
)
from engine.loading.loader import load
from engine.machine import EngineOptions
from tests.bench.conversations import cost
from tests.engine.gguf_files import some_llama, write_gguf

LLAMA = {
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "dtype": "bfloat16",
}
"""Llama 3 8B."""


def folder(path: Path, config: dict[str, Any]) -> str:
    (path / "config.json").write_text(json.dumps(config))
    return str(path)


def test_the_demo_model_takes_what_is_told_of_it() -> None:
    """Keys and values exactly; the weights, by the shape alone, within two per cent."""
    shape, loaded = (
        shape_of(str(DEMO_MODEL)),
        load(EngineOptions(model=str(DEMO_MODEL), device="cpu", dtype="bfloat16")),
    )
    assert shape.kv_bytes_per_token("bfloat16") == loaded.kv.bytes_per_token
    assert shape.window == loaded.context_tokens
    real = loaded.facts().parameters
    assert shape.parameters == pytest.approx(real, rel=0.02)
    assert shape.weights_bytes("bfloat16") == pytest.approx(2 * real, rel=0.02)
    assert shape.weights_bytes("float32") == 2 * shape.weights_bytes("bfloat16")


@pytest.mark.parametrize(("exchanges", "tokens"), [(1, 300), (6, 100), (6, 300)])
async def test_a_reply_is_stored_in_what_is_told_of_it(store: Redis, exchanges: int, tokens: int) -> None:
    """Within 15 per cent for good, and never more than is told while a reader may come back."""
    seen = await cost(store, exchanges=exchanges, tokens=tokens)
    reported = (
        stored_bytes(exchanges, 1, seen.text / exchanges) - LISTED_BYTES
    )  # lists are not looked at here
    assert reported == pytest.approx(seen.after, rel=0.15)
    assert seen.before <= reported + journal_bytes(exchanges, tokens)


def test_a_known_model_has_its_known_size(tmp_path: Path) -> None:
    shape = shape_of(folder(tmp_path, LLAMA))
    assert shape.kv_bytes_per_token("bfloat16") == 131_072
    assert shape.parameters == pytest.approx(8.03e9, rel=0.005)
    assert shape.weights_bytes("bfloat16") == pytest.approx(16.06e9, rel=0.005)


def test_the_decoder_of_a_model_of_pictures_is_found(tmp_path: Path) -> None:
    shape = shape_of(folder(tmp_path, {"text_config": LLAMA, "vision_config": {"hidden_size": 1}}))
    assert (shape.layers, shape.kv_heads, shape.head_dim) == (32, 8, 128)


def test_a_package_is_sized_before_it_is_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(size, ["--users", "100", "--model", "smollm2"])
    assert done.exit_code == 0, done.output
    assert "100 users of smollm2 (0.13 billion parameters, bfloat16)" in done.output
    assert "23,040 bytes" in done.output


def test_a_gguf_file_is_sized_once_it_is_converted(tmp_path: Path) -> None:
    model, data = str(write_gguf(tmp_path / "tiny.gguf", some_llama())), str(tmp_path / "data")
    requested = ["--users", "100", "--model", model]
    assert "was not converted yet" in CliRunner().invoke(size, [*requested, "--data-dir", data]).output
    convert(Settings(model=model, data_dir=data))
    done = CliRunner().invoke(size, requested, env={"MIDSTREAM_DATA_DIR": data})
    assert "100 users of tiny.gguf" in done.output


@pytest.mark.parametrize("sign", ["kv_lora_rank", "n_routed_experts"])
def test_a_model_of_another_kind_is_told_to_be_one(tmp_path: Path, sign: str) -> None:
    with pytest.raises(ShapeUnknown, match=sign):
        shape_of(folder(tmp_path, LLAMA | {sign: 64}))


def test_experts_are_counted(tmp_path: Path) -> None:
    mixtral = LLAMA | {"num_local_experts": 8, "vocab_size": 32_000}
    assert shape_of(folder(tmp_path, mixtral)).parameters == pytest.approx(46.7e9, rel=0.005)


@pytest.mark.parametrize(
    "written", ["", "{", "[]", '{"num_hidden_layers": "many"}', '{"num_hidden_layers": 3}', '{"x": 1}']
)
def test_a_folder_without_a_shape_is_told_by_its_file(tmp_path: Path, written: str) -> None:
    if written:
        (tmp_path / "config.json").write_text(written)
    with pytest.raises(ShapeUnknown, match=r"config\.json"):
        shape_of(str(tmp_path))


def test_a_model_of_the_hub_is_found_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "models--somebody--llama"
    (kept / "refs").mkdir(parents=True)
    (kept / "refs" / "main").write_text("abc")
    (kept / "snapshots" / "abc").mkdir(parents=True)
    folder(kept / "snapshots" / "abc", LLAMA)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    shape = shape_of("somebody/llama")
    assert (shape.name, shape.layers, shape.stored_bytes) == ("llama", 32, None)


SHAPE = Shape(
    name="a",
    layers=32,
    kv_heads=8,
    head_dim=128,
    window=8192,
    parameters=8_000_000_000,
    stored_dtype="bfloat16",
    stored_bytes=None,
)


def test_the_sums_are_those_of_little_s_law() -> None:
    """1,000 connected people with 12 messages an hour: 3.3 replies a second of 300 tokens, 15 s each."""
    found = estimate(10_000, SHAPE, Assumptions(), dtype="bfloat16", engine_tokens_per_s=400)
    assert found.connected == 1000
    assert found.turns_per_s == pytest.approx(10 / 3)
    assert found.replies_at_once == 50
    assert found.decode_tokens_per_s == pytest.approx(1000)
    assert found.prefill_tokens_per_s == pytest.approx(10 / 3 * 450)
    assert found.engines == 3
    assert found.kv_running_bytes == 50 * 2350 * 131_072
    assert found.redis_stored_bytes == 10_000 * 150 * (1400 + 1027) + 150_000 * 1600


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_more_people_never_need_less(some: int, more: int) -> None:
    few, many = (
        msgspec.structs.asdict(estimate(users, SHAPE, Assumptions(), dtype="bfloat16"))
        for users in (some, some + more)
    )
    less = {name for name, value in few.items() if value is not None and many[name] < value}
    assert less <= {"kv_reused_bytes"}


def test_the_table_names_each_assumption_with_its_option_and_programs_get_json() -> None:
    ended = CliRunner().invoke(size, ["--users", "5000", "--reply-tokens", "123"])
    assert ended.exit_code == 0, ended.output
    for name in Assumptions.__struct_fields__:
        assert f"--{name.replace('_', '-')} " in ended.output
    assert "  123  Tokens of a reply." in ended.output
    assert "give --engine-tokens-per-s" in ended.output
    ended = CliRunner().invoke(size, ["--users", "5000", "--json", "--engine-tokens-per-s", "100"])
    reported = json.loads(ended.output)
    assert reported["estimate"]["users"] == 5000
    assert reported["estimate"]["engines"] > 0
    assert reported["assumed"]["online"] == 0.1


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (["--model", "/no/such/dir"], "no folder /no/such/dir"),
        (["--model", "nobody/nothing"], "hf download nobody/nothing"),
        (["--online", "2"], "--online"),
        (["--reply-tokens", "nan"], "finite"),
        (["--engine-tokens-per-s", "inf"], "finite"),
        (["--reply-tokens", "1e308", "--messages-per-hour", "1e308"], "too large to compute"),
    ],
)
def test_what_can_not_be_reckoned_with_is_told_in_a_sentence(given: list[str], complaint: str) -> None:
    ended = CliRunner().invoke(size, ["--users", "1000", *given])
    assert (ended.exit_code in (1, 2), complaint in ended.output) == (True, True), ended.exception
