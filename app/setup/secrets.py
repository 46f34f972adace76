"""Secrets that a file of the operator's names by variables of the environment, so that the file itself holds none."""

from __future__ import annotations

from app.setting_values import PREFIX, SettingsError, variable


def secret_of(name: str, *, said_in: str) -> str:
    """What a variable holds. Raises SettingsError, with the words for where it was named."""
    if name.startswith(PREFIX):
        raise SettingsError(f"{said_in}: {name} would be a setting; call the variable otherwise.")
    value = variable(name)
    if not value:
        raise SettingsError(f"{said_in}: the variable {name} is not set.")
    if not (value.isascii() and value.isprintable()):
        raise SettingsError(f"{said_in}: the variable {name} holds what no key may hold.")
    return value
