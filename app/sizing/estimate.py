"""Estimates the memory and engines for a number of users, from a few assumptions. Pure: all of the arithmetic is here."""

from __future__ import annotations

import math
from typing import Annotated

import msgspec
from msgspec import Meta

from app.sizing.model_shapes import Shape

EXCHANGE_BYTES = 1027
"""Bytes in Redis of an exchange, beside its text: 100 of 1,196 bytes took 2,223 each (`python -m tests.bench.storage`)."""
CONVERSATION_BYTES = 750
"""The same for a conversation, beside its exchanges (the same command, with one exchange)."""
LISTED_BYTES = 850
"""Bytes of a conversation in its owner's list and the replicas': 100,000 of five exchanges took 12,964 bytes each."""
JOURNAL_BYTES = 166
"""Bytes of a token in the journal, while a reader may resume its reply; fewer if the gateway merges tokens."""
JOURNAL_S = 300.0
"""Seconds that a journal is kept after its reply's end, and until it is compacted."""
GATEWAY_BYTES = 51_000_000
"""Bytes of an idle gateway (`docs/benchmarks.md`, many conversations)."""
CONNECTION_BYTES = 51_000
"""Bytes of the gateway for a connection with its live conversation (the same)."""
STORE_SPARE = 2.0
"""A store's limit relative to what it holds: rewriting the append-only file copies pages, and no write may be refused."""
DAY_S = 86_400.0

Share = Annotated[float, Meta(ge=0, le=1)]
More = Annotated[float, Meta(gt=0)]


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
        More, Meta(description="Days that a conversation is kept (MIDSTREAM_CONVERSATION_TTL_S).")
    ] = 30.0
    exchanges: Annotated[More, Meta(description="Messages of a conversation.")] = 10.0


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """The needs at the busiest time, in bytes unless it says otherwise."""

    users: int
    connected: int
    turns_per_s: float
    replies_at_once: int
    decode_tokens_per_s: float
    prefill_tokens_per_s: float
    weights_bytes: int
    kv_bytes_per_token: int
    kv_running_bytes: int
    """Keys and values of the replies that run at once: with less, replies wait."""
    kv_reused_bytes: int
    """Keys and values for reuse: the conversations of all connected users."""
    engines: int | None
    """None if the speed of an engine is not given."""
    redis_stored_bytes: int
    redis_journal_bytes: int
    redis_limit_bytes: int
    gateway_bytes: int


def estimate(
    users: int, shape: Shape, given: Assumptions, *, dtype: str, engine_tokens_per_s: float | None = None
) -> Estimate:
    """Return the needs of so many users."""
    connected = math.ceil(users * given.online)
    turns_per_s = connected * given.messages_per_hour / 3600
    at_once = math.ceil(turns_per_s * given.reply_tokens / given.tokens_per_s)
    decode = turns_per_s * given.reply_tokens
    context = given.context_tokens + given.prompt_tokens + given.reply_tokens
    window = context if shape.window is None else min(context, shape.window)
    per_token = shape.kv_bytes_per_token(dtype)
    stored = _stored(users, given)
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


def _stored(users: int, given: Assumptions) -> int:
    exchanges = users * given.messages_per_day * given.kept_days
    text = (given.prompt_tokens + given.reply_tokens) * given.bytes_per_token
    return stored_bytes(exchanges, exchanges / given.exchanges, text)


def stored_bytes(exchanges: float, conversations: float, text_bytes: float) -> int:
    """Return the bytes that exchanges keep in Redis. `text_bytes`: question and reply of one exchange."""
    return math.ceil(
        exchanges * (text_bytes + EXCHANGE_BYTES) + conversations * (CONVERSATION_BYTES + LISTED_BYTES)
    )


def journal_bytes(replies: float, tokens: float) -> int:
    """Return the bytes of the journals of recent replies."""
    return math.ceil(replies * tokens * JOURNAL_BYTES)
