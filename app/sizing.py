"""`midstream size`: estimates the memory and engines for a number of users, from a few assumptions and the shape of a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import click
import msgspec
from msgspec import Meta

from app.models import PACKAGES, converted_folder, in_cache, weights_of
from app.settings import DEMO_MODEL, Settings, in_bytes

EXCHANGE_BYTES = 1027
"""Bytes of an exchange in Redis, besides its text: 100 of 1,196 bytes took 2,223 each (`python -m tests.bench.conversations`)."""
CONVERSATION_BYTES = 750
"""Bytes of a conversation in Redis, besides its exchanges (the same command, with one exchange)."""
LISTED_BYTES = 850
"""Bytes of a conversation in the lists of its owner and of the replicas: 100,000 of five exchanges took 12,964 bytes each."""
JOURNAL_BYTES = 166
"""Bytes of a token in the journal while a reader may resume the reply; fewer if the gateway merges tokens."""
JOURNAL_S = 300.0
"""Seconds that a journal is kept after its reply's end, until it is compacted."""
GATEWAY_BYTES = 51_000_000
"""Bytes of an idle gateway (`docs/benchmarks.md`, many conversations)."""
CONNECTION_BYTES = 51_000
"""Bytes of the gateway for a connection with its live conversation (`docs/benchmarks.md`, likewise)."""
STORE_SPARE = 2.0
"""A store's limit relative to what it holds: rewriting the append-only file copies pages, and no write may be refused."""
WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "int8": 1}
"""Bytes of a number."""
_MATRICES_OF_MLP = 3


class Assumptions(msgspec.Struct, frozen=True, kw_only=True):
    """The assumptions about users and engines, with a default for each."""

    online: Annotated[
        Share, Meta(description="Share of the users who are connected at the busiest time.")
    ] = 0.1
    messages_per_hour: Annotated[More, Meta(description="Messages an hour of a connected user.")] = 12.0
    messages_per_day: Annotated[
        More, Meta(description="Messages a day of a user, as the mean of all users.")
    ] = 5.0
    prompt_tokens: Annotated[More, Meta(description="Tokens of a message.")] = 50.0
    reply_tokens: Annotated[More, Meta(description="Tokens of a reply.")] = 300.0
    context_tokens: Annotated[
        More, Meta(description="Tokens of a message's prompt: the history and the system prompt.")
    ] = 2000.0
    reused: Annotated[
        Share,
        Meta(description="Share of the prompt whose keys and values are still cached from the turn before."),
    ] = 0.8
    tokens_per_s: Annotated[More, Meta(description="Tokens a second for each reply.")] = 20.0
    bytes_per_token: Annotated[More, Meta(description="Bytes of text in a token.")] = 4.0
    kept_days: Annotated[
        More, Meta(description="Days that a conversation is kept (MIDSTREAM_CONVERSATION_TTL).")
    ] = 30.0
    exchanges: Annotated[More, Meta(description="Messages of a conversation.")] = 10.0


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """The needs at the busiest time, in bytes unless the name says otherwise."""

    users: int
    connected: int
    turns_per_s: float
    replies_at_once: int
    decode_tokens_per_s: float
    prefill_tokens_per_s: float
    weights_bytes: int
    kv_bytes_per_token: int
    kv_running_bytes: int
    """Keys and values of the replies that run at once: with less memory, replies wait."""
    kv_reused_bytes: int
    """Keys and values for reuse: the conversations of all connected users."""
    engines: int | None
    """None if the speed of an engine is unknown."""
    redis_stored_bytes: int
    redis_journal_bytes: int
    redis_limit_bytes: int
    gateway_bytes: int


