"""Our own engines, from the settings or from the tables `[[engine]]` of a file of several models."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from app.settings import Settings
from app.setup.conversion import with_folder
from engine.fleet import EngineFleet
from engine.loading.preflight import check_options
from engine.options import EngineOptions, ForwardOptions, shared_out, spread
from engine.process.client import EngineClient
from engine.process.supervision import HeartbeatOptions


class EngineTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One model that runs here. `model`: a hub name or a folder; `served_name`: its name for clients.

    For what it leaves out, the settings of the same names hold.
    """

    model: Annotated[str, Meta(min_length=1)]
    served_name: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    device: Annotated[str, Meta(pattern=r"^\s*[^\s,]+\s*(,\s*[^\s,]+\s*)*$")] | None = None
    engines: Annotated[int, Meta(ge=1, le=64)] | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16"] | None = None
    attn: str | None = None
    quantize: str | None = None
    max_batch: Annotated[int, Meta(ge=1, le=1024)] | None = None
    kv_bytes: Annotated[int, Meta(ge=1)] | None = None

    @property
    def public_name(self) -> str:
        """The model's name for clients."""
        return self.served_name or (Path(self.model).name if Path(self.model).exists() else self.model)

    def over(self, settings: Settings) -> Settings:
        """Return the settings of this model."""
        overrides = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        overrides.pop("served_name", None)
        return with_folder(msgspec.structs.replace(settings, **overrides))


def check_engines(settings: Settings) -> None:
    """Raise ModelNotUsable if the model or its devices are known to be unusable before anything starts."""
    options = _options(settings)
    for device in settings.devices:
        check_options(msgspec.structs.replace(options, device=device))


def encoded_options(settings: Settings) -> str:
    """Return the options of the first engine, as `python -m engine.loading` takes them."""
    options = msgspec.structs.replace(_options(settings), device=settings.devices[0])
    return msgspec.json.encode(options).decode()


def own_engines(settings: Settings) -> EngineClient | EngineFleet:
    """Return the engines of the model that the settings name."""
    options = spread(_options(settings), devices=settings.devices, each=settings.engines, cores=_cores())
    return _together(options, settings)


def engines_of_tables(tables: Sequence[EngineTable], settings: Settings) -> list[EngineClient | EngineFleet]:
    """Return the engines of each model; they share the machine."""
    each = [_options_per_device(table.over(settings)) for table in tables]
    shared = iter(shared_out([engine for engines in each for engine in engines], cores=_cores()))
    return [_together([next(shared) for _ in engines], settings) for engines in each]


def _options_per_device(settings: Settings) -> list[EngineOptions]:
    options = _options(settings)
    return [
        msgspec.structs.replace(options, device=device)
        for device in settings.devices
        for _ in range(settings.engines)
    ]


def _options(settings: Settings) -> EngineOptions:
    return EngineOptions(
        model=settings.model_path,
        dtype=settings.dtype,
        pickled_weights=settings.pickled_weights,
        reply_tokens=settings.reply_tokens,
        max_batch=settings.max_batch,
        kv_bytes=settings.kv_bytes,
        kv_idle_s=settings.kv_idle_s,
        forward=ForwardOptions(
            attn=settings.attn,
            quantize=settings.quantize,
            tensor_parallel=settings.tensor_parallel,
        ),
    )


def _together(options: Sequence[EngineOptions], settings: Settings) -> EngineClient | EngineFleet:
    heartbeat = HeartbeatOptions(step_timeout_s=settings.step_timeout_s)
    if len(options) == 1:
        return EngineClient(options[0], heartbeat=heartbeat)
    return EngineFleet(options, heartbeat=heartbeat)


def _cores() -> int:
    """Return how many cores this process may use; all of them if the system does not say."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
