"""All settings: one frozen object, from options, `MIDSTREAM_…` variables and a file, in this order of precedence.

An unknown name prevents the start, so that no typo is silently ignored.
"""

from __future__ import annotations

import os
import re
import shlex
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, inspect

from engine.messages import REPLY_TOKENS
from sessions.limits.bounds import (
    MAX_CLIENT_CONNECTIONS,
    MAX_CONNECTIONS,
    MAX_PENDING_CONNECTIONS,
    MAX_TURNS,
    MESSAGES_PER_S,
    READS_PER_S,
)

PREFIX = "MIDSTREAM_"
TABLES = {"upstream", "engine", "model", "embedder", "mcp_server", "filters"}
"""The tables in the file `config`, in addition to settings; [limits] is not among them: it is the setting `limits`."""
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
_TEXTS = {"system_prompt", "engine_arg"}
"""Settings whose values may begin and end with a quotation mark."""
_SHOWN = {"device", "engine"}
"""Settings whose values are texts that hold no secrets."""
_LISTS = {"allowed_origins", "allowed_hosts", "allowed_ips", "trusted_proxies", "tools", "upstream"}
"""Settings whose values are separated by commas."""
_DURATION = {"unit": "duration"}
_SIZE = {"unit": "size"}
_UNITS: Mapping[str, Mapping[str, float]] = {
    "duration": {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400},
    "size": {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30},
}
_WITH_UNIT = re.compile(r"(\d+(?:\.\d+)?) ?([A-Za-z]+)")
DEMO_MODEL = Path(__file__).parent.parent / "demo_model" / "checkpoint"


def default_data_dir() -> str:
    """Return the default folder of the embedded store."""
    base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return str(Path(base).expanduser() / "midstream")


class SettingsError(Exception):
    """A setting is not usable. The message is for the operator and names the setting."""


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What clients and keys may send. Quotas of a client id or of a key count on all replicas together; None: no limit."""

    messages_per_minute: Annotated[int, Meta(ge=1)] | None = None
    key_messages_per_minute: Annotated[int, Meta(ge=1)] | None = None
    tokens_per_day: Annotated[int, Meta(ge=1)] | None = None
    """Tokens of prompts and replies, until midnight UTC."""
    key_tokens_per_day: Annotated[int, Meta(ge=1)] | None = None
    key_connections: Annotated[int, Meta(ge=1)] | None = None
    """Connections of a key at once. A change takes effect at a restart."""
    message_rate: Annotated[float, Meta(gt=0)] = MESSAGES_PER_S
    """An owner's messages per second, counted by each replica separately."""
    read_rate: Annotated[float, Meta(gt=0)] = READS_PER_S
    """Calls to the store a second, counted likewise: history, resume, lists, renames, deletes."""


class Fixed(msgspec.Struct, frozen=True, kw_only=True):
    """Values that operators need not choose. Tests run with shorter times and lower limits."""

    request_s: float = 10.0
    """Seconds for a peer's handshake, or for its HTTP request."""
    max_pending_connections: int = MAX_PENDING_CONNECTIONS
    max_queued: int = 16
    """Messages of one conversation that may wait behind a running reply."""
    max_tool_rounds: int = 64
    """The most replies with tool calls to one message; the next reply must be text."""
    tool_wait_s: float = 3600.0
    """Seconds a call waits for a client's result or approval."""
    max_content_chars: int = 1_048_576
    """The most characters of a message; the context window and the request's size limit it, too."""
    reply_tokens: int = REPLY_TOKENS
    """The longest reply if neither its sender nor the model's generation config names a limit."""
    speech_seconds: int = 600
    """The longest recording."""
    speech_chars: int = 4096
    """The most characters of a spoken text."""
    max_speech: int = 8
    """Recordings at once, and as many spoken texts."""


