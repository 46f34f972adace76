"""The models of the settings, as engines: local ones, vLLM, upstreams, embedding models and the bundled translator."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from app.settings import Settings, SettingsError, called, secret_of
from app.setup.conversion import convert, converted_folder, with_folder
from engine.api import Embedder, Engine
from engine.loading.preflight import check_options
from engine.machine import EngineOptions, ForwardOptions, shared_out, spread
from engine.messages import Languages, ModelFacts, Params
from engine.process.client import EngineClient, EngineOnDemand
from engine.process.supervision import HeartbeatOptions
from engine.served_models import EngineFleet, InvalidModels, ServedModel, ServedModels
from engine.upstream.engine import EmbedderOptions, UpstreamEmbedder, UpstreamEngine, UpstreamFleet
from engine.upstream.options import UpstreamOptions, with_preset
from engine.upstream.vllm import MAKE, LaunchedEngine, LaunchOptions, checked_arguments

_NAMES = "MIDSTREAM_SERVED_NAMES (--served-names)"
SETTING = "MIDSTREAM_UPSTREAMS (--upstreams)"
VLLM_PYTHON = Path(__file__).parents[2] / ".cache" / "vllm" / "bin" / "python"
"""The Python of the environment that `make vllm` makes."""
_NOT_FOR_VLLM = {
    "upstreams": "a vLLM that runs elsewhere is an upstream; --engine vllm starts one here",
    "device": "vLLM takes the GPUs of CUDA_VISIBLE_DEVICES",
    "engines": "use --engine-arg data-parallel-size=2",
    "attn": "use --engine-arg attention-backend=…",
    "quantize": "use --engine-arg quantization=…",
    "kv_bytes": "use --engine-arg kv-cache-memory-bytes=… or gpu-memory-utilization=…",
    "kv_idle_s": "vLLM takes its memory at the start, and keeps it",
}
"""Settings of Midstream's own engine, with vLLM's counterparts."""
TRANSLATOR = Path(__file__).parents[2] / "demo_translator" / "checkpoint"
TRANSLATOR_NAME = "midstream-translator"
_TRANSLATOR_KV_BYTES = 64 << 20
"""For some thirty sentences at once. The default, a quarter of the free memory, would be taken from the other model."""
_LANGUAGES = ("eng_Latn", "zho_Hans")
TRANSLATOR_FACTS = ModelFacts(
    model=str(TRANSLATOR),
    context_tokens=512,
    defaults=Params(
        max_new_tokens=254, do_sample=False, temperature=1.0, top_p=1.0, top_k=50, repetition_penalty=1.0
    ),
    device="cpu",
    dtype="bfloat16",
    max_batch=32,
    parameters=2_793_792,
    features=("translate",),
    languages=Languages(_LANGUAGES, _LANGUAGES, 256),
)
"""The facts that its process will report, except for the type of the weights, which depends on the processor."""


Name = Annotated[str, Meta(min_length=1, max_length=256)]


class ModelTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model's `aliases`, and the `fallbacks` that answer if it can't."""

    name: Name
    aliases: tuple[Name, ...] = ()
    fallbacks: tuple[Name, ...] = ()


class ModelFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file: a table `[[upstream]]` for each server, `[[engine]]` for each model that runs here, `[[model]]`.

    `[[embedder]]`: for each embedding model of a server.
    """

    upstream: tuple[UpstreamOptions, ...] = ()
    engine: tuple[EngineTable, ...] = ()
    model: tuple[ModelTable, ...] = ()
    embedder: tuple[EmbedderOptions, ...] = ()

    @property
    def names(self) -> list[str]:
        """Return the served models, the default first: those of `[[model]]`, then the others."""
        tables = (table.name for table in self.model)
        upstream = (options.public_name for options in self.upstream)
        own = (table.public_name for table in self.engine)
        return list(dict.fromkeys([*tables, *upstream, *own]))


def file_of(settings: Settings) -> ModelFile:
    """Read the file; an empty one if none is named. Raises SettingsError."""
    if settings.upstreams is None:
        return ModelFile()
    path = Path(settings.upstreams).expanduser()
    if settings.model is not None:
        raise SettingsError(f"{SETTING} and MIDSTREAM_MODEL (--model) exclude each other: who serves?")
    try:
        file = msgspec.convert(with_presets(msgspec.toml.decode(path.read_bytes())), ModelFile)
    except (OSError, UnicodeDecodeError, msgspec.DecodeError) as error:
        raise SettingsError(f"{SETTING}: {path}: {error}") from error
    for why in _wrong(file):
        raise SettingsError(f"{SETTING}: {path}: {why}.")
    return file


def with_presets(file: dict[str, Any]) -> dict[str, Any]:
    """Return the file; its upstreams get the features of their kind of server."""
    upstreams = file.get("upstream")
    if not isinstance(upstreams, list):
        return file
    tables = [with_preset(table) if isinstance(table, dict) else table for table in upstreams]
    return {**file, "upstream": tables}


def engine_of_file(settings: Settings) -> Engine:
    """Return one interface for all models of the file; an upstream or a fleet of them if it names nothing else. Raises SettingsError."""
    file = file_of(settings)
    engines = _engines(file, settings)
    if len(engines) == 1 and not file.model:
        return next(iter(engines.values()))
    tables = {table.name: table for table in file.model}
    ordered = [tables.get(name, ModelTable(name)) for name in file.names]
    aliases = _aliases(settings, file.names)
    try:
        return ServedModels(
            [
                ServedModel(
                    name=table.name,
                    engine=engines[table.name],
                    aliases=(*table.aliases, *aliases.get(table.name, ())),
                    fallbacks=table.fallbacks,
                    chars_per_s=settings.default_pace,
                )
                for table in ordered
            ]
        )
    except InvalidModels as error:
        raise SettingsError(f"{SETTING}: {settings.upstreams}: {error}.") from error


def check_models(settings: Settings) -> None:
    """Raise ModelNotUsable for a local model that no engine could serve, before anything starts."""
    if settings.upstreams is not None:
        for table in file_of(settings).engine:
            folder = converted_folder(msgspec.structs.replace(settings, model=table.model))
            if folder is None or folder.is_dir():  # what is still to be converted is checked then
                check_engines(table.over(settings))
    elif settings.engine == "midstream":
        check_engines(settings)


def with_models(settings: Settings) -> Settings:
    """Fetch and convert the models that need it; return the settings that name the results. Raises ModelNotUsable."""
    for table in file_of(settings).engine:
        convert(msgspec.structs.replace(settings, model=table.model))
    convert(settings)
    return with_folder(settings)


def with_names(settings: Settings, engine: Engine) -> ServedModels:
    """Return an engine's models under the settings' names. Raises SettingsError."""
    if isinstance(engine, ServedModels):
        return engine
    name = shown_model(settings)
    aliases = _aliases(settings, [name]).get(name, ())
    try:
        return ServedModels(
            [ServedModel(name=name, engine=engine, aliases=aliases, chars_per_s=settings.default_pace)]
        )
    except InvalidModels as error:
        raise SettingsError(f"{_NAMES}: {error}.") from error


def with_translator(settings: Settings, engine: Engine) -> Engine:
    """Return the engine of the settings' model, with the bundled translator if that is served. Raises SettingsError."""
    if not serves_translator(settings):
        return engine
    name, aliases = settings.model_name, _aliases(settings, [settings.model_name, TRANSLATOR_NAME])
    try:
        return ServedModels(
            [
                ServedModel(
                    name=name,
                    engine=engine,
                    aliases=aliases.get(name, ()),
                    chars_per_s=settings.default_pace,
                ),
                ServedModel(
                    name=TRANSLATOR_NAME,
                    engine=translator(settings),
                    aliases=aliases.get(TRANSLATOR_NAME, ()),
                ),
            ]
        )
    except InvalidModels as error:
        raise SettingsError(f"{_NAMES}: {error}.") from error