def estimate(
    users: int, shape: Shape, given: Assumptions, *, dtype: str, engine_tokens_per_s: float | None = None
) -> Estimate:
    """Return the needs of this many users."""
    connected = math.ceil(users * given.online)
    turns_per_s = connected * given.messages_per_hour / 3600
    at_once = math.ceil(turns_per_s * given.reply_tokens / given.tokens_per_s)
    decode = turns_per_s * given.reply_tokens
    context = given.context_tokens + given.prompt_tokens + given.reply_tokens
    window = context if shape.window is None else min(context, shape.window)
    per_token = shape.kv_bytes_per_token(dtype)
    exchanges = users * given.messages_per_day * given.kept_days
    text = (given.prompt_tokens + given.reply_tokens) * given.bytes_per_token
    stored = stored_bytes(exchanges, exchanges / given.exchanges, text)
    journal = journal_bytes(turns_per_s * JOURNAL_S, given.reply_tokens)
    return Estimate(
        users=users,
        connected=connected,
        turns_per_s=turns_per_s,
        replies_at_once=at_once,
        decode_tokens_per_s=decode,
        prefill_tokens_per_s=turns_per_s * (given.prompt_tokens + (1 - given.reused) * given.context_tokens),
        weights_bytes=shape.weights_bytes(dtype),
        kv_bytes_per_token=per_token,
        kv_running_bytes=math.ceil(at_once * window * per_token),
        kv_reused_bytes=math.ceil(max(0, connected - at_once) * given.reused * window * per_token),
        engines=None if engine_tokens_per_s is None else max(1, math.ceil(decode / engine_tokens_per_s)),
        redis_stored_bytes=stored,
        redis_journal_bytes=journal,
        redis_limit_bytes=math.ceil(STORE_SPARE * (stored + journal)),
        gateway_bytes=GATEWAY_BYTES + connected * CONNECTION_BYTES,
    )


def stored_bytes(exchanges: float, conversations: float, text_bytes: float) -> int:
    """Return the bytes that exchanges keep in Redis. `text_bytes`: question and reply of one exchange."""
    return math.ceil(
        exchanges * (text_bytes + EXCHANGE_BYTES) + conversations * (CONVERSATION_BYTES + LISTED_BYTES)
    )


def journal_bytes(replies: float, tokens: float) -> int:
    """Return the bytes of the journals of recent replies."""
    return math.ceil(replies * tokens * JOURNAL_BYTES)


Count = Annotated[int, Meta(ge=1)]
_UNLIKE_LLAMA = {
    "kv_lora_rank": "keys and values that are kept compressed",
    "n_routed_experts": "layers with shared and routed experts",
}
"""Signs of decoders for which the results would be far off."""


class ShapeUnknown(Exception):
    """A model's size is unknown. The message is for the user of the command."""


class _Quantized(msgspec.Struct):
    quant_method: str = ""


class _Text(msgspec.Struct, kw_only=True):
    """A decoder's shape, from its configuration."""

    num_hidden_layers: Count | None = None
    hidden_size: Count | None = None
    num_attention_heads: Count | None = None
    num_key_value_heads: Count | None = None
    head_dim: Count | None = None
    intermediate_size: Count | None = None
    vocab_size: Count | None = None
    max_position_embeddings: Count | None = None
    tie_word_embeddings: bool = False
    num_experts: Count | None = None
    num_local_experts: Count | None = None
    kv_lora_rank: int | None = None
    n_routed_experts: int | None = None
    moe_intermediate_size: Count | None = None
    dtype: str | None = None
    torch_dtype: str | None = None