class Settings(Fixed, frozen=True, kw_only=True):
    """What an operator may choose. Each field with a description is an option, a variable and a name in the file."""

    config: Annotated[
        str | None,
        Meta(description="TOML file with settings and tables."),
    ] = None
    host: Annotated[str, Meta(description="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="Port to listen on. 0: any free port.")] = 8000
    allowed_hosts: Annotated[
        tuple[str, ...],
        Meta(
            description="Host names of the server, in addition to localhost. *.example.org and * are wildcards. Unset: a server that listens beyond loopback accepts any name with authentication, or any IP address without it."
        ),
    ] = ()
    allowed_ips: Annotated[
        tuple[str, ...],
        Meta(description="Addresses and CIDR ranges that may connect. Unset: any."),
    ] = ()
    trusted_proxies: Annotated[
        tuple[str, ...],
        Meta(description="Addresses and CIDR ranges of proxies whose X-Forwarded-For is trusted."),
    ] = ()
    tls_cert: Annotated[
        str | None,
        Meta(
            description="PEM file of a certificate and its chain. With it, the server speaks only TLS 1.2 and 1.3."
        ),
    ] = None
    tls_key: Annotated[
        str | None,
        Meta(
            description="PEM file of the certificate's key, without a password. Unset: the file tls_cert also has the key."
        ),
    ] = None
    model: Annotated[
        str | None,
        Meta(
            description="Hub name, folder or GGUF file of a causal chat model. smollm2: a small model, downloaded once (93 MB). Unset: the bundled demo model."
        ),
    ] = None
    upstream: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^https?://[^/?#@]+(/[^?#]*)?$")], ...],
        Meta(
            description="URL of an OpenAI-compatible server (vLLM, llama-server …) whose models are served, such as http://127.0.0.1:8001/v1. May be repeated. If the server needs a key, set UPSTREAM_API_KEY."
        ),
    ] = ()
    engine: Annotated[
        str,
        Meta(
            pattern=r"^(midstream|vllm|.*/.*)$",
            description="midstream: the built-in engine. vllm, or the path of a Python that has vLLM: the service starts and supervises vLLM. Use vLLM for quantized checkpoints, LoRA, several GPUs, and models that the built-in engine refuses.",
        ),
    ] = "midstream"
    engine_arg: Annotated[
        tuple[str, ...],
        Meta(
            description="Argument for vLLM, such as tensor-parallel-size=4 or enable-lora. May be repeated. In the variable, separate arguments by spaces."
        ),
    ] = ()
    system_prompt: Annotated[
        str | None,
        Meta(
            description="System prompt of conversations whose client sets none. @PATH: read it from a file."
        ),
    ] = None
    redis_url: Annotated[
        str | None,
        Meta(
            description="URL of Redis 6.2 or newer, or of Valkey: redis://, rediss:// (TLS) or unix://. A cluster: redis+cluster://HOST:PORT,... "
            "Sentinels: redis+sentinel://HOST:PORT,.../MASTER, with ?sentinel_password= if they need one. With TLS, these two begin with "
            "rediss+cluster:// and rediss+sentinel://. Unset: an embedded store."
        ),
    ] = None
    store_durability: Annotated[
        Literal["memory", "disk", "replicated"] | None,
        Meta(
            description="Where messages and the ends of replies must be stored before they are confirmed. memory: in the store's memory. "
            "disk: on the store's disk. replicated: in the store's memory and a replica's memory. Unset: disk for the embedded store, memory for others."
        ),
    ] = None
    store_memory: Annotated[
        Annotated[int, Meta(ge=16 * 1024**2)] | None,
        Meta(
            extra=_SIZE,
            description="Memory of the store. Messages and uploads fill at most four fifths of it. Unset: 1GiB for the embedded store. For another store, it is the store's maxmemory or, without one, three quarters of its machine's memory.",
        ),
    ] = None
    data_dir: Annotated[str, Meta(description="Folder of the embedded store.")] = msgspec.field(
        default_factory=default_data_dir
    )
    allowed_origins: Annotated[
        tuple[str, ...],
        Meta(
            description="Origins whose pages may connect, in addition to the server's own. @PATH: a file with one origin a line. *: every origin, so that any web page that a user opens can connect."
        ),
    ] = ()
    api_keys: Annotated[
        str | None,
        Meta(description="File of API keys (see `midstream keys`), or a list of NAME:HASH:KIND."),
    ] = None
    jwt_secret: Annotated[
        Annotated[str, Meta(min_length=32)] | None,
        Meta(
            description="Secret for JWTs signed by HS256, 32 characters or more. @PATH: read it from a file."
        ),
    ] = None
    jwks_url: Annotated[
        Annotated[str, Meta(pattern=r"^https?://[^/]")] | None,
        Meta(description="URL of the public keys for JWTs signed by RS256 or ES256 (a JWK Set)."),
    ] = None
    jwt_issuer: Annotated[
        str | None,
        Meta(
            description="Required `iss` of JWTs. Unset: any. Without jwt_secret and jwks_url, this is the URL of an OpenID Connect issuer, whose keys are found by discovery."
        ),
    ] = None
    jwt_audience: Annotated[
        str | None,
        Meta(
            description="Required `aud` of JWTs. *: any. Must be set with jwks_url or an OpenID Connect issuer, whose keys also sign tokens for other services."
        ),
    ] = None
    insecure: Annotated[
        bool,
        Meta(
            description="Allow serving beyond loopback without authentication, and fetching JWT keys over plain http."
        ),
    ] = False
    device: Annotated[
        str,
        Meta(
            pattern=r"^\s*[^\s,]+\s*(,\s*[^\s,]+\s*)*$",
            description="auto, cpu, cuda, cuda:1 … Separate several devices by commas; each gets an engine.",
        ),
    ] = "auto"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"], Meta(description="Number type of the weights.")
    ] = "auto"
    pickled_weights: Annotated[
        bool,
        Meta(
            description="Also load weights in pickle files (pytorch_model.bin). If PyTorch has a flaw, such files can run code."
        ),
    ] = False
    quantize: Annotated[
        str,
        Meta(
            description="int8: store the weights of linear layers as 8-bit integers. Only on a CPU, and faster only for few replies at once."
        ),
    ] = "none"
    max_batch: Annotated[
        int, Meta(ge=1, le=1024, description="Replies that one engine generates at once.")
    ] = 32
    kv_memory: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(
            extra=_SIZE,
            description="Memory of one engine for keys and values. Unset: enough for max_batch replies that fill the context window, plus a quarter. This default never exceeds a quarter of the memory left after loading (CPU), or 95 % of the memory that the largest step leaves free (CUDA).",
        ),
    ] = None
    max_turns: Annotated[
        int,
        Meta(
            ge=1,
            description="Turns (requests for replies) that run at once. The same number may wait. Further turns are refused.",
        ),
    ] = MAX_TURNS
    max_connections: Annotated[
        int, Meta(ge=1, description="WebSocket connections and event streams at once.")
    ] = MAX_CONNECTIONS
    max_client_connections: Annotated[
        int, Meta(ge=1, description="Connections per client id on one replica.")
    ] = MAX_CLIENT_CONNECTIONS
    limits: Annotated[
        Limits,
        Meta(
            description="NAME=NUMBER, separated by commas. Limits of a client id: messages_per_minute, tokens_per_day. Limits of a key: key_messages_per_minute, key_tokens_per_day, key_connections. These limits are off by default; all but key_connections count on all replicas together. Limits of a user per second, with bursts of five seconds: message_rate (default: 10), read_rate (default: 20)."
        ),
    ] = Limits()
    unsupported_tools: Annotated[
        Literal["refuse", "ignore"],
        Meta(
            description="What happens to requests with tools if the model can't call tools. ignore: the model answers without tools, but requests that require a call are refused. refuse: all these requests are refused."
        ),
    ] = "ignore"
    titles: Annotated[
        Literal["auto", "model", "words"],
        Meta(
            description="Titles of new conversations. model: the model writes them when it is idle. words: the first words of the message. auto: words for the bundled model, model for others."
        ),
    ] = "auto"
    sharing: Annotated[
        bool,
        Meta(
            description="People may share conversations by links. Anybody can open a link until it is revoked. If off, no link works."
        ),
    ] = True
    chars_per_s: Annotated[
        Annotated[float, Meta(ge=0, le=1000)] | None,
        Meta(
            description="Characters per second of replies if the request sets no rate. 0: as fast as generated. Unset: 100 for the bundled model, 0 for others."
        ),
    ] = None
    tools: Annotated[
        tuple[str, ...],
        Meta(
            description="Python functions that models may call, as module:function. Functions of entry points midstream.tools in installed packages are added."
        ),
    ] = ()
    speech: Annotated[
        Literal["auto", "off", "both", "recognition", "voice"],
        Meta(
            description="recognition: microphones and /v1/audio/transcriptions. voice: spoken replies and /v1/audio/speech. auto: all that is installed if the model is the bundled one, otherwise off. Speech needs the extra `speech`."
        ),
    ] = "auto"
    speech_recognizer: Annotated[
        str,
        Meta(
            description="pocketsphinx, a JSGF file with the phrases that pocketsphinx is to understand, or the hub name or folder of a Whisper or Moonshine model."
        ),
    ] = "pocketsphinx"
    speech_voice: Annotated[
        str,
        Meta(
            description="espeak-ng (a system program), or the hub name or folder of a VITS model, such as MMS."
        ),
    ] = "espeak-ng"
    speech_device: Annotated[
        Annotated[str, Meta(pattern=r"^\s*[^\s,]+\s*$")] | None,
        Meta(
            description="Device of speech models: auto, cpu, cuda, cuda:1 … Unset: the first one in `device`."
        ),
    ] = None
    conversation_ttl: Annotated[
        float,
        Meta(gt=0, extra=_DURATION, description="How long a conversation is kept after its last turn."),
    ] = 30 * 24 * 3600.0
    drain_timeout: Annotated[
        float,
        Meta(ge=0, extra=_DURATION, description="How long running replies may take to end after SIGTERM."),
    ] = 10.0
    log_format: Annotated[
        Literal["auto", "text", "json"], Meta(description="auto: text on a terminal, JSON elsewhere.")
    ] = "auto"
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="Lowest level that is logged.")
    ] = "info"

    tables: dict[str, Any] = {}
    """The tables of the file `config`."""
    limits_file: str | None = None
    """The file whose table [limits] applies, and is reread."""

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
    def read(cls, environ: Mapping[str, str], options: Mapping[str, object] | None = None) -> Self:
        """Settings from options that are not None, then an environment, then the file that one of them names.

        Raises SettingsError.
        """
        kinds = option_kinds()
        given = from_environment(kinds, environ) | {
            name: value for name, value in (options or {}).items() if value is not None
        }
        path = given.get("config")
        named: dict[str, Any] = {}
        tables: dict[str, Any] = {}
        if path is not None:
            named, tables = read_file(Path(path))
        if "upstream" in given:
            tables.pop("upstream", None)
        values = named | given
        try:
            settings = msgspec.convert(
                {name: parsed(name, value, kinds) for name, value in values.items()}, cls, strict=False
            )
        except msgspec.ValidationError as error:
            raise SettingsError(complaint(str(error), values, kinds)) from None
        settings = msgspec.structs.replace(
            settings, tables=tables, limits_file=None if "limits" in given else path
        )
        settings.check_signers()
        settings.check_safety()
        return settings

    @property
    def lists_models(self) -> bool:
        """Whether servers and tables say what is served, not `model`."""
        return bool(self.upstream) or "upstream" in self.tables or "engine" in self.tables

    @property
    def runs_vllm(self) -> bool:
        """Whether a vLLM that this service starts serves the model."""
        return self.engine != "midstream"

    @property
    def is_bundled(self) -> bool:
        """Whether the bundled model answers."""
        return self.model is None and not self.lists_models

    @property
    def default_pace(self) -> float:
        """The default pace of replies, in characters a second; 0: as fast as they are made."""
        if self.chars_per_s is None:
            return DEMO_CHARS_PER_S if self.is_bundled else 0.0
        return self.chars_per_s

    @property
    def suggested(self) -> tuple[str, ...]:
        """The messages that an empty conversation suggests."""
        return DEMO_SUGGESTIONS if self.is_bundled else ()

    @property
    def authenticates(self) -> bool:
        """Whether clients must authenticate."""
        return not (self.api_keys is self.jwt_secret is self.jwks_url is self.jwt_issuer is None)

    @property
    def oidc_issuer(self) -> str | None:
        """The OpenID Connect issuer whose keys are found by discovery."""
        return self.jwt_issuer if self.jwt_secret is self.jwks_url is None else None

    def check_signers(self) -> None:
        """Raise SettingsError if tokens that were signed for other services would be accepted."""
        if self.oidc_issuer is not None and not re.match("https?://[^/]", self.oidc_issuer):
            raise SettingsError(
                f"{called('jwt_issuer')}: {self.oidc_issuer!r} is not the URL of an OpenID Connect issuer. Set its URL, or "
                "the keys of its tokens: --jwks-url or --jwt-secret."
            )
        for name, value in (("jwks_url", self.jwks_url), ("jwt_issuer", self.oidc_issuer)):
            if value is not None and self.jwt_audience is None:
                raise SettingsError(
                    f"{called(name)} needs {called('jwt_audience')}: its keys may also sign tokens for other services, whose "
                    "users would get in. Set the `aud` of your tokens, or * if these keys sign for this service alone."
                )

    def check_safety(self) -> None:
        """Raise SettingsError for settings that are unsafe without `--insecure`."""
        if self.insecure:
            return
        if not (self.authenticates or is_loopback(self.host)):
            raise SettingsError(
                f"--host {self.host} would serve anybody who can reach it, without authentication. Set "
                "--api-keys (see `midstream keys add --help`), --jwt-secret, --jwks-url or --jwt-issuer, or pass --insecure."
            )
        for name, value in (("jwks_url", self.jwks_url), ("jwt_issuer", self.oidc_issuer)):
            url = urlsplit(value or "")
            if url.scheme == "http" and not is_loopback(url.hostname or ""):
                raise SettingsError(
                    f"{called(name)}: over plain http, others on the network can replace the keys. Use https, or pass --insecure."
                )


