"""What an operator writes for settings, in the environment or as options, read as values: names, lists, words, files."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

PREFIX = "MIDSTREAM_"


class SettingsError(Exception):
    """A setting can't be used. The message is for the operator and names the setting."""


def variable(name: str) -> str | None:
    """What a variable of the environment holds that a file of the operator's names; None where it is unset."""
    return os.environ.get(name)


def from_environment(names: Iterable[str], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return what the variables of an environment say, as it is written. Raises SettingsError for one that is none of `names`."""
    known = {f"{PREFIX}{name.upper()}": name for name in names}
    given = {variable: value for variable, value in environ.items() if variable.startswith(PREFIX)}
    for variable in given:
        if variable not in known:
            raise SettingsError(f"{variable} is no setting. Known are: {', '.join(sorted(known))}.")
    return {known[variable]: value for variable, value in given.items() if value}


def parsed(name: str, value: Any) -> Any:
    """Return the value of a setting that was written as text: a list, words, or what a file says. Raises SettingsError."""
    match name, value:
        case (
            "allowed_origins"
            | "allowed_hosts"
            | "allowed_ips"
            | "trusted_proxies"
            | "served_names"
            | "tools",
            str(),
        ):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        case "engine_arg", str():
            return _words(name, value)
        case "system_prompt" | "jwt_secret", str() if value.startswith("@"):
            return _file_text(name, Path(value[1:]).expanduser())
        case _:
            return value


def _words(name: str, value: str) -> tuple[str, ...]:
    """The words of a variable, as a shell splits them. Raises SettingsError."""
    try:
        return tuple(shlex.split(value))
    except ValueError as error:
        raise SettingsError(f"{called(name)}: {error}.") from error


def _file_text(name: str, path: Path) -> str:
    """What a file says, without the white space around it. Raises SettingsError."""
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{called(name)}: {path} can't be read: {error}.") from error
    if not text:
        raise SettingsError(f"{called(name)}: {path} is empty.")
    return text


def complaint(message: str) -> str:
    """Return why a value can't be taken, with the name of its setting."""
    text, _, place = message.partition(" - at `$.")
    name = place.rstrip("`").partition("[")[0]
    return f"{called(name)}: {text}." if name else text


def called(name: str) -> str:
    """Return the names of a setting, as a variable and as an option."""
    return f"{PREFIX}{name.upper()} (--{name.replace('_', '-')})"