def shown_model(settings: Settings) -> str:
    """Return the default model's name for people: the first of the file, if there is one."""
    names = file_of(settings).names
    return names[0] if names else settings.model_name


def _engines(file: ModelFile, settings: Settings) -> dict[str, Engine]:
    engines: dict[str, Engine] = {}
    by_name = sorted(file.upstream, key=lambda upstream: file.names.index(upstream.public_name))
    for name, upstreams in groupby(by_name, key=lambda upstream: upstream.public_name):
        engines[name] = upstream_engine(tuple(upstreams))
    for table, engine in zip(file.engine, engines_of_tables(file.engine, settings), strict=True):
        engines[table.public_name] = engine
    return engines


def _wrong(file: ModelFile) -> Iterable[str]:
    """Yield why the tables contradict each other."""
    if not (file.upstream or file.engine):
        yield "it names no [[upstream]] and no [[engine]]"
    names = [options.name for options in file.upstream]
    if len(set(names)) < len(names):
        yield "two upstreams have one name"
    own = [table.public_name for table in file.engine]
    vectors = [options.public_name for options in file.embedder]
    if len(set(vectors)) < len(vectors) or set(vectors) & set(file.names):
        yield "a model of [[embedder]] has the name of another one: give it a served_name"
    upstream = {options.public_name for options in file.upstream}
    for name in own:
        if own.count(name) > 1 or name in upstream:
            yield f"{name!r} is served twice: give one another served_name; it can be the other's fallback"
    declared = [table.name for table in file.model]
    for name in declared:
        if declared.count(name) > 1:
            yield f"two tables [[model]] have the name {name!r}"
        if name not in upstream and name not in own:
            yield f"[[model]] {name!r} is served by no [[upstream]] and no [[engine]]"


def _aliases(settings: Settings, names: list[str]) -> dict[str, tuple[str, ...]]:
    """Return the aliases of each model. Raises SettingsError."""
    aliases: dict[str, tuple[str, ...]] = {}
    for given in settings.served_names:
        alias, _, model = given.partition("=")
        model = model or names[0]
        if not alias:
            raise SettingsError(f"{_NAMES}: {given!r} is not a name; write NAME or NAME=MODEL.")
        if model not in names:
            raise SettingsError(f"{_NAMES}: there is no model {model!r} for {alias!r}.")
        aliases[model] = (*aliases.get(model, ()), alias)
    return aliases


def upstream_engine(upstreams: Sequence[UpstreamOptions]) -> UpstreamEngine | UpstreamFleet:
    """Return the upstream, or one interface for all of them. Raises SettingsError."""
    keyed = [(options, _upstream_key(options)) for options in upstreams]
    try:
        if len(keyed) > 1:
            return UpstreamFleet(keyed)
        return UpstreamEngine(keyed[0][0], key=keyed[0][1])
    except OSError as error:
        raise SettingsError(f"{SETTING}: a ca_file can't be used: {error}.") from error


def _upstream_key(options: UpstreamOptions) -> str | None:
    name = options.key_variable
    return None if name is None else secret_of(name, setting=f"{SETTING}: {options.name}")


@asynccontextmanager
async def embedders_of(settings: Settings) -> AsyncIterator[Sequence[Embedder]]:
    """Yield the file's embedding models, in its order, while they serve. Raises SettingsError."""
    embedders = [_embedder(options) for options in file_of(settings).embedder]
    async with AsyncExitStack() as stack:
        for one in embedders:
            await stack.enter_async_context(one.running())
        yield embedders


def _embedder(options: EmbedderOptions) -> UpstreamEmbedder:
    named = options.key_variable
    key = None if named is None else secret_of(named, setting=f"{SETTING}: {options.name}")
    try:
        return UpstreamEmbedder(options, key=key)
    except OSError as error:
        raise SettingsError(f"{SETTING}: {options.name}: the ca_file can't be used: {error}.") from error


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
    options = _engine_options(settings)
    for device in settings.devices:
        check_options(msgspec.structs.replace(options, device=device))


