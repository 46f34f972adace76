"""The ranges of a turn's parameters. A value out of range is refused; only the length is clamped, to the window."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from connections.protocol import frames
from connections.protocol.errors import BadParams
from connections.protocol.tools import format_of
from engine.messages import Params
from engine.reply_spec import Translation
from sessions.turn.message_request import GenerationConfig

MAX_STOPS = 8
MAX_STOP_CHARS = 256
MAX_SYSTEM_CHARS = 16_000
MAX_TEMPERATURE = 2
MIN_PENALTY, MAX_PENALTY = 0.01, 2
SMALLEST_TOP_P = 1e-6
MAX_TIME_S = 86_400
MIN_CHARS_PER_S, MAX_CHARS_PER_S = 10, 1000
MAX_INTEGER = 2**63 - 1
UNLIMITED = -1


def generation(params: frames.Params, *, max_new_tokens: int) -> GenerationConfig:
    """Return the parameters for the floors below. Raises BadParams, which names the field and its range.

    A longer reply than `max_new_tokens` is as long as that.
    """
    for field, why in _wrong(params):
        raise BadParams(why, field=f"params.{field}")
    fields = msgspec.structs.asdict(params)
    fields["max_new_tokens"] = _length(params.max_new_tokens, max_new_tokens)
    system, model = fields.pop("system"), fields.pop("model")
    reply_format, reasoning = format_of(fields.pop("format")), fields.pop("reasoning")
    chars_per_s, translation = (
        fields.pop("chars_per_s"),
        _translation(fields.pop("target"), fields.pop("source")),
    )
    if params.temperature == 0:
        fields |= {"do_sample": False, "temperature": None}
    elif params.temperature is not None and params.do_sample is None:
        fields["do_sample"] = True
    return GenerationConfig(
        Params(**fields),
        system,
        model,
        format=reply_format,
        reasoning=reasoning or "auto",
        chars_per_s=chars_per_s,
        translation=translation,
    )


def _translation(target: str | None, source: str | None) -> Translation | None:
    return None if target is None and source is None else Translation(target or "", source or "")


def _length(requested: int | None, most: int) -> int | None:
    return None if requested in (None, UNLIMITED) else min(requested, most)


def _wrong(params: frames.Params) -> Iterator[tuple[str, str]]:
    """Yield the fields that are out of range, each with the text that follows its name."""
    ranges: tuple[tuple[str, Callable[[float], bool], str], ...] = (
        ("max_new_tokens", lambda n: n >= 1 or n == UNLIMITED, f"1 or more, or {UNLIMITED} for no limit"),
        ("temperature", lambda n: 0 <= n <= MAX_TEMPERATURE, f"from 0 to {MAX_TEMPERATURE}"),
        ("top_p", lambda n: SMALLEST_TOP_P <= n <= 1, f"from {SMALLEST_TOP_P:f} to 1"),
        ("top_k", lambda n: 0 <= n <= MAX_INTEGER, "0 or more"),
        (
            "repetition_penalty",
            lambda n: MIN_PENALTY <= n <= MAX_PENALTY,
            f"from {MIN_PENALTY} to {MAX_PENALTY}",
        ),
        ("seed", lambda n: 0 <= n <= MAX_INTEGER, f"from 0 to {MAX_INTEGER}"),
        (
            "chars_per_s",
            lambda n: n == 0 or MIN_CHARS_PER_S <= n <= MAX_CHARS_PER_S,
            f"0, or from {MIN_CHARS_PER_S} to {MAX_CHARS_PER_S}",
        ),
        ("max_time_s", lambda n: 0 < n <= MAX_TIME_S, f"above 0 and at most {MAX_TIME_S}"),
    )
    for field, fits, wanted in ranges:
        value = getattr(params, field)
        if value is not None and not fits(value):
            yield field, f"must be {wanted}."
    if len(params.stop) > MAX_STOPS:
        yield "stop", f"must have {MAX_STOPS} strings at most."
    if not all(0 < len(stop) <= MAX_STOP_CHARS for stop in params.stop):
        yield "stop", f"must have strings of 1 to {MAX_STOP_CHARS} characters."
    if params.system is not None and len(params.system) > MAX_SYSTEM_CHARS:
        yield "system", f"must have {MAX_SYSTEM_CHARS} characters at most; it has {len(params.system)}."
