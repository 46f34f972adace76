"""Writes an estimate for people: the needs, and each assumption with its option. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from app.doctor.findings import size
from app.sizing.estimate import Assumptions, Estimate
from app.sizing.model_shapes import Shape


def lines(found: Estimate, shape: Shape, given: Assumptions, *, dtype: str) -> Iterator[str]:
    """Return the whole table."""
    yield f"{found.users:,} users of {shape.name} ({shape.parameters / 1e9:.2f} billion parameters, {dtype})"
    yield ""
    yield "At the busiest time"
    yield _row("connected", f"{found.connected:,}")
    yield _row("messages", f"{found.turns_per_s:,.2f} a second")
    yield _row("replies at once", f"{found.replies_at_once:,}", "MIDSTREAM_MAX_BATCH of all engines")
    yield _row("the engines make", f"{found.decode_tokens_per_s:,.0f} tokens/s of replies")
    yield _row("and read", f"{found.prefill_tokens_per_s:,.0f} tokens/s of prompts")
    yield _row("engines", _engines(found))
    yield ""
    yield "Memory"
    yield _row("weights, each engine", size(found.weights_bytes))
    yield _row("keys and values, a token", f"{found.kv_bytes_per_token:,} bytes")
    yield _row("of replies at once", size(found.kv_running_bytes), "MIDSTREAM_KV_BYTES of all engines")
    yield _row("of what is reused", size(found.kv_reused_bytes), "besides; with less, prompts are read again")
    yield _row("Redis, stored", size(found.redis_stored_bytes))
    yield _row("Redis, journals", size(found.redis_journal_bytes), "of the last five minutes")
    yield _row("Redis, maxmemory", size(found.redis_limit_bytes), "twice that")
    yield _row("gateways together", size(found.gateway_bytes))
    yield ""
    yield "Assumed, and the option that changes it"
    for name, _, description in options():
        yield _row(f"--{name.replace('_', '-')}", f"{getattr(given, name):g}", description)
    yield ""
    yield "Measure one engine under load (docs/operate.md), and give its tokens a second by --engine-tokens-per-s."


def _engines(found: Estimate) -> str:
    return f"{found.engines:,}" if found.engines is not None else "unknown: give --engine-tokens-per-s"


def _row(name: str, value: str, note: str = "") -> str:
    return f"  {name:<26}{value:>16}  {note}".rstrip()


def options() -> Iterator[tuple[str, Any, str]]:
    """Return each assumption: name, default and meaning."""
    for field in msgspec.inspect.type_info(Assumptions).fields:  # type: ignore[attr-defined]
        yield field.name, field.default, field.type.extra_json_schema["description"]
