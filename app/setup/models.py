"""The served models and their names: those of a file, or the one of the settings."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from app.setting_values import SettingsError
from app.settings import Settings
from app.setup.conversion import convert, converted_folder, with_folder
from app.setup.local_engines import EngineTable, check_engines, engines_of_tables
from app.setup.translator import NAME as TRANSLATOR_NAME
from app.setup.translator import serves_translator, translator
from app.setup.upstreams import SETTING, upstream_engine
from engine.api import Engine
from engine.served_models import InvalidModels, ServedModel, ServedModels
from engine.upstream.embedder import EmbedderOptions
from engine.upstream.options import UpstreamOptions, with_preset

Name = Annotated[str, Meta(min_length=1, max_length=256)]
_NAMES = "MIDSTREAM_SERVED_NAMES (--served-names)"


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