class _Config(_Text, kw_only=True):
    """The whole configuration. Models of images and text have a separate part for the decoder."""

    text_config: _Text | None = None
    quantization_config: _Quantized | None = None


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """A model's size. `stored_bytes`: the size of its weights on disk, None without files; `stored_dtype`: their type."""

    name: str
    layers: int
    kv_heads: int
    head_dim: int
    window: int | None
    parameters: int
    stored_dtype: str
    stored_bytes: int | None

    def kv_bytes_per_token(self, dtype: str) -> int:
        """Return the bytes of one token's keys and values in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * WIDTHS[dtype]

    def weights_bytes(self, dtype: str) -> int:
        """Return the bytes of the weights: the size of the files if there are any, else computed from the shape."""
        if self.stored_bytes is None:
            return self.parameters * WIDTHS[dtype]
        return self.stored_bytes * WIDTHS[dtype] // WIDTHS.get(self.stored_dtype, WIDTHS[dtype])


def shape_of(model: str, data_dir: str | None = None) -> Shape:
    """Return the shape of a model in a folder or in the hub's cache, of a package, or of a converted GGUF file.

    `data_dir`: the data folder, if not the default one. Raises ShapeUnknown.
    """
    folder = Path(model).expanduser()
    if model in PACKAGES and not folder.exists():
        return _of_config(model, Path("config.json"), msgspec.convert(PACKAGES[model].config, _Config), None)
    if folder.is_file():
        folder = _converted(model, data_dir)
    elif not folder.is_dir():
        folder = _cached_folder(model)
    file = folder / "config.json"
    try:
        config = msgspec.json.decode(file.read_bytes(), type=_Config)
    except OSError as error:
        raise ShapeUnknown(f"{file} can't be read: {error}.") from error
    except msgspec.DecodeError as error:
        raise ShapeUnknown(f"{file} is not the configuration of a model: {error}.") from error
    return _of_config(model, file, config, weights_of(folder) or None)


def _converted(file: str, data_dir: str | None) -> Path:
    """Return the folder of a GGUF file that `serve` has converted."""
    settings = Settings(model=file)
    if data_dir is not None:
        settings = msgspec.structs.replace(settings, data_dir=data_dir)
    folder = converted_folder(settings)
    if folder is None:
        raise ShapeUnknown(f"{file} is a file, but not a GGUF file. Pass the folder of the model.")
    if not folder.is_dir():
        raise ShapeUnknown(
            f"{file} was not converted yet. `midstream serve --model {file}` does that once; "
            "`midstream doctor` with the same option says how much memory it takes."
        )
    return folder


def _cached_folder(model: str) -> Path:
    """Return the folder of a model in the hub's cache."""
    try:
        kept = in_cache(model)
    except ValueError as error:  # the path is missing, and is not a name on the hub
        raise ShapeUnknown(
            f"There is no folder {model}, and it is not the name of a model on the hub."
        ) from error
    if kept is None:
        raise ShapeUnknown(
            f"{model} is neither a folder nor in the hub's cache. Fetch its config.json: hf download {model} config.json"
        )
    return kept


def _of_config(name: str, file: Path, config: _Config, stored_bytes: int | None) -> Shape:
    text = config.text_config or config
    for field, what in _UNLIKE_LLAMA.items():
        if getattr(text, field):
            raise ShapeUnknown(f"{file} has {field}: {what} can't be sized here.")
    layers, hidden, heads = (
        _required(file, field, getattr(text, field))
        for field in ("num_hidden_layers", "hidden_size", "num_attention_heads")
    )
    quantized = config.quantization_config is not None and config.quantization_config.quant_method
    dtype = text.dtype or text.torch_dtype or config.dtype or config.torch_dtype or "bfloat16"
    kv_heads, head_dim = text.num_key_value_heads or heads, text.head_dim or hidden // heads
    return Shape(
        name=Path(name).name,
        layers=layers,
        kv_heads=kv_heads,
        head_dim=head_dim,
        window=text.max_position_embeddings,
        parameters=_parameters(text, layers, hidden, heads * head_dim, kv_heads * head_dim),
        stored_dtype=quantized or dtype,
        stored_bytes=stored_bytes,
    )


def _required(file: Path, field: str, value: int | None) -> int:
    if value is None:
        raise ShapeUnknown(f"{file} lacks {field}.")
    return value


def _parameters(text: _Text, layers: int, hidden: int, queries: int, keys: int) -> int:
    """Return the number of weights of a Llama-like decoder of this shape, without norms and biases."""
    attention = 2 * hidden * (queries + keys)
    experts = text.num_experts or text.num_local_experts or 1
    inner = (text.moe_intermediate_size if experts > 1 else None) or text.intermediate_size or 4 * hidden
    embeddings = (text.vocab_size or 0) * hidden * (1 if text.tie_word_embeddings else 2)
    return layers * (attention + experts * _MATRICES_OF_MLP * hidden * inner) + embeddings


