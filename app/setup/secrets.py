"""Secrets from environment variables that an operator's file names, so that the file itself holds none."""

from __future__ import annotations

from app.setting_values import PREFIX, SettingsError, variable


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
