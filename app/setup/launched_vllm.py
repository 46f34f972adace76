"""The vLLM in the settings, as an engine. Refuses settings that do not apply to it."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from app.setting_values import PREFIX, SettingsError
from app.settings import Settings
from engine.upstream.vllm import MAKE, LaunchedEngine, LaunchOptions, checked_arguments

MADE = Path(__file__).parents[2] / ".cache" / "vllm" / "bin" / "python"
"""The Python of the environment that `make vllm` makes."""
_OTHERS = {
    "upstreams": "a vLLM that runs elsewhere is an upstream; --engine vllm starts one here",
    "device": "vLLM takes the GPUs of CUDA_VISIBLE_DEVICES",
    "engines": "use --engine-arg data-parallel-size=2",
    "attn": "use --engine-arg attention-backend=…",
    "quantize": "use --engine-arg quantization=…",
    "kv_bytes": "use --engine-arg kv-cache-memory-bytes=… or gpu-memory-utilization=…",
    "kv_idle_s": "vLLM takes its memory at the start, and keeps it",
}
"""Settings of Midstream's own engine, with vLLM's counterparts."""


def launched_engine(settings: Settings) -> LaunchedEngine | None:
    """Return a vLLM to start; None if another engine is asked for. Raises SettingsError."""
    if settings.engine != "vllm":
        if settings.engine_arg:
            raise SettingsError(f"{_called('engine_arg')} is for --engine vllm.")
        return None
    _refuse_others(settings)
    return LaunchedEngine(
        LaunchOptions(
            python=_python(settings),
            model=settings.model_path,
            served_name=settings.model_name,
            arguments=_arguments(settings),
            dtype=settings.dtype,
            max_batch=settings.max_batch,
            tensor_parallel=settings.tensor_parallel,
        )
    )


def _refuse_others(settings: Settings) -> None:
    defaults = {field.name: field.default for field in msgspec.structs.fields(Settings)}
    for name, instead in _OTHERS.items():
        if getattr(settings, name) != defaults[name]:
            raise SettingsError(f"{_called(name)} does not go with --engine vllm: {instead}.")


def _arguments(settings: Settings) -> tuple[str, ...]:
    try:
        return checked_arguments(settings.engine_arg)
    except ValueError as error:
        raise SettingsError(f"{_called('engine_arg')}: {error}.") from error


def _python(settings: Settings) -> str:
    """Return the Python of vLLM's environment. A link is not resolved: Python finds its packages by the link's place."""
    chosen = MADE if settings.engine_python is None else Path(settings.engine_python).expanduser().absolute()
    if not (chosen.is_file() and os.access(chosen, os.X_OK)):
        raise SettingsError(f"--engine vllm: there is no Python at {chosen}. {MAKE}.")
    return str(chosen)


def _called(name: str) -> str:
    return f"{PREFIX}{name.upper()} (--{name.replace('_', '-')})"
