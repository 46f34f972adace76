"""Reads the texts of settings, from the environment or from options, as values: names, lists, words, files."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, inspect

PREFIX = "MIDSTREAM_"
DEMO_SUGGESTIONS = (
    "My name is Ada.",
    "Count from 1 to 300.",
    "Tell me a story about a lighthouse.",
    "How do you say “good morning” in Chinese?",
    "What is 7 plus 8?",
    "What is Midstream?",
)
"""Suggestions that the bundled model can answer."""
DEMO_CHARS_PER_S = 100.0
"""The bundled model's pace: some 35 tokens a second, as fast as text can be skimmed, and slow enough to press Stop."""
_TEXTS = {"system_prompt", "suggestions", "engine_arg"}
"""Settings whose values may begin and end with a quotation mark."""


Translator = Annotated[
    bool, Meta(description="Serve the bundled translator beside the bundled model, from its first use on.")
]


def default_data_dir() -> str:
    """Return the default folder of the embedded store."""
    base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return str(Path(base).expanduser() / "midstream")


class SettingsError(Exception):
    """A setting is not usable. The message is for the operator and names the setting."""


def variable(name: str) -> str | None:
    """Return the environment variable that an operator's file names; None if it is unset."""
    return os.environ.get(name)


def from_environment(names: Iterable[str], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings in an environment, as text. Raises SettingsError for a name that is not among `names`."""
    known = {f"{PREFIX}{name.upper()}": name for name in names}
    given = {variable: value for variable, value in environ.items() if variable.upper().startswith(PREFIX)}
    for variable, value in given.items():
        if variable not in known:
            raise SettingsError(f"{variable} is no setting.{_meant(variable.upper(), known)}")
        _check_written(variable, value, is_text=known[variable] in _TEXTS)
    return {known[variable]: value for variable, value in given.items() if value}


def _check_written(variable: str, value: str, *, is_text: bool) -> None:
    """Raise SettingsError for values that kept quotation marks or line ends of their file."""
    if value.endswith("\r"):
        raise SettingsError(f"{variable} ends with a carriage return: its file has the line ends of Windows.")
    if not is_text and len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
        raise SettingsError(f"{variable} has quotation marks around its value: leave them out.")


def parsed(name: str, value: Any) -> Any:
    """Return the value of a setting that is written as text: a list, words, or a file's content. Raises SettingsError."""
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
    """Split a variable into words as a shell does. Raises SettingsError."""
    try:
        return tuple(shlex.split(value))
    except ValueError as error:
        raise SettingsError(f"{called(name)}: {error}.") from error


def _file_text(name: str, path: Path) -> str:
    """Return a file's content without surrounding white space. Raises SettingsError."""
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{called(name)}: {path} can't be read: {error}.") from error
    if not text:
        raise SettingsError(f"{called(name)}: {path} is empty.")
    return text


def complaint(message: str, values: Mapping[str, Any], kinds: Mapping[str, Any]) -> str:
    """Return why a value is refused, with its setting's name. A text may be a secret, so it is not repeated.

    `message`: the one from msgspec; `kinds`: the settings' types from `msgspec.inspect`.
    """
    text, _, path = message.partition(" - at `$.")
    name = path.rstrip("`").partition("[")[0]
    if name not in kinds:
        return text
    kind = plain(kinds[name])
    if isinstance(kind, inspect.StrType | inspect.VarTupleType):
        described = (kinds[name].extra_json_schema or {}).get("description", "")
        return f"{called(name)} takes {wanted(kind)}: {described}"
    meant = _meant(str(values[name]), wanted_words(kind))
    return f"{called(name)}: {str(values[name])!r} is not {wanted(kind)}.{meant}"


def plain(kind: Any) -> Any:
    """Return a setting's type without its metadata and without None. Pure."""
    match kind:
        case inspect.Metadata():
            return plain(kind.type)
        case inspect.UnionType():
            return plain(next(one for one in kind.types if not isinstance(one, inspect.NoneType)))
        case _:
            return kind


def wanted(kind: Any) -> str:  # noqa: PLR0911 - one line for each type
    """Describe the values of a type: "a whole number from 0 to 65535". Pure."""
    match kind:
        case inspect.LiteralType():
            return f"one of {', '.join(wanted_words(kind))}"
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            return f"a whole number{_range(kind)}"
        case inspect.FloatType():
            return f"a number{_range(kind)}"
        case inspect.VarTupleType():
            return "a list, separated by commas"
        case inspect.StrType(min_length=int() as fewest):
            return f"a text of {fewest} characters or more"
        case _:
            return "this text"


def wanted_words(kind: Any) -> tuple[str, ...]:
    """Return the allowed words of a setting; none if it takes others, too. Pure."""
    return tuple(map(str, kind.values)) if isinstance(kind, inspect.LiteralType) else ()


def _range(kind: inspect.IntType | inspect.FloatType) -> str:
    match kind.ge, kind.gt, kind.le:
        case None, None, None:
            return ""
        case None, above, None:
            return f" above {above:,}"
        case None, above, most:
            return f" above {above:,}, up to {most:,}"
        case least, _, None:
            return f" of {least:,} or more"
        case least, _, most:
            return f" from {least:,} to {most:,}"


def _meant(word: str, known: Iterable[str]) -> str:
    """Suggest the word that was meant; if none is close, say where all are listed."""
    names = {one.removeprefix(PREFIX): one for one in known}
    close = get_close_matches(word.removeprefix(PREFIX), names, n=1)
    if close:
        return f" Did you mean {names[close[0]]}?"
    return " `midstream serve --help` lists all." if word.startswith(PREFIX) else ""


def called(name: str) -> str:
    """Return a setting's two names: variable and option."""
    return f"{PREFIX}{name.upper()} (--{name.replace('_', '-')})"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address or a name."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def in_bytes(count: int) -> str:
    """Return a number of bytes in words: 2.5 GB, 93 MB."""
    return f"{count / 10**9:.1f} GB" if count >= 10**9 else f"{count / 10**6:.0f} MB"


def secret_of(name: str, *, setting: str) -> str:
    """Return a variable's value. Raises SettingsError, which says where the variable was named."""
    if name.startswith(PREFIX):
        raise SettingsError(f"{setting}: {name} would be a setting; give the variable another name.")
    value = variable(name)
    if not value:
        raise SettingsError(f"{setting}: the variable {name} is not set.")
    if not (value.isascii() and value.isprintable()):
        raise SettingsError(f"{setting}: the variable {name} holds characters that no key may have.")
    return value