def option_kinds() -> dict[str, Any]:
    """Return the types of the settings that operators give, in their order, as `msgspec.inspect` has them."""
    fields = msgspec.inspect.type_info(Settings).fields  # type: ignore[attr-defined]
    return {field.name: field.type for field in fields if description_of(field.type)}


def option_defaults() -> dict[str, Any]:
    """Return the defaults of all fields."""
    return {field.name: field.default for field in msgspec.structs.fields(Settings)}


def description_of(kind: Any) -> str:
    """Return what a setting is for; an empty text for fields that are not settings."""
    return str((getattr(kind, "extra_json_schema", None) or {}).get("description", ""))


def described(kind: Any, default: object) -> str:
    """Return what a setting is for, and its default."""
    if default in (None, False, (), Limits(), msgspec.NODEFAULT):
        return description_of(kind)
    if isinstance(default, int | float) and (unit := unit_of(kind)):
        shown = with_unit(default, unit)
    else:
        shown = "true" if default is True else str(default)
    return f"{description_of(kind)} Default: {shown}."


def unit_of(kind: Any) -> str:
    """Return "duration" or "size" for a setting whose value may have a unit."""
    return str((getattr(kind, "extra", None) or {}).get("unit", ""))


def read_file(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a file's settings, and its other tables. Raises SettingsError."""
    try:
        content = tomllib.loads(path.expanduser().read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # TOML, UTF-8, too long numbers, nesting
        raise SettingsError(f"{called('config')}: {path} can't be used: {error}.") from None
    settings: dict[str, Any] = {}
    tables: dict[str, Any] = {}
    known = option_kinds().keys() - {"config"}
    for name, value in content.items():
        is_table = isinstance(value, dict) or (
            isinstance(value, list) and any(isinstance(one, dict) for one in value)
        )
        if name in TABLES and is_table:
            tables[name] = value
        elif name in known:
            settings[name] = value
        elif name in TABLES:
            raise SettingsError(f"{path}: {name} is a table: write [{name}] or [[{name}]].")
        else:
            raise SettingsError(f"{path}: unknown setting {name}.{_meant(name, [*known, *TABLES])}")
    return settings, tables


def limits_in(path: Path) -> Limits:
    """Return the limits of a file. Raises SettingsError."""
    named = parsed("limits", read_file(path)[0].get("limits", {}), option_kinds())
    try:
        return msgspec.convert(named, Limits, strict=False)
    except msgspec.ValidationError as error:
        raise SettingsError(f"{path}: {complaint(str(error), {}, option_kinds(), within='limits')}") from None


def variable(name: str) -> str | None:
    """Return the environment variable that an operator's file names; None if it is unset."""
    return os.environ.get(name)


def from_environment(names: Iterable[str], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings in an environment, as text. Raises SettingsError for a name that is not among `names`."""
    known = {f"{PREFIX}{name.upper()}": name for name in names}
    given = {variable: value for variable, value in environ.items() if variable.upper().startswith(PREFIX)}
    for variable, value in given.items():
        if variable not in known:
            raise SettingsError(f"Unknown setting {variable}.{_meant(variable.upper(), known)}")
        # values may still have the line ends or the quotation marks of their file
        if value.endswith("\r"):
            raise SettingsError(
                f"{variable} ends with a carriage return: its file has the line ends of Windows."
            )
        is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
        if is_quoted and known[variable] not in _TEXTS:
            raise SettingsError(f"{variable} has quotation marks around its value: leave them out.")
    return {known[variable]: value for variable, value in given.items() if value}


def parsed(name: str, value: object, kinds: Mapping[str, Any]) -> Any:
    """Return a setting's value, read from text: a list, words, a file's content, or a number with a unit. Raises SettingsError."""
    if not isinstance(value, str):
        return value
    if name in _LISTS:
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if name == "limits":
        pairs = (part.partition("=") for part in value.split(",") if part.strip())
        return {limit.strip(): number.strip() for limit, _, number in pairs}
    if name == "engine_arg":
        with naming(name, ValueError, end="."):
            return tuple(shlex.split(value))  # as a shell does
    if name in {"system_prompt", "jwt_secret"} and value.startswith("@"):
        return _file_text(name, Path(value[1:]).expanduser())
    return in_base_unit(value, unit_of(kinds[name]))


def in_base_unit(text: str, unit: str) -> float | str:
    """Return the seconds of a duration, or the bytes of a size; text without a known unit stays as it is. Pure."""
    written = _WITH_UNIT.fullmatch(text.strip())
    factors = {name.lower(): factor for name, factor in _UNITS.get(unit, {}).items()}
    factor = factors.get(written[2].lower()) if written else None
    if written is None or factor is None:
        return text
    number = float(written[1]) * factor
    return round(number) if unit == "size" else number


def with_unit(number: float, unit: str) -> str:
    """Return a number of seconds or bytes with a unit, as `in_base_unit` reads it: 10s, 30d, 1GiB. Pure."""
    fitting = [
        (factor, name) for name, factor in _UNITS.get(unit, {}).items() if number and number % factor == 0
    ]
    factor, name = max(fitting, default=(1, ""))
    return f"{number / factor:g}{name}"


def _file_text(name: str, path: Path) -> str:
    """Return a file's content without surrounding white space. Raises SettingsError."""
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{called(name)}: {path} can't be read: {error}.") from error
    if not text:
        raise SettingsError(f"{called(name)}: {path} is empty.")
    return text


def complaint(
    message: str, values: Mapping[str, object], kinds: Mapping[str, Any], *, within: str = ""
) -> str:
    """Return why a value is refused, with its setting's name. A text may be a secret, so it is not repeated.

    `message`: the one from msgspec; `kinds`: the settings' types from `msgspec.inspect`; `within`: the setting, if `message` is
    about a part of it.
    """
    text, _, path = message.partition(" - at `$")
    name, _, rest = f"{within}{path}".strip("`.").partition("." if "[" not in path else "[")
    if name not in kinds:
        return text
    kind = plain(kinds[name])
    if isinstance(kind, inspect.StructType):
        return f"{called(name)}: {f'{rest}: ' if rest else ''}{hinted(text, kind.cls)}"
    if isinstance(kind, inspect.StrType | inspect.VarTupleType):
        refused = f": {values[name]!r} can't be used. It" if name in _SHOWN else ""
        return f"{called(name)}{refused} takes {wanted(kind)}: {description_of(kinds[name])}"
    meant = _meant(str(values[name]), wanted_words(kind))
    return f"{called(name)}: {str(values[name])!r} is not {wanted(kind, unit_of(kinds[name]))}.{meant}"


def hinted(message: str, *types: type[msgspec.Struct]) -> str:
    """Return msgspec's message; for an unknown field, with the field of `types` that was probably meant. Pure."""
    unknown = re.search(r"unknown field `(\w+)`", message)
    names = {name for struct in types for name in struct.__struct_fields__}
    close = get_close_matches(unknown[1], names, n=1) if unknown else ()
    return f"{message}. Did you mean {close[0]}?" if close else message


def plain(kind: Any) -> Any:
    """Return a setting's type without its metadata and without None. Pure."""
    match kind:
        case inspect.Metadata():
            return plain(kind.type)
        case inspect.UnionType():
            return plain(next(one for one in kind.types if not isinstance(one, inspect.NoneType)))
        case _:
            return kind


def wanted(kind: Any, unit: str = "") -> str:  # noqa: PLR0911 - one line for each type
    """Describe the values of a type: "a whole number from 0 to 65535". Pure."""
    match kind:
        case inspect.IntType() | inspect.FloatType() if unit == "duration":
            return f"a duration such as 10s, 5m or 30d, or a number of seconds{_range(kind)}"
        case inspect.IntType() | inspect.FloatType() if unit == "size":
            return f"a size such as 500MB or 2GiB, or a number of bytes{_range(kind)}"
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
            return "one of these"


def wanted_words(kind: Any) -> tuple[str, ...]:
    """Return the allowed words of a setting; none if it takes other values, too. Pure."""
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
    """Return a hint for an unknown word: the closest known one or, for a variable, where all are listed."""
    names = {one.removeprefix(PREFIX): one for one in known}
    close = get_close_matches(word.removeprefix(PREFIX), names, n=1)
    if close:
        return f" Did you mean {names[close[0]]}?"
    return " `midstream serve --help-all` lists all." if word.startswith(PREFIX) else ""


def called(name: str) -> str:
    """Return a setting's two names: variable and option."""
    return f"{PREFIX}{name.upper()} (--{name.replace('_', '-')})"


@contextmanager
def naming(setting: str, *errors: type[Exception], end: str = "") -> Iterator[None]:
    """Turn errors into SettingsError, with the names of the setting first."""
    try:
        yield
    except errors as error:
        raise SettingsError(f"{called(setting)}: {error}{end}") from error


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
    """Return a variable's value. Raises SettingsError, which names the setting that refers to the variable."""
    if name.startswith(PREFIX):
        raise SettingsError(f"{setting}: {name} would be a setting; give the variable another name.")
    value = variable(name)
    if not value:
        raise SettingsError(f"{setting}: the variable {name} is not set.")
    if not (value.isascii() and value.isprintable()):
        raise SettingsError(f"{setting}: the variable {name} holds characters that no key may have.")
    return value