def encoded_options(settings: Settings) -> str:
    """Return the options of the first engine, as `python -m engine.loading check` takes them."""
    options = msgspec.structs.replace(_engine_options(settings), device=settings.devices[0])
    return msgspec.json.encode(options).decode()


def own_engines(settings: Settings) -> EngineClient | EngineFleet:
    """Return the engines of the model that the settings name."""
    options = spread(
        _engine_options(settings), devices=settings.devices, each=settings.engines, cores=_cores()
    )
    return _together(options, settings)


def engines_of_tables(tables: Sequence[EngineTable], settings: Settings) -> list[EngineClient | EngineFleet]:
    """Return the engines of each model; they share the machine."""
    each = [_options_per_device(table.over(settings)) for table in tables]
    shared = iter(shared_out([engine for engines in each for engine in engines], cores=_cores()))
    return [_together([next(shared) for _ in engines], settings) for engines in each]


def _options_per_device(settings: Settings) -> list[EngineOptions]:
    options = _engine_options(settings)
    return [
        msgspec.structs.replace(options, device=device)
        for device in settings.devices
        for _ in range(settings.engines)
    ]


def _engine_options(settings: Settings) -> EngineOptions:
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


def launched_engine(settings: Settings) -> LaunchedEngine | None:
    """Return a vLLM to start; None if another engine is asked for. Raises SettingsError."""
    if settings.engine != "vllm":
        if settings.engine_arg:
            raise SettingsError(f"{called('engine_arg')} is for --engine vllm.")
        return None
    _refuse_settings_of_other_engines(settings)
    return LaunchedEngine(
        LaunchOptions(
            python=_vllm_python(settings),
            model=settings.model_path,
            served_name=settings.model_name,
            arguments=_vllm_arguments(settings),
            dtype=settings.dtype,
            max_batch=settings.max_batch,
            tensor_parallel=settings.tensor_parallel,
        )
    )


def _refuse_settings_of_other_engines(settings: Settings) -> None:
    defaults = {field.name: field.default for field in msgspec.structs.fields(Settings)}
    for name, instead in _NOT_FOR_VLLM.items():
        if getattr(settings, name) != defaults[name]:
            raise SettingsError(f"{called(name)} does not go with --engine vllm: {instead}.")


def _vllm_arguments(settings: Settings) -> tuple[str, ...]:
    try:
        return checked_arguments(settings.engine_arg)
    except ValueError as error:
        raise SettingsError(f"{called('engine_arg')}: {error}.") from error


def _vllm_python(settings: Settings) -> str:
    """Return the Python of vLLM's environment. A link is not resolved: Python finds its packages by the link's place."""
    chosen = (
        VLLM_PYTHON
        if settings.engine_python is None
        else Path(settings.engine_python).expanduser().absolute()
    )
    if not (chosen.is_file() and os.access(chosen, os.X_OK)):
        raise SettingsError(f"--engine vllm: there is no Python at {chosen}. {MAKE}.")
    return str(chosen)


def serves_translator(settings: Settings) -> bool:
    """Return whether it is served: with the bundled model, unless the operator disables it."""
    return settings.translator and settings.is_bundled and settings.engine == "midstream"


def translator(settings: Settings) -> EngineOnDemand:
    """Return its engine. One thread is enough for weights of this size, so the other model keeps its own."""
    options = EngineOptions(
        model=str(TRANSLATOR),
        device="cpu",
        dtype=settings.dtype if settings.dtype != "float16" else "auto",
        max_batch=settings.max_batch,
        kv_bytes=_TRANSLATOR_KV_BYTES,
        threads=1,
    )
    heartbeat = HeartbeatOptions(step_timeout_s=settings.step_timeout_s)
    return EngineOnDemand(lambda: EngineClient(options, heartbeat=heartbeat), TRANSLATOR_FACTS)