def lines(found: Estimate, shape: Shape, given: Assumptions, *, dtype: str) -> Iterator[str]:
    """Yield the table, line by line."""
    yield f"{found.users:,} users of {shape.name} ({shape.parameters / 1e9:.2f} billion parameters, {dtype})"
    yield ""
    yield "At the busiest time"
    yield _row("connected", f"{found.connected:,}")
    yield _row("messages", f"{found.turns_per_s:,.2f} a second")
    yield _row("replies at once", f"{found.replies_at_once:,}", "MIDSTREAM_MAX_BATCH of all engines")
    yield _row("the engines make", f"{found.decode_tokens_per_s:,.0f} tokens/s of replies")
    yield _row("and read", f"{found.prefill_tokens_per_s:,.0f} tokens/s of prompts")
    engines = f"{found.engines:,}" if found.engines is not None else "unknown: give --engine-tokens-per-s"
    yield _row("engines", engines)
    yield ""
    yield "Memory"
    yield _row("weights, each engine", in_bytes(found.weights_bytes))
    yield _row("keys and values, a token", f"{found.kv_bytes_per_token:,} bytes")
    yield _row("of replies at once", in_bytes(found.kv_running_bytes), "MIDSTREAM_KV_MEMORY of all engines")
    yield _row(
        "of what is reused", in_bytes(found.kv_reused_bytes), "besides; with less, prompts are read again"
    )
    yield _row("Redis, stored", in_bytes(found.redis_stored_bytes))
    yield _row("Redis, journals", in_bytes(found.redis_journal_bytes), "of the last five minutes")
    yield _row("Redis, maxmemory", in_bytes(found.redis_limit_bytes), "twice that")
    yield _row("gateways together", in_bytes(found.gateway_bytes))
    yield ""
    yield "Assumed, and the option that changes it"
    for name, _, description in options():
        yield _row(f"--{name.replace('_', '-')}", f"{getattr(given, name):g}", description)
    yield ""
    yield "Measure one engine under load (docs/operate.md), and give its tokens a second by --engine-tokens-per-s."


def _row(name: str, value: str, note: str = "") -> str:
    return f"  {name:<26}{value:>16}  {note}".rstrip()


def options() -> Iterator[tuple[str, Any, str]]:
    """Yield each assumption: name, default and meaning."""
    for field in msgspec.inspect.type_info(Assumptions).fields:  # type: ignore[attr-defined]
        yield field.name, field.default, field.type.extra_json_schema["description"]


Share = Annotated[float, Meta(ge=0, le=1)]
More = Annotated[float, Meta(gt=0)]


class _Finite(click.FloatRange):
    """A finite number."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read an option's text. Raises BadParameter."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


def _assumptions(command: Callable[..., None]) -> Callable[..., None]:
    """Add an option of the same name for each assumption."""
    for name, default, description in reversed(list(options())):
        flag = f"--{name.replace('_', '-')}"
        command = click.option(flag, type=_Finite(), default=default, show_default=True, help=description)(
            command
        )
    return command


@click.command()
@click.option("--users", type=click.IntRange(1, 10**9), required=True, help="How many people use it, in all.")
@click.option(
    "--model",
    default=None,
    help="A Llama-like model's folder, a hub name that is in the cache, smollm2, or a GGUF file that was served before. Default: the demo model.",
)
@click.option(
    "--data-dir",
    envvar="MIDSTREAM_DATA_DIR",
    help="Folder in which `serve` keeps converted models. Default: MIDSTREAM_DATA_DIR, or the usual one.",
)
@click.option(
    "--dtype",
    type=click.Choice(sorted(WIDTHS)),
    default="bfloat16",
    show_default=True,
    help="Number type of weights, keys and values.",
)
@click.option(
    "--engine-tokens-per-s",
    type=_Finite(0, min_open=True),
    help="Tokens a second of one engine, over all its replies, measured under load.",
)
@_assumptions
@click.option("--json", "as_json", is_flag=True, help="Write the figures as JSON.")
def size(
    *,
    users: int,
    model: str | None,
    data_dir: str | None,
    dtype: str,
    engine_tokens_per_s: float | None,
    as_json: bool,
    **assumed: float,
) -> None:
    """Estimate the memory, Redis and engines that a number of users needs, with the assumptions.

    It only reads the model's config.json, and loads nothing.
    """
    try:
        shape = shape_of(model or str(DEMO_MODEL), data_dir)
        given = msgspec.convert(assumed, Assumptions)
        found = estimate(users, shape, given, dtype=dtype, engine_tokens_per_s=engine_tokens_per_s)
    except ShapeUnknown as error:
        raise click.ClickException(str(error)) from error
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at `$.")
        raise click.ClickException(f"--{path.rstrip('`').replace('_', '-')}: {what}") from error
    except OverflowError as error:
        raise click.ClickException(
            "With these assumptions the figures become too large to compute."
        ) from error
    if as_json:
        report: dict[str, Any] = {"estimate": found, "model": shape, "dtype": dtype, "assumed": given}
        click.echo(msgspec.json.format(msgspec.json.encode(report)).decode())
    else:
        click.echo("\n".join(lines(found, shape, given, dtype=dtype)))
