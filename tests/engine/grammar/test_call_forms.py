"""Calls as each family writes them: what a grammar allows of a reply that has to call is what the family's parser reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.messages import ReplySpec, Tool
from engine.text.formats import ReplyFormat
from engine.text.reply_text import Call
from tests.engine.chat_families import FAMILIES
from tests.engine.constrained import CITY, compiler, writer
from tests.engine.grammar.test_call_grammars import allows
from tests.engine.text.parse import HERMES, LLAMA, MISTRAL, MISTRAL_NAMED, family, in_json, read
from tests.schemas.writers import RandomWriter

TOOLS = (Tool("weather", "", CITY), Tool("clock"))
REQUIRED = ReplySpec(tools=TOOLS, tool_choice="required")
Write = Callable[[Sequence[Call]], str]


def as_hermes(calls: Sequence[Call]) -> str:
    return "\n".join(f"<tool_call>\n{in_json(call)}\n</tool_call>" for call in calls)


def as_llama(calls: Sequence[Call]) -> str:
    return "; ".join(in_json(call, "parameters") for call in calls)


def as_list(calls: Sequence[Call]) -> str:
    return f"[TOOL_CALLS] [{', '.join(in_json(call) for call in calls)}]"


def as_named(calls: Sequence[Call]) -> str:
    return "".join(f"[TOOL_CALLS]{call.name}[ARGS]{call.arguments}" for call in calls)


WAYS: dict[str, tuple[ReplyFormat, Write]] = {
    "hermes": (HERMES, as_hermes),
    "llama": (LLAMA, as_llama),
    "mistral": (MISTRAL, as_list),
    "mistral, named": (MISTRAL_NAMED, as_named),
}
each_way = pytest.mark.parametrize("way", list(WAYS))


@cache
def random_writer() -> RandomWriter:
    return RandomWriter(compiler(), replies=6, tokens=120)


@st.composite
def weather(draw: st.DrawFn) -> Call:
    wanted = {"city": draw(st.sampled_from(["Paris", "Rome"])), "days": draw(st.integers(1, 14))}
    return Call("weather", json.dumps(wanted))


def allowed(way: str, spec: ReplySpec, text: str) -> bool:
    return allows(spec, text, calls=WAYS[way][0].call_form)


@each_way
@given(calls=st.lists(weather() | st.just(Call("clock", '{"zone": 1}')), min_size=1, max_size=3))
@settings(max_examples=25, deadline=None)
def test_what_a_family_writes_may_be_written_and_is_read_again(way: str, calls: list[Call]) -> None:
    format_, write = WAYS[way]
    assert allowed(way, REQUIRED, write(calls))
    assert read(format_, write(calls), tools=TOOLS) == calls


@each_way
@pytest.mark.parametrize("named", ["", "clock"])
def test_what_a_model_that_says_anything_has_to_say_is_calls_alone(way: str, named: str) -> None:
    format_, _ = WAYS[way]
    spec = msgspec.structs.replace(REQUIRED, tool_choice="named", tool_name=named) if named else REQUIRED
    source = writer(format_.call_form).write(spec)
    assert source is not None
    ended = [reply.text.decode() for reply in random_writer().write(source) if reply.ended]
    assert ended
    for text in ended:
        calls = [piece for piece in read(format_, text, tools=TOOLS) if not _is_blank(piece)]
        assert calls
        assert all(isinstance(call, Call) for call in calls), text
        assert {call.name for call in calls if isinstance(call, Call)} <= {named or "weather", "clock"}


@each_way
def test_a_reply_that_has_to_call_says_nothing_else(way: str) -> None:
    _, write = WAYS[way]
    call = write([Call("clock", "{}")])
    wrong = [
        "",
        "Well. " + call,
        call + " Done.",
        write([Call("other", "{}")]),
        write([Call("weather", "{}")]),
    ]
    assert [text for text in wrong if allowed(way, REQUIRED, text)] == []


@each_way
def test_one_call_where_no_more_are_wanted(way: str) -> None:
    _, write = WAYS[way]
    alone = msgspec.structs.replace(REQUIRED, parallel_calls=False)
    assert allowed(way, alone, write([Call("clock", "{}")]))
    assert not allowed(way, alone, write([Call("clock", "{}")] * 2))


@each_way
def test_a_model_that_may_call_may_say_anything_before_it(way: str) -> None:
    format_, write = WAYS[way]
    assert format_.call_form is not None
    free = msgspec.structs.replace(REQUIRED, tool_choice="auto")
    call = write([Call("clock", "{}")])
    marked = call if format_.call_form.opening.strip() in call else format_.call_form.opening + call
    assert allowed(way, free, f"Well: {marked}")
    assert allowed(way, free, "It rains.")
    assert not allowed(way, free, f"Well: {marked.replace('clock', 'other')}")


def test_llama_may_mark_its_calls() -> None:
    assert allowed("llama", REQUIRED, '<|python_tag|>{"name": "clock", "parameters": {}}')


def test_mistral_may_write_an_id() -> None:
    text = "[TOOL_CALLS]clock[CALL_ID]a1B2c3D4e[ARGS]{}"
    assert allowed("mistral, named", REQUIRED, text)
    assert read(MISTRAL_NAMED, text, tools=TOOLS) == [Call("clock", "{}")]


def test_a_template_says_how_mistral_writes() -> None:
    """Tokenizers have the token `[ARGS]` where models write lists."""
    assert family("[TOOL_CALLS]", "[ARGS]").call_form == MISTRAL.call_form
    assert MISTRAL_NAMED.call_form != MISTRAL.call_form
    assert "[ARGS]" in FAMILIES["mistral"]().get_vocab()


def _is_blank(piece: object) -> bool:
    return isinstance(piece, str) and not piece.strip()
