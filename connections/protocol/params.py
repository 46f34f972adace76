"""Checks a turn's parameters, tools and formats.

A value out of range is refused; only the length of the reply is clamped, to the limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import assert_never

import msgspec

from connections.protocol import base, frames
from connections.protocol.errors import BadParams
from engine.messages import Format, Grammar, JsonObject, JsonSchema, Params, Regex, Tool, Translation
from sessions.tools.tool_registry import Approval, ServerTool, ToolRegistry
from sessions.turn.message_request import GenerationConfig, OfferedTool
from sessions.turn.tool_calls import CallAnswer, Decision, Result, is_object

MAX_SCHEMA_BYTES = 32 * 1024
"""The most bytes of a tool's parameters or a format's schema, as JSON without white space."""
MAX_PATTERN_CHARS = 8192
"""The most characters of a regular expression or a grammar."""
_WORDS = ("auto", "none", "required")


def offered_tools(frame: frames.TurnFrame, box: ToolRegistry) -> tuple[OfferedTool, ...]:
    """Return the tools that a turn may call. `box`: the server's tools. Raises BadParams, which names the field.

    A server tool that the client was shown, but whose source is unreachable, is left out unless it must be called.
    """
    offered = tuple(
        _offered(place, one, box)
        for place, one in enumerate(frame.tools)
        if one.where == "client" or one.name == frame.tool_choice or not box.has_gone(one.name)
    )
    names = [one.name for one in frame.tools]
    if len(set(names)) < len(names):
        raise BadParams("must not repeat a name.", field="tools")
    if frame.tool_choice not in (*_WORDS, *names):
        raise BadParams(f"must be {', '.join(_WORDS)} or the name of a tool.", field="tool_choice")
    if frame.tool_choice == "required" and not offered:
        raise BadParams("can't be required without tools.", field="tool_choice")
    return offered


def format_of(requested: base.Format | None) -> Format | None:
    """Return the format of a reply. Raises BadParams. Whether the engine supports it is known only later."""
    match requested:
        case None:
            return None
        case base.JsonSchemaFormat():
            return JsonSchema(_schema(requested.schema, "params.format.schema"))
        case base.JsonObjectFormat():
            return JsonObject()
        case base.RegexFormat():
            return Regex(_short(requested.pattern, "params.format.pattern"))
        case base.GrammarFormat():
            return Grammar(_short(requested.lark, "params.format.lark"))
        case _:
            assert_never(requested)


def _offered(place: int, requested: frames.OfferedTool, box: ToolRegistry) -> OfferedTool:
    field = f"tools[{place}]"
    if requested.where == "client":
        tool = Tool(requested.name, requested.description)
        if requested.parameters is not None:
            shape = _schema(requested.parameters, f"{field}.parameters")
            tool = msgspec.structs.replace(tool, parameters=shape)
        return OfferedTool(tool=tool, needs="approval" if requested.approval == "always" else "none")
    if (found := box.tool(requested.name)) is None:
        raise BadParams("names an unknown tool of this server.", field=f"{field}.name")
    if requested.parameters is not None or requested.description:
        raise BadParams("is a server tool: leave its description and parameters out.", field=field)
    return server_tool(found, wants_approval=requested.approval == "always")


def server_tool(tool: ServerTool, *, wants_approval: bool = False) -> OfferedTool:
    """Return an offered tool of the server. If the operator requires approval, no request can change that."""
    needs = wants_approval or tool.approval is Approval.ALWAYS
    return OfferedTool(tool=tool.shown, where="server", needs="approval" if needs else "none")


def answer_of(frame: frames.Answering) -> CallAnswer:
    """Return a client's answer to a call. Raises BadParams."""
    if isinstance(frame, frames.ToolDecision):
        if frame.args is not None and not is_object(frame.args):
            raise BadParams("must be the text of a JSON object.", field="args")
        return Decision(
            call_id=frame.call_id,
            args_sha256=frame.args_sha256,
            allow=frame.decision == "allow",
            args=frame.args,
        )
    if (frame.content is None) == (frame.error is None):
        raise BadParams("or `error` is required, but not both.", field="content")
    return Result(call_id=frame.call_id, content=frame.content, error=frame.error)


def _schema(schema: frames.JsonObject, field: str) -> str:
    text = msgspec.json.encode(schema)
    if len(text) > MAX_SCHEMA_BYTES:
        raise BadParams(f"must have {MAX_SCHEMA_BYTES} bytes at most; it has {len(text)}.", field=field)
    return text.decode()


def _short(text: str, field: str) -> str:
    if len(text) > MAX_PATTERN_CHARS:
        raise BadParams(f"must have {MAX_PATTERN_CHARS} characters at most; it has {len(text)}.", field=field)
    return text


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
    """Return the parameters for the layers below. Raises BadParams, which names the field and its range.

    A length beyond `max_new_tokens` is reduced to it.
    """
    for field, why in _wrong(params):
        raise BadParams(why, field=f"params.{field}")
    fields = msgspec.structs.asdict(params)
    length = params.max_new_tokens
    fields["max_new_tokens"] = None if length in (None, UNLIMITED) else min(length, max_new_tokens)
    system, model = fields.pop("system"), fields.pop("model")
    reply_format, reasoning = format_of(fields.pop("format")), fields.pop("reasoning")
    chars_per_s, target, source = (fields.pop(name) for name in ("chars_per_s", "target", "source"))
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
        translation=None if target is None is source else Translation(target or "", source or ""),
    )


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
