"""The settings of a vLLM that the service starts, and the settings that conflict with them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from app import cli, models
from app.service import engines_of
from app.settings import DEMO_MODEL, Settings, SettingsError
from engine.upstream.vllm import LaunchedEngine, LaunchOptions

PYTHON = {"engine": sys.executable}


def launched(**settings: Any) -> LaunchOptions:
    engine = engines_of(Settings.read({}, PYTHON | settings))
    assert isinstance(engine, LaunchedEngine)
    return engine._options


def test_the_settings_are_its_own() -> None:
    options = launched(engine_arg=("max-model-len=4096", "enable-lora"), max_batch="64")
    assert options == LaunchOptions(
        python=sys.executable,
        model=str(DEMO_MODEL),
        served_name="midstream-demo",
        arguments=("--max-model-len=4096", "--enable-lora"),
        max_batch=64,
    )
    assert launched(model="org/model").served_name == "org/model"


def test_arguments_stand_in_their_variable_with_spaces_between() -> None:
    settings = Settings.read({"MIDSTREAM_ENGINE_ARG": "enable-lora 'lora-modules=a=/my adapters/a'"})
    assert settings.engine_arg == ("enable-lora", "lora-modules=a=/my adapters/a")
    with pytest.raises(SettingsError, match=r"MIDSTREAM_ENGINE_ARG \(--engine-arg\): No closing quotation"):
        Settings.read({"MIDSTREAM_ENGINE_ARG": "'open"})


def test_the_option_may_be_given_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(Settings, "read", lambda _environ, given: seen.append(given) or sys.exit(0))
    CliRunner().invoke(cli.main, ["serve", "--engine-arg", "a=1", "--engine-arg", "b"])
    CliRunner().invoke(cli.main, ["serve"])
    assert [given.get("engine_arg") for given in seen] == [("a=1", "b"), None]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"engine_arg": ("port=1",)}, r"\(--engine-arg\): 'port' is the gateway's business"),
        ({"device": "cuda"}, r"\(--device\) does not go with --engine vllm: .*CUDA_VISIBLE_DEVICES"),
        ({"device": "cuda,cuda"}, "data-parallel-size=2"),
        ({"quantize": "int8"}, "--engine-arg quantization="),
        ({"kv_memory": "1"}, "gpu-memory-utilization"),
        ({"upstream": "http://h/v1"}, r"\(--upstream\) does not go with --engine vllm"),
        ({"engine": "/nowhere/python"}, r"no Python at /nowhere/python\. `make vllm` makes"),
        ({"engine": __file__}, "`make vllm` makes"),
        ({"engine": "midstream", "engine_arg": ("x",)}, "is for --engine vllm"),
        (
            {"engine": "sglang"},
            r"\(--engine\): 'sglang' can't be used. It takes one of these: midstream: the built-in engine",
        ),
    ],
)
def test_what_does_not_go_with_it_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        launched(**settings)


def test_without_a_python_it_is_the_one_that_make_vllm_makes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert models.VLLM_PYTHON.parts[-4:] == (".cache", "vllm", "bin", "python")
    monkeypatch.setattr(models, "VLLM_PYTHON", tmp_path / "none")
    with pytest.raises(SettingsError, match="make vllm"):
        launched(engine="vllm")
    monkeypatch.setattr(models, "VLLM_PYTHON", Path(sys.executable))
    assert launched(engine="vllm").python == sys.executable
