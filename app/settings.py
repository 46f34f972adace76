"""All settings: one frozen object, from `MIDSTREAM_…` variables and command-line options of the same names.

A variable that is not known stops the start: a typo must not change nothing in silence.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import msgspec
from msgspec import Meta

PREFIX = "MIDSTREAM_"
DEMO_MODEL = Path(__file__).parent.parent / "demo_model" / "checkpoint"


class SettingsError(Exception):
    """A setting can't be used. The message is for the operator and names the setting."""


def _default_data_dir() -> str:
    base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return str(Path(base).expanduser() / "midstream")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator may choose. Field names are the variables' and the options' names."""

    host: Annotated[str, Meta(description="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="Port to listen on; 0 takes a free one.")] = 8000
    model: Annotated[
        str | None,
        Meta(description="Hub name or folder of a causal chat model; unset: the bundled demo model."),
    ] = None
    system_prompt: Annotated[
        str | None,
        Meta(
            description="For conversations whose client names none; @PATH reads it from a file. Computed once for all."
        ),
    ] = None
    redis_url: Annotated[
        str | None, Meta(description="redis://, rediss:// or unix:// URL; unset: an embedded store.")
    ] = None
    data_dir: Annotated[str, Meta(description="Folder of the embedded store.")] = msgspec.field(
        default_factory=_default_data_dir
    )
    allowed_origins: Annotated[
        tuple[str, ...],
        Meta(description="Origins beside the server's own whose pages may connect, separated by commas."),
    ] = ()
    insecure: Annotated[
        bool, Meta(description="Serve beyond loopback although there is no authentication.")
    ] = False
    device: Annotated[
        str,
        Meta(
            pattern=r"^\s*[^\s,]+\s*(,\s*[^\s,]+\s*)*$",
            description="auto, cpu, cuda, cuda:1, mps …; several, separated by commas, get their own engines.",
        ),
    ] = "auto"
    engines: Annotated[int, Meta(ge=1, le=64, description="Engine processes on each device.")] = 1
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"], Meta(description="Of the weights.")
    ] = "auto"
    attn: Annotated[
        str,
        Meta(
            description="auto or midstream: attention over the KV slots; others are refused with the reason."
        ),
    ] = "auto"
    compile: Annotated[
        bool, Meta(description="Compile the forward pass at the start: faster steps after a minute or so.")
    ] = False
    quantize: Annotated[
        str, Meta(description="none, or int8: weights of linear layers, on a CPU; for few replies at once.")
    ] = "none"
    tensor_parallel: Annotated[
        int, Meta(ge=1, description="Devices that share one model; more than one is not offered yet.")
    ] = 1
    max_batch: Annotated[
        int, Meta(ge=1, le=1024, description="Replies that one engine generates at once.")
    ] = 32
    kv_bytes: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(
            description="Memory of one engine for keys and values; unset: half of what is free after loading, on a CPU a quarter."
        ),
    ] = None
    max_turns: Annotated[
        int, Meta(ge=1, description="Turns running or waiting at once; more are refused.")
    ] = 1024
    max_connections: Annotated[int, Meta(ge=1, description="WebSocket connections at once.")] = 10_000
    max_client_connections: Annotated[int, Meta(ge=1, description="Of one client id.")] = 64
    max_content_chars: Annotated[int, Meta(ge=1, description="Characters of one message.")] = 32_000
    conversation_ttl_s: Annotated[
        float, Meta(gt=0, description="Seconds that a conversation is kept after its last turn.")
    ] = 30 * 24 * 3600.0
    drain_s: Annotated[
        float, Meta(ge=0, description="Seconds that running replies have to end after SIGTERM.")
    ] = 10.0
    log_format: Annotated[
        Literal["auto", "text", "json"], Meta(description="auto: text on a terminal, else JSON.")
    ] = "auto"
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="Least severe to log.")
    ] = "info"

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices to serve on."""
        return tuple(device.strip() for device in self.device.split(","))

    @property
    def model_path(self) -> str:
        """The model to load."""
        return self.model or str(DEMO_MODEL)

    @property
    def model_name(self) -> str:
        """The model's name for people."""
        return (
            Path(self.model).name
            if self.model and Path(self.model).exists()
            else self.model or "midstream-demo"
        )

    @classmethod
    def read(cls, environ: Mapping[str, str], options: Mapping[str, Any] | None = None) -> Self:
        """Settings from an environment, overridden by options that are not None. Raises SettingsError."""
        values = _from_environment(cls, environ) | {
            name: value for name, value in (options or {}).items() if value is not None
        }
        try:
            settings = msgspec.convert(
                {name: _parsed(name, value) for name, value in values.items()}, cls, strict=False
            )
        except msgspec.ValidationError as error:
            raise SettingsError(_complaint(str(error))) from None
        if not (settings.insecure or _is_loopback(settings.host)):
            raise SettingsError(
                f"--host {settings.host} would serve anybody who can reach it: there is no authentication yet. "
                "Listen on 127.0.0.1 behind a proxy that authenticates, or say --insecure."
            )
        return settings


def _from_environment(cls: type[Settings], environ: Mapping[str, str]) -> dict[str, Any]:
    known = {f"{PREFIX}{name.upper()}": name for name in cls.__struct_fields__}
    given = {variable: value for variable, value in environ.items() if variable.startswith(PREFIX)}
    for variable in given:
        if variable not in known:
            raise SettingsError(f"{variable} is no setting. Known are: {', '.join(sorted(known))}.")
    return {known[variable]: value for variable, value in given.items() if value}


def _parsed(name: str, value: Any) -> Any:
    match name, value:
        case "allowed_origins", str():
            return tuple(part.strip() for part in value.split(",") if part.strip())
        case "system_prompt", str() if value.startswith("@"):
            return _file_text(name, Path(value[1:]).expanduser())
        case _:
            return value


def _file_text(name: str, path: Path) -> str:
    """What a file says, without the white space around it. Raises SettingsError."""
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{_called(name)}: {path} can't be read: {error}.") from error
    if not text:
        raise SettingsError(f"{_called(name)}: {path} is empty.")
    return text


def _complaint(message: str) -> str:
    text, _, place = message.partition(" - at `$.")
    name = place.rstrip("`").partition("[")[0]
    return f"{_called(name)}: {text}." if name else text


def _called(name: str) -> str:
    return f"{PREFIX}{name.upper()} (--{name.replace('_', '-')})"


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
