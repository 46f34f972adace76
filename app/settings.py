"""All settings: one frozen object, from `MIDSTREAM_…` variables and command-line options of the same names.

An unknown variable stops the start, so that no typo is ignored in silence.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, inspect

from engine.machine import KV_IDLE_S
from sessions.limits.bounds import (
    MAX_CLIENT_CONNECTIONS,
    MAX_CONNECTIONS,
    MAX_PENDING_CONNECTIONS,
    MAX_TURNS,
    MESSAGES_PER_S,
    READS_PER_S,
)

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
DEMO_MODEL = Path(__file__).parent.parent / "demo_model" / "checkpoint"


def default_data_dir() -> str:
    """Return the default folder of the embedded store."""
    base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return str(Path(base).expanduser() / "midstream")


class SettingsError(Exception):
    """A setting is not usable. The message is for the operator and names the setting."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator may choose. Field names are the variables' and the options' names."""

    host: Annotated[str, Meta(description="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="Port to listen on; 0 takes a free one.")] = 8000
    allowed_hosts: Annotated[
        tuple[str, ...],
        Meta(
            description="Host names that the server answers to, besides those of loopback, separated by commas; *.example.org and * match several. Unset: any if it listens beyond loopback and authenticates its clients; else none, but without authentication any IP address."
        ),
    ] = ()
    allowed_ips: Annotated[
        tuple[str, ...],
        Meta(description="Addresses and CIDR ranges that may connect, separated by commas; unset: any."),
    ] = ()
    trusted_proxies: Annotated[
        tuple[str, ...],
        Meta(description="Addresses and CIDR ranges of proxies whose X-Forwarded-For is trusted."),
    ] = ()
    tls_cert: Annotated[
        str | None, Meta(description="PEM file of a certificate and its chain: the server then speaks TLS.")
    ] = None
    tls_key: Annotated[
        str | None, Meta(description="PEM file of the certificate's key; unset: it is in the same file.")
    ] = None
    request_s: Annotated[
        float, Meta(gt=0, description="Seconds for a peer's handshake, or for its HTTP request.")
    ] = 10.0
    model: Annotated[
        str | None,
        Meta(
            description="Hub name, folder or GGUF file of a causal chat model; smollm2: a small one, fetched once (93 MB); unset: the bundled demo model."
        ),
    ] = None
    upstreams: Annotated[
        str | None,
        Meta(description="TOML file of the servers and local engines that serve the models."),
    ] = None
    served_names: Annotated[
        tuple[str, ...],
        Meta(
            description="Further names of models, separated by commas: NAME for the default model, NAME=MODEL for another one."
        ),
    ] = ()
    translator: Annotated[
        bool,
        Meta(description="Serve the bundled translator beside the bundled model, from its first use on."),
    ] = True
    engine: Annotated[
        Literal["midstream", "vllm"],
        Meta(
            description="midstream: the built-in engine; vllm: a vLLM that this service starts and supervises, for quantized checkpoints, LoRA, several GPUs and models that midstream refuses."
        ),
    ] = "midstream"
    engine_arg: Annotated[
        tuple[str, ...],
        Meta(
            description="Argument for vLLM, such as tensor-parallel-size=4 or enable-lora; may be repeated; in the variable, separated by spaces."
        ),
    ] = ()
    engine_python: Annotated[
        str | None,
        Meta(description="Python of the environment with vLLM; unset: the one made by `make vllm`."),
    ] = None
    system_prompt: Annotated[
        str | None,
        Meta(
            description="System prompt of conversations whose client sets none; @PATH reads it from a file. Its keys and values are computed once."
        ),
    ] = None
    redis_url: Annotated[
        str | None,
        Meta(
            description="redis://, rediss:// or unix:// URL; redis+cluster://HOST:PORT,... for a cluster; "
            "redis+sentinel://HOST:PORT,.../MASTER; unset: an embedded store."
        ),
    ] = None
    store_durability: Annotated[
        Literal["memory", "disk", "replicated", "everysec", "always"] | None,
        Meta(
            description="Where a message or a reply's end is before it is confirmed: memory: in the store's memory; disk: on the "
            "store's disk; replicated: also in the memory of one of its replicas; everysec and always are earlier names of memory "
            "and disk; unset: disk with the embedded store, memory with another one."
        ),
    ] = None
    store_bytes: Annotated[
        Annotated[int, Meta(ge=16 * 1024**2)] | None,
        Meta(
            description="Memory of the store, of which messages and uploads fill at most four fifths; unset: 1 GiB for the embedded one, else its maxmemory, or three quarters of its machine if it has none."
        ),
    ] = None
    data_dir: Annotated[str, Meta(description="Folder of the embedded store.")] = msgspec.field(
        default_factory=default_data_dir
    )
    allowed_origins: Annotated[
        tuple[str, ...],
        Meta(
            description="Origins whose pages may connect, besides the server's own, separated by commas; @PATH names a file, * means every origin."
        ),
    ] = ()
    api_keys: Annotated[
        str | None,
        Meta(description="File of API keys (see `midstream keys`), or NAME:HASH:KIND, separated by commas."),
    ] = None
    jwt_secret: Annotated[
        Annotated[str, Meta(min_length=32)] | None,
        Meta(description="Secret for JWTs signed by HS256, 32 characters or more; @PATH names a file."),
    ] = None
    jwks_url: Annotated[
        Annotated[str, Meta(pattern=r"^https?://[^/]")] | None,
        Meta(description="URL of the public keys for JWTs signed by RS256 or ES256 (a JWK Set)."),
    ] = None
    oidc_issuer: Annotated[
        Annotated[str, Meta(pattern=r"^https?://[^/]")] | None,
        Meta(
            description="URL of an OpenID Connect issuer that signs JWTs; its keys are found by discovery. Needs an audience."
        ),
    ] = None
    jwt_audience: Annotated[
        str | None,
        Meta(
            description="Required `aud` of JWTs; * means any. A key set or an issuer needs one: they also sign for other services."
        ),
    ] = None
    jwt_issuer: Annotated[str | None, Meta(description="Required `iss` of JWTs; unset: any.")] = None
    insecure: Annotated[bool, Meta(description="Serve beyond loopback without any authentication.")] = False
    device: Annotated[
        str,
        Meta(
            pattern=r"^\s*[^\s,]+\s*(,\s*[^\s,]+\s*)*$",
            description="auto, cpu, cuda, cuda:1 …; several, separated by commas, get their own engines.",
        ),
    ] = "auto"
    engines: Annotated[int, Meta(ge=1, le=64, description="Engine processes on each device.")] = 1
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"], Meta(description="Number type of the weights.")
    ] = "auto"
    reply_tokens: Annotated[
        int,
        Meta(
            ge=1,
            description="The longest reply, in tokens, if neither its sender nor the model's generation config names a limit.",
        ),
    ] = 8192
    pickled_weights: Annotated[
        bool,
        Meta(
            description="Also load weights in pickle files (pytorch_model.bin), which may run code of their author if PyTorch has a flaw."
        ),
    ] = False
    attn: Annotated[
        str,
        Meta(
            description="auto or midstream: attention over the KV pages; others are refused with the reason."
        ),
    ] = "auto"
    quantize: Annotated[
        str,
        Meta(description="none; or int8: the weights of linear layers, on a CPU, for few replies at once."),
    ] = "none"
    tensor_parallel: Annotated[
        int, Meta(ge=1, description="Devices that share one model; more than one only with --engine vllm.")
    ] = 1
    max_batch: Annotated[
        int, Meta(ge=1, le=1024, description="Replies that one engine generates at once.")
    ] = 32
    kv_bytes: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(
            description="Memory of one engine for keys and values; unset: what max_batch replies of a whole window take and a quarter more, but at most half of what is free after loading, on a CPU a quarter, on CUDA 95 % of what the largest step leaves."
        ),
    ] = None
    kv_idle_s: Annotated[
        float,
        Meta(
            gt=0,
            description="Seconds after which an engine on a CPU gives up keys and values that nobody uses, and returns their memory; at most twice as many.",
        ),
    ] = KV_IDLE_S
    step_timeout_s: Annotated[
        int,
        Meta(
            ge=10,
            le=86_400,
            description="Seconds that a step of an engine may take; an engine whose step takes longer is restarted.",
        ),
    ] = 300
    max_turns: Annotated[
        int,
        Meta(ge=1, description="Turns that run at once; as many again may wait, and more are refused."),
    ] = MAX_TURNS
    max_queued: Annotated[
        int,
        Meta(ge=0, le=1000, description="Messages of one conversation that may wait behind a running reply."),
    ] = 16
    max_tool_rounds: Annotated[
        int,
        Meta(
            ge=1,
            le=1000,
            description="Replies to one message that may call tools; the next one must be text.",
        ),
    ] = 64
    tool_wait_s: Annotated[
        float,
        Meta(gt=0, le=30 * 86_400, description="Seconds a call waits for a client's result or approval."),
    ] = 3600.0
    max_connections: Annotated[
        int, Meta(ge=1, description="WebSocket connections and event streams at once.")
    ] = MAX_CONNECTIONS
    max_client_connections: Annotated[int, Meta(ge=1, description="Connections per client id.")] = (
        MAX_CLIENT_CONNECTIONS
    )
    max_key_connections: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="Per API key or JWT subject; unset: no limit.")
    ] = None
    max_pending_connections: Annotated[
        int, Meta(ge=1, description="Connections that are not admitted yet; more are refused with 503.")
    ] = MAX_PENDING_CONNECTIONS
    message_rate: Annotated[
        float,
        Meta(
            gt=0,
            description="Messages a second of one owner; a burst may hold five seconds' worth. A key or address may send ten times that. Each replica counts alone.",
        ),
    ] = MESSAGES_PER_S
    read_rate: Annotated[
        float,
        Meta(gt=0, description="The same for calls of the store: history, resume, lists, renames, deletes."),
    ] = READS_PER_S
    messages_per_minute: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="Messages per client id; unset: no limit.")
    ] = None
    key_messages_per_minute: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="Per API key or JWT subject; unset: no limit.")
    ] = None
    tokens_per_day: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="Prompt and reply tokens of a client id, until midnight UTC; unset: no limit."),
    ] = None
    key_tokens_per_day: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="The same of one API key or JWT subject; unset: no limit."),
    ] = None
    limits_file: Annotated[
        str | None,
        Meta(description="TOML file with those four limits and both rates; reread when it changes."),
    ] = None
    max_content_chars: Annotated[
        int,
        Meta(ge=1, description="Characters of one message; the window and the request's size bound it, too."),
    ] = 1_048_576
    unsupported_tools: Annotated[
        Literal["refuse", "ignore"],
        Meta(
            description="What happens to tools if the model can't call any: ignore: it answers without them, unless it must call one; refuse: the request is refused."
        ),
    ] = "ignore"
    titles: Annotated[
        Literal["auto", "model", "words"],
        Meta(
            description="Titles of new conversations: model: the model writes them when it is idle; words: the first words of the message; auto: model, except for the bundled model."
        ),
    ] = "auto"
    suggestions: Annotated[
        str | None,
        Meta(
            description="Messages that the page suggests in an empty conversation, separated by |; unset: some that the bundled model can answer, and none for another model."
        ),
    ] = None
    sharing: Annotated[
        bool,
        Meta(description="People may share a conversation by a link; anybody with the link can read it."),
    ] = True
    chars_per_s: Annotated[
        Annotated[float, Meta(ge=0, le=1000)] | None,
        Meta(
            description="Characters a second at which replies are sent whose sender names no pace; 0: as they are made; unset: 100 for the bundled model, 0 for others."
        ),
    ] = None
    filters: Annotated[
        str | None,
        Meta(description="TOML file with words, patterns and hooks that refuse messages or end replies."),
    ] = None
    tools: Annotated[
        tuple[str, ...],
        Meta(
            description="Python functions that models may call, as module:function, separated by commas; in addition to the entry points midstream.tools of installed packages."
        ),
    ] = ()
    tools_file: Annotated[
        str | None, Meta(description="TOML file with the MCP servers whose tools models may call.")
    ] = None
    tool_timeout_s: Annotated[
        float, Meta(gt=0, le=3600, description="Seconds that a call of such a function may run.")
    ] = 30.0
    tool_result_bytes: Annotated[
        int, Meta(ge=256, le=4 << 20, description="Bytes of a tool's result; a longer one is cut.")
    ] = 64 * 1024
    speech: Annotated[
        Literal["auto", "off", "both", "recognition", "voice"],
        Meta(
            description="Parts of speech to serve: recognition: microphones, /v1/audio/transcriptions; voice: spoken replies, /v1/audio/speech. Needs the part `speech`. auto: the installed parts, with the bundled model."
        ),
    ] = "auto"
    speech_recognizer: Annotated[
        str,
        Meta(
            description="The recognizer: pocketsphinx, or the hub name or folder of a Whisper or Moonshine model."
        ),
    ] = "pocketsphinx"
    speech_grammar: Annotated[
        str | None,
        Meta(
            description="JSGF file with everything that pocketsphinx can understand; unset: English in general."
        ),
    ] = None
    speech_voice: Annotated[
        str,
        Meta(
            description="The voice: espeak-ng, a program of the system, or the hub name or folder of a VITS model, such as MMS."
        ),
    ] = "espeak-ng"
    speech_device: Annotated[
        str,
        Meta(pattern=r"^\s*[^\s,]+\s*$", description="Device of speech models: auto, cpu, cuda, cuda:1 …"),
    ] = "auto"
    speech_dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        Meta(description="Type of speech models' weights; auto: float16 on CUDA, else float32."),
    ] = "auto"
    speech_seconds: Annotated[int, Meta(ge=1, le=3600, description="Seconds of one recording.")] = 600
    speech_chars: Annotated[int, Meta(ge=1, le=60_000, description="Characters of a spoken text.")] = 4096
    max_speech: Annotated[
        int, Meta(ge=1, le=256, description="Recordings at once, and as many spoken texts.")
    ] = 8
    conversation_ttl_s: Annotated[
        float, Meta(gt=0, description="Seconds for which a conversation is kept after its last turn.")
    ] = 30 * 24 * 3600.0
    drain_s: Annotated[
        float, Meta(ge=0, description="Seconds that running replies may take to end after SIGTERM.")
    ] = 10.0
    log_format: Annotated[
        Literal["auto", "text", "json"], Meta(description="auto: text on a terminal, else JSON.")
    ] = "auto"
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="Lowest level that is logged.")
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
        values = from_environment(cls.__struct_fields__, environ) | {
            name: value for name, value in (options or {}).items() if value is not None
        }
        try:
            settings = msgspec.convert(
                {name: parsed(name, value) for name, value in values.items()}, cls, strict=False
            )
        except msgspec.ValidationError as error:
            raise SettingsError(complaint(str(error), values, kinds())) from None
        settings.check_signers()
        settings.check_safety()
        return settings

    @property
    def is_bundled(self) -> bool:
        """Whether the bundled model answers."""
        return self.model is None and self.upstreams is None

    @property
    def default_pace(self) -> float:
        """Characters a second of replies whose sender names no pace; 0: as they are made."""
        if self.chars_per_s is None:
            return DEMO_CHARS_PER_S if self.is_bundled else 0.0
        return self.chars_per_s

    @property
    def suggested(self) -> tuple[str, ...]:
        """The messages that an empty conversation suggests."""
        if self.suggestions is None:
            return DEMO_SUGGESTIONS if self.is_bundled else ()
        return tuple(text for one in self.suggestions.split("|") if (text := one.strip()))

    @property
    def authenticates(self) -> bool:
        """Whether clients must authenticate."""
        return not (self.api_keys is self.jwt_secret is self.jwks_url is self.oidc_issuer is None)

    def check_signers(self) -> None:
        """Raise SettingsError if tokens that were signed for other services would be accepted."""
        for name in ("jwks_url", "oidc_issuer"):
            if getattr(self, name) is not None and self.jwt_audience is None:
                raise SettingsError(
                    f"{called(name)} needs {called('jwt_audience')}: its keys may also sign tokens for other services, whose "
                    "users would get in. Give the `aud` of your tokens, or * if these keys sign for this service alone."
                )
        if self.oidc_issuer is None:
            return
        for name in ("jwks_url", "jwt_issuer"):
            if getattr(self, name) is not None:
                raise SettingsError(
                    f"{called(name)} is found through {called('oidc_issuer')}; give one of them."
                )

    def check_safety(self) -> None:
        """Raise SettingsError for settings that are unsafe without `--insecure`."""
        if self.insecure:
            return
        if not (self.authenticates or is_loopback(self.host)):
            raise SettingsError(
                f"--host {self.host} would serve anybody who can reach it, without authentication. Give "
                "--api-keys (see `midstream keys add --help`), --jwt-secret, --jwks-url or --oidc-issuer, or say --insecure."
            )
        for name in ("jwks_url", "oidc_issuer"):
            url = urlsplit(getattr(self, name) or "")
            if url.scheme == "http" and not is_loopback(url.hostname or ""):
                raise SettingsError(
                    f"{called(name)}: over plain http, others on the network can replace the keys. Use https, or say --insecure."
                )


def kinds() -> dict[str, Any]:
    """Return the types of the settings, in their order, as `msgspec.inspect` has them."""
    fields = msgspec.inspect.type_info(Settings).fields  # type: ignore[attr-defined]
    return {field.name: field.type for field in fields}


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
    with naming(name, ValueError, end="."):
        return tuple(shlex.split(value))


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


@contextmanager
def naming(setting: str, *errors: type[Exception], end: str = "") -> Iterator[None]:
    """Put the names of a setting before what is wrong with it. Raises SettingsError."""
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
    """Return a variable's value. Raises SettingsError, which says where the variable was named."""
    if name.startswith(PREFIX):
        raise SettingsError(f"{setting}: {name} would be a setting; give the variable another name.")
    value = variable(name)
    if not value:
        raise SettingsError(f"{setting}: the variable {name} is not set.")
    if not (value.isascii() and value.isprintable()):
        raise SettingsError(f"{setting}: the variable {name} holds characters that no key may have.")
    return value
