"""What a grammar lets a model write: formats, calls as each family writes and reads them, thoughts before either."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import PromptRejected
from engine.grammar import MAX_BYTES, CallForm, ThoughtForm
from engine.messages import Format, Grammar, JsonObject, JsonSchema, Regex, ReplySpec, Tool
from engine.text.formats import ReplyFormat
from engine.text.reply_text import Call
from tests.engine.chat_families import FAMILIES
from tests.engine.constrained import CITY, HERMES_FORM, compiler, ids_of, tokenizer, vocabulary, writer
from tests.engine.random_writer import RandomWriter
from tests.engine.text.parse import HERMES, LLAMA, MISTRAL, MISTRAL_NAMED, family, in_json, read

WEATHER = Tool("weather", "", CITY)
CLOCK = Tool("clock")
TOOLS = (WEATHER, CLOCK)
FREE = ReplySpec(tools=TOOLS)
THINK = ThoughtForm()
PLAIN_THINK = ThoughtForm("[thought]", "[/thought]")
PLAIN_CALL = CallForm("[call]", "[/call]")
PARIS = '{"name": "weather", "arguments": {"city": "Paris", "days": 3}}'
NOW = '{"name":"clock","arguments":{}}'


def call(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


def allows(
    spec: ReplySpec, text: str, *, calls: CallForm | None = HERMES_FORM, thoughts: ThoughtForm | None = None
) -> bool:
    """Whether a reply may be this text, and end there."""
    source = writer(calls, thoughts).write(spec)
    assert source is not None
    matcher = compiler().matcher(source)
    ids = ids_of(text)
    return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())


@pytest.mark.parametrize(
    ("reply_format", "good", "bad"),
    [
        (JsonObject(), '{"a": [1, {"b": null}]}', "[1]"),
        (JsonSchema(CITY), '{"city": "Rome", "days": 14}', '{"city": "Rome", "days": 15}'),
        (JsonSchema("true"), "[true]", "nothing"),
        (Regex("[0-9]{3}(-[a/b]+)?"), "123-a/b", "12"),
        (Regex("^a/b\n$"), "a/b\n", "a/b"),
        (Grammar('start: "a"+ b\nb: "b" | "c"'), "aac", "aa"),
    ],
)
def test_a_format_is_all_of_the_reply(reply_format: Format, good: str, bad: str) -> None:
    spec = ReplySpec(format=reply_format)
    assert allows(spec, good)
    assert not allows(spec, bad)
    assert not allows(spec, f"Here: {good}")


COMPACT = ['{"a":1,"b":[1,{}]}', '{"a": 1, "b": [1, {}]}', '{"a": 1,"b":[1, {}]}']
AIRY = ['{ "a":1}', '{"a" :1}', '{"a":  1}', '{"a":1 }', '{"a":1,  "b":2}', '{"a":1 ,"b":2}', '{"a":[ 1]}']
AIRY += ['{"a":[1 ]}', '{\n    "a": 1\n}', '{"a":\t1}', '{"a": 1} ']
ANY = Tool("any", "", '{"type":"object"}')


@pytest.mark.parametrize(
    ("spec", "frame"),
    [
        (ReplySpec(format=JsonObject()), "%s"),
        (ReplySpec(format=JsonSchema('{"type":"object"}')), "%s"),
        (ReplySpec(tools=(ANY,)), call('{"name": "any", "arguments": %s}')),
        (ReplySpec(tools=(ANY,), tool_choice="required"), call('{"name": "any", "arguments": %s}')),
    ],
)
def test_json_has_a_space_behind_a_colon_and_a_comma_at_most(spec: ReplySpec, frame: str) -> None:
    assert [text for text in COMPACT if not allows(spec, frame % text)] == []
    assert [text for text in AIRY if allows(spec, frame % text)] == []


def test_a_call_is_as_compact_around_its_arguments() -> None:
    airy = ['{ "name":"any",', '{"name" :"any",', '{"name":"any" ,', '     {"name":"any",']
    made = [call(body + '"arguments":{}}') for body in ('{"name":"any",', *airy)]
    assert [text for text in made if allows(ReplySpec(tools=(ANY,)), text)] == made[:1]


def test_the_author_of_a_schema_cannot_ask_for_other_white_space() -> None:
    schema = JsonSchema(
        '{"type":"object","x-guidance":{"whitespace_pattern":"x","whitespace_flexible":true}}'
    )
    assert not allows(ReplySpec(format=schema), '{x"a":1}')
    assert not allows(ReplySpec(format=schema), '{ "a":1}')
    assert allows(ReplySpec(format=schema), '{"a":1}')


def test_without_tools_and_format_a_reply_is_free() -> None:
    assert writer(HERMES_FORM, THINK).write(ReplySpec()) is None
    assert writer(HERMES_FORM).write(ReplySpec(tools=TOOLS, tool_choice="none")) is None
    assert writer().write(FREE) is None


def test_free_text_has_calls_in_it_that_follow_their_tools_schema() -> None:
    good = [
        "",
        "It rains. 字 < > {",
        call(PARIS),
        "I look it up.\n" + call(PARIS) + "\n" + call(NOW) + "\nDone.",
        '<tool_call>{"name":"clock", "arguments":{}}</tool_call>',
        "<think>a call: </think>" + call(NOW),
    ]
    bad = [
        "<tool_call>",
        call('{"name": "other", "arguments": {}}'),
        call('{"name": "weather", "arguments": {}}'),
        call('{"name": "clock", "arguments": []}'),
        call('{"arguments": {}, "name": "clock"}'),
        call(PARIS).removesuffix("</tool_call>"),
        "Well: " + call("weather"),
    ]
    assert [text for text in (*good, *bad) if allows(FREE, text)] == good


def test_an_opening_that_is_spelled_in_letters_opens_a_call_as_well() -> None:
    letters = [*ids_of("Well: <"), *ids_of("tool_call>")]
    assert "".join(tokenizer().convert_ids_to_tokens(letters)).endswith("<tool_call>")
    source = writer(HERMES_FORM).write(FREE)
    assert source is not None
    matcher = compiler().matcher(source)
    assert matcher.try_consume_tokens(letters) == len(letters)
    assert not matcher.is_accepting()
    assert matcher.validate_tokens(ids_of("no")) == 0
    assert matcher.validate_tokens(ids_of("{")) == 1


def test_calls_may_have_no_control_token() -> None:
    assert allows(FREE, f"Well: [call]{PARIS}[/call] and [call]{NOW}[/call]", calls=PLAIN_CALL)
    assert allows(FREE, "[call", calls=PLAIN_CALL)
    assert not allows(FREE, "[call] me", calls=PLAIN_CALL)


def test_with_a_format_a_reply_is_either_an_answer_or_calls() -> None:
    spec = ReplySpec(tools=TOOLS, format=JsonSchema(CITY))
    assert allows(spec, call(NOW))
    assert allows(spec, '{"city":"Rome","days":1}')
    assert not allows(spec, "Rome")


@pytest.mark.parametrize("thoughts", [THINK, PLAIN_THINK])
def test_a_format_begins_behind_thoughts(thoughts: ThoughtForm) -> None:
    spec, answer = ReplySpec(format=JsonSchema(CITY)), '{"city":"Rome","days":1}'
    thought = f"{thoughts.opening}\nRome { {} }, I think{thoughts.closing}"
    assert allows(spec, answer, thoughts=thoughts)
    assert allows(spec, f"{thought}\n\n{answer}", thoughts=thoughts)
    assert not allows(spec, thought, thoughts=thoughts)
    assert not allows(spec, f"{thought} Well: {answer}", thoughts=thoughts)
    assert not allows(spec, f"Rome. {answer}", thoughts=thoughts)
    begun = ThoughtForm(thoughts.opening, thoughts.closing, opened=True)
    assert allows(spec, f"Rome.\n{thoughts.closing}\n{answer}", thoughts=begun)
    assert not allows(spec, answer, thoughts=begun), "thoughts that the prompt began are ended first"


@pytest.mark.parametrize(("calls", "form"), [(HERMES_FORM, THINK), (PLAIN_CALL, PLAIN_THINK)])
def test_a_call_that_is_only_thought_of_is_none(calls: CallForm, form: ThoughtForm) -> None:
    within = f"{form.opening}I could {calls.opening} it"
    assert allows(FREE, f"{within}{form.closing} Well.", calls=calls, thoughts=form)
    made = f"{within}{form.closing}{calls.opening}{NOW}{calls.closing}"
    assert allows(FREE, made, calls=calls, thoughts=form)
    assert not allows(FREE, f"{form.opening}x{form.closing}{calls.opening} it", calls=calls, thoughts=form)


def test_references_of_a_tools_schema_mean_what_they_meant() -> None:
    tree = '{"$defs":{"node":{"type":"object","properties":{"next":{"$ref":"#/$defs/node"}},"additionalProperties":false}},"$ref":"#/$defs/node"}'
    spec = ReplySpec(tools=(Tool("walk", "", tree), WEATHER), tool_choice="required")
    assert allows(spec, call('{"name":"walk","arguments":{"next":{"next":{}}}}'))
    assert not allows(spec, call('{"name":"walk","arguments":{"next":{"other":{}}}}'))
    anything = ReplySpec(tools=(Tool("any", "", "{}"),), tool_choice="required")
    assert allows(anything, call('{"name":"any","arguments":{"a":1}}'))
    assert not allows(anything, call('{"name":"any","arguments":[1]}')), "arguments are an object"


def test_keywords_that_no_grammar_can_follow_are_passed_over_unless_a_tool_is_strict() -> None:
    odd = '{"type":"object","properties":{"a":{"type":"string","format":"odd"}},"required":["a"],"not":{}}'
    assert allows(
        ReplySpec(tools=(Tool("t", "", odd),), tool_choice="required"),
        call('{"name":"t","arguments":{"a":"x"}}'),
    )
    source = writer(HERMES_FORM).write(ReplySpec(tools=(Tool("t", "", odd, strict=True),)))
    assert source is not None
    with pytest.raises(Exception, match="not"):
        compiler().matcher(source)


@pytest.mark.parametrize(
    ("spec", "calls", "why"),
    [
        (ReplySpec(tools=TOOLS, tool_choice="named", tool_name="other"), HERMES_FORM, "not offered"),
        (ReplySpec(tool_choice="required"), HERMES_FORM, "not offered"),
        (ReplySpec(tools=TOOLS, tool_choice="required"), None, "can't be required"),
        (ReplySpec(tools=(Tool("t", "", json.dumps("x" * 90_000)),) * 3), HERMES_FORM, "at most 256 KiB"),
        (ReplySpec(tools=(Tool("t", "", "nonsense"),)), HERMES_FORM, "no valid JSON Schema"),
    ],
)
def test_what_cannot_be_written_is_the_fault_of_the_tools(
    spec: ReplySpec, calls: CallForm | None, why: str
) -> None:
    with pytest.raises(PromptRejected, match=why) as refused:
        writer(calls).write(spec)
    assert refused.value.field == "tools"


@pytest.mark.parametrize(
    "reply_format",
    [Regex("x" * (MAX_BYTES + 1)), Grammar("x" * (MAX_BYTES + 1)), JsonSchema("x" * (MAX_BYTES + 1))],
)
def test_a_format_of_more_than_its_bytes_is_refused(reply_format: Format) -> None:
    with pytest.raises(PromptRejected, match="at most 256 KiB") as refused:
        writer().write(ReplySpec(format=reply_format))
    assert refused.value.field == "format"


def test_only_the_models_own_forms_bring_control_tokens() -> None:
    specials = vocabulary().specials
    free, thoughtful = (
        writer(HERMES_FORM).write(FREE),
        writer(None, THINK).write(ReplySpec(format=JsonObject())),
    )
    assert free is not None
    assert thoughtful is not None
    assert {specials["<tool_call>"], specials["</tool_call>"]} <= {*free.controls}
    assert specials["<|call|>"] not in free.controls
    assert {specials["<think>"], specials["</think>"]} <= {*thoughtful.controls}
    hostile = writer().write(ReplySpec(format=Grammar("start: <|call|> | <[0-300]>")))
    assert hostile is not None
    assert hostile.controls == ()


def test_names_and_keys_may_hold_anything() -> None:
    name = 'we"ird\\ näme\n'
    spec = ReplySpec(tools=(Tool(name),), tool_choice="required")
    assert allows(spec, call(json.dumps({"name": name, "arguments": {}}, ensure_ascii=False)))


REQUIRED = ReplySpec(tools=TOOLS, tool_choice="required")
Write = Callable[[Sequence[Call]], str]


WAYS: dict[str, tuple[ReplyFormat, Write]] = {
    "hermes": (HERMES, lambda calls: "\n".join(call(in_json(each)) for each in calls)),
    "llama": (LLAMA, lambda calls: "; ".join(in_json(each, "parameters") for each in calls)),
    "mistral": (MISTRAL, lambda calls: f"[TOOL_CALLS] [{', '.join(in_json(each) for each in calls)}]"),
    "mistral, named": (
        MISTRAL_NAMED,
        lambda calls: "".join(f"[TOOL_CALLS]{each.name}[ARGS]{each.arguments}" for each in calls),
    ),
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
        pieces = read(format_, text, tools=TOOLS)
        calls = {piece.name for piece in pieces if isinstance(piece, Call)}
        assert calls
        assert calls <= {named or "weather", "clock"}
        assert not any(piece.strip() for piece in pieces if isinstance(piece, str)), text


@each_way
def test_a_reply_that_has_to_call_says_nothing_else(way: str) -> None:
    right, *others = (WAYS[way][1]([Call(name, "{}")]) for name in ("clock", "other", "weather"))
    texts = [right, "", "Well. " + right, right + " Done.", *others]
    assert [text for text in texts if allowed(way, REQUIRED, text)] == [right]


def test_a_reply_that_may_call_ends_with_its_one_call_where_no_more_are_wanted() -> None:
    spec = ReplySpec(tools=TOOLS, parallel_calls=False)
    assert allows(spec, call(PARIS))
    assert not allows(spec, call(PARIS) + "\nDone.")


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
