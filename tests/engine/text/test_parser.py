"""A reply is taken apart as it comes: text, reasoning and calls, and nothing of it is lost."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.messages import Tool
from engine.text.formats import MOST_BLANKS, ReplyFormat
from engine.text.parser import DEEPEST, LONGEST_CALL, MOST_BROKEN, MOST_CALLS
from engine.text.reply_text import Call, Piece, Thought
from tests.engine.text.parse import (
    FAMILIES,
    HERMES,
    HERMES_THINKS,
    LLAMA,
    MISTRAL,
    THINKS,
    TOOLS,
    add,
    cut,
    in_json,
    joined,
    parser_of,
    read,
    segments,
)

WEATHER = Call("weather", '{"place":"Köln"}')
ADD = add()
ODD = add('{"a": "</tool_call> }] \\" [TOOL_CALLS]"}'), add('{ "b" : 1.50,\n "a":1e3 , "\\u00e9": [ ] }')
"""Arguments with closes in a string, and numbers and spaces that stay as they were written."""


@pytest.mark.parametrize(
    ("format_", "text", "pieces"),
    [
        (HERMES, f"<tool_call>\n{in_json(ADD)}\n</tool_call>", [ADD]),
        (
            HERMES,
            f"I see.\n\n<tool_call>{in_json(ADD)}</tool_call>\n<tool_call>\n{in_json(WEATHER)}\n</tool_call>\n",
            ["I see.", ADD, WEATHER],
        ),
        (HERMES, f"<tool_call>{in_json(ADD)}</tool_call>\nDone.", [ADD, "Done."]),
        (HERMES, f'<tool_call>{{"arguments": {ADD.arguments}, "name": "add"}}</tool_call>', [ADD]),
        (HERMES, f"<tool_call>{in_json(ADD)}", [ADD]),
        (LLAMA, in_json(ADD, "parameters"), [ADD]),
        (LLAMA, f"\n{in_json(ADD, 'parameters')}; {in_json(WEATHER, 'parameters')}\n", [ADD, WEATHER]),
        (LLAMA, f"<|python_tag|>{in_json(ADD, 'parameters')}", [ADD]),
        (LLAMA, f"Well: <|python_tag|> {in_json(ADD)}; {in_json(WEATHER)}", ["Well:", ADD, WEATHER]),
        (LLAMA, f"{in_json(ADD)} and more", [ADD, "and more"]),
        (LLAMA, f"{in_json(ADD)}; {{}}", [ADD, "; {}"]),
        (MISTRAL, f"[TOOL_CALLS][{in_json(ADD)}]", [ADD]),
        (MISTRAL, f"[TOOL_CALLS] [{in_json(ADD)}, {in_json(WEATHER)}]", [ADD, WEATHER]),
        (MISTRAL, f"[TOOL_CALLS]add[ARGS]{ADD.arguments}", [ADD]),
        (
            MISTRAL,
            f"Hm. [TOOL_CALLS]add[CALL_ID]a1b2c3d4e[ARGS]{ADD.arguments}[TOOL_CALLS]weather[ARGS] {WEATHER.arguments}",
            ["Hm.", ADD, WEATHER],
        ),
        (THINKS, "<think>\nWhy?\n</think>\n\nSo.", [Thought("Why?"), "So."]),
        (THINKS, "<think>\n\n</think>\n\nSo.", ["So."]),
        (THINKS, "<think>Why", [Thought("Why")]),
        (
            HERMES_THINKS,
            f"<think>\nWhy?\n</think>\n\n<tool_call>\n{in_json(ADD)}\n</tool_call>",
            [Thought("Why?"), ADD],
        ),
        (THINKS, "<think>a</think><think>b</think>", [Thought("a"), "<think>b</think>"]),
        (HERMES, f'<tool_call>{{"name": <tool_call>{in_json(ADD)}</tool_call>', ['<tool_call>{"name":', ADD]),
        *((HERMES, f"<tool_call>{in_json(odd)}</tool_call>", [odd]) for odd in ODD),
        (MISTRAL, f"[TOOL_CALLS][{in_json(ODD[0])}]", [ODD[0]]),
    ],
)
def test_each_family_is_read_as_it_writes(format_: ReplyFormat, text: str, pieces: list[Piece]) -> None:
    assert read(format_, text) == pieces


@pytest.mark.parametrize("format_", [THINKS, HERMES_THINKS])
def test_reasoning_that_the_prompt_opened_is_reasoning_from_the_first_letter(format_: ReplyFormat) -> None:
    assert read(format_, "Why?\n</think>\n\nSo.", opened="<think>\n") == [Thought("Why?"), "So."]


@pytest.mark.parametrize(
    ("format_", "text"),
    [
        (HERMES, "<tool_call>"),
        (HERMES, "a <tool_call> of a bird"),
        (HERMES, '<tool_call>{"name": "add"}</tool_call>'),
        (HERMES, '<tool_call>{"name": "add", "arguments": [1]}</tool_call>'),
        (HERMES, '<tool_call>{"name": "add", "arguments": "{}"}</tool_call>'),
        (HERMES, '<tool_call>{"name": "", "arguments": {}}</tool_call>'),
        (HERMES, '<tool_call>{"name": 1, "arguments": {}}</tool_call>'),
        (HERMES, '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>'),
        (HERMES, f"<tool_call>{in_json(ADD)[:-1]}</tool_call>"),
        (HERMES, f"<tool_call>{in_json(ADD)}x</tool_call>"),
        (HERMES, f"<tool_call>{in_json(ADD)[:-9]}"),
        (HERMES, '</tool_call> is an end, and so is "}"'),
        (LLAMA, f"so {in_json(ADD)}"),
        (LLAMA, '{"name": "Ottilie", "parameters": {"born": 1901}}'),
        (LLAMA, '{"born": 1901, "name": "add"}'),
        (LLAMA, f"{in_json(ADD)[:-1]}"),
        (LLAMA, "<|python_tag|>print(1)"),
        (MISTRAL, "[TOOL_CALLS][]"),
        (MISTRAL, f"[TOOL_CALLS][{in_json(ADD)}, 1]"),
        (MISTRAL, f"[TOOL_CALLS][{in_json(ADD)}"),
        (MISTRAL, "[TOOL_CALLS]add[ARGS]1"),
        (MISTRAL, "[TOOL_CALLS]add{}"),
        (THINKS, "The tag <think> opens what </think> closes."),
    ],
)
def test_what_is_no_call_is_text_to_the_last_letter(format_: ReplyFormat, text: str) -> None:
    assert read(format_, text) == [text]


def test_any_marked_call_is_told_but_a_bare_one_only_of_a_tool_that_was_shown() -> None:
    other = Call("other", "{}")
    assert read(HERMES, f"<tool_call>{in_json(other)}</tool_call>") == [other]
    assert read(LLAMA, in_json(other)) == [in_json(other)]
    assert read(LLAMA, in_json(other), tools=(Tool("other"),)) == [other]


def test_hidden_tokens_are_shown_nowhere() -> None:
    hidden = ("[TOOL_CALLS]", "[ARGS]")
    assert read(MISTRAL, "a[TOOL_CALLS]b [ARGS] c[ARGS]", hidden=hidden) == ["ab  c"]
    assert read(MISTRAL, "[TOOL_CALLS]add[ARGS]1", hidden=hidden) == ["add1"]
    assert read(THINKS, "<think>a</think>b</think>", hidden=("<think>", "</think>")) == [Thought("a"), "b"]


def shown_at_once(format_: ReplyFormat, text: str) -> str:
    made = parser_of(format_).feed(text)
    return "".join(str(piece) for segment in made for piece in segment.pieces)


@pytest.mark.parametrize(
    ("format_", "text", "shown"),
    [
        (HERMES, "a <b", "a <b"),
        (HERMES, "a <tool", "a"),
        (HERMES, "a <tools", "a <tools"),
        (HERMES, "a ", "a"),
        (HERMES, "a b", "a b"),
        (HERMES, f"<tool_call>{in_json(ADD)}", ""),
        (HERMES, "<tool_call>[", "<tool_call>["),
        (HERMES, "<tool_call>{ not JSON", "<tool_call>{ not JSON"),
        (LLAMA, '{"na', ""),
        (LLAMA, '{"no', '{"no'),
        (LLAMA, "{}", "{}"),
        (THINKS, "<thi", ""),
        (THINKS, "<this> ", "<this> "),
        (THINKS, "So <thi", "So <thi"),
        (MISTRAL, "a [TOOL_CALLS]add[X", "a [TOOL_CALLS]add[X"),
    ],
)
def test_text_waits_only_while_it_can_become_an_opening(format_: ReplyFormat, text: str, shown: str) -> None:
    assert shown_at_once(format_, text) == shown


def test_only_so_much_white_space_belongs_to_a_delimiter() -> None:
    more = " " * (MOST_BLANKS + 3)
    assert read(HERMES, f"a{more}<tool_call>{in_json(ADD)}</tool_call>") == ["a   ", ADD]
    assert read(HERMES, f"a{more}") == [f"a{more}"]
    assert read(THINKS, f"{more}<think>a") == [f"{more}<think>a"]


def hermes(call: Call) -> str:
    return f"<tool_call>{in_json(call)}</tool_call>"


def test_a_reply_has_as_many_calls_as_the_bound_says() -> None:
    made = read(HERMES, hermes(ADD) * (MOST_CALLS + 1))
    assert made == [ADD] * MOST_CALLS + [hermes(ADD)]
    listed = f"[TOOL_CALLS][{','.join([in_json(ADD)] * (MOST_CALLS + 1))}]"
    assert read(MISTRAL, listed) == [listed]


def test_after_many_that_are_none_no_more_calls_are_looked_for() -> None:
    none = "<tool_call>{x"
    assert read(HERMES, none * MOST_BROKEN + hermes(ADD)) == [none * MOST_BROKEN + hermes(ADD)]
    assert read(HERMES, none * (MOST_BROKEN - 1) + hermes(ADD))[1:] == [ADD]


@pytest.mark.parametrize("part", [7, 100_000, LONGEST_CALL * 2])
def test_a_call_beyond_its_longest_is_text(part: int) -> None:
    frame = len(hermes(add('{"a":""}')))
    close = len("</tool_call>")
    longest = add(f'{{"a":"{"x" * (LONGEST_CALL - frame + close)}"}}')
    longer = add(f'{{"a":"{"x" * (LONGEST_CALL - frame + close + 1)}"}}')
    for call, pieces in ((longest, [longest]), (longer, [hermes(longer)])):
        text = hermes(call)
        parts = [text[start : start + part] for start in range(0, len(text), part)]
        assert joined(segments(parser_of(HERMES), parts)) == pieces


def test_arguments_nested_too_deep_are_text() -> None:
    fits, deep = (add(f'{{"a":{"[" * n}{"]" * n}}}') for n in (DEEPEST - 2, DEEPEST - 1))
    assert read(HERMES, hermes(fits)) == [fits]
    assert read(HERMES, hermes(deep)) == [hermes(deep)]


def test_what_a_reply_begins_with_is_not_told_again_and_its_reasoning_goes_on() -> None:
    parser = parser_of(HERMES_THINKS)
    parser.begin("<think>\nWhy")
    assert joined(segments(parser, ["? </think>So."])) == [Thought("?"), "So."]
    parser = parser_of(HERMES_THINKS)
    parser.begin("So")
    assert joined(segments(parser, ["<think>", hermes(ADD)])) == ["<think>", ADD]


def test_the_rest_of_a_call_that_was_told_as_text_is_text() -> None:
    parser = parser_of(HERMES)
    parser.begin(hermes(ADD)[:20])
    assert joined(segments(parser, [hermes(ADD)[20:], hermes(WEATHER)])) == [hermes(ADD)[20:], WEATHER]


SCRAPS = [
    *("<tool_call>", "</tool_call>", "<think>", "</think>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    *("<|python_tag|>", "<", "[", "{", "}", "]", '"', ";", " ", "\n", "\\", "a", "add", "é", ":"),
    *(in_json(ADD), in_json(WEATHER, "parameters"), f"[{in_json(ADD)}]", ADD.arguments, '{"name": "'),
    *(hermes(ADD), f"[TOOL_CALLS][{in_json(ADD)}]", " " * 17, "<think>\n"),
]
replies = st.lists(st.sampled_from(SCRAPS) | st.text(max_size=3), max_size=12).map("".join)
places = st.lists(st.integers(0, 400), max_size=8)


@given(st.sampled_from(FAMILIES), replies, places, st.sets(st.sampled_from(["opened", "hides"])))
def test_any_text_cut_anywhere_is_read_the_same_and_all_of_it_is_kept(
    format_: ReplyFormat, text: str, where: list[int], how: set[str]
) -> None:
    def made(parts: list[str]) -> list[Piece]:
        hidden = format_.markers if "hides" in how else ()
        parser = parser_of(format_, hidden=hidden, opened="<think>\n" if "opened" in how else "")
        found = segments(parser, parts)
        assert "".join(segment.raw for segment in found) == text
        return joined(found)

    assert made([text]) == made(list(text)) == made(cut(text, where))


blanks = st.text(st.sampled_from(" \n"), max_size=3)
words = st.text(st.sampled_from("ab <é{\"'"), min_size=1).filter(lambda text: text == text.strip())
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=9,
)
objects = st.dictionaries(st.text(max_size=4), values, max_size=3)


@given(st.data())
def test_what_is_written_in_a_family_s_way_is_read_back(data: st.DataObject) -> None:

    def call() -> Call:
        return Call(data.draw(st.sampled_from(["add", "weather"])), json.dumps(data.draw(objects)))

    text = data.draw(st.just("") | words)
    calls = [call() for _ in range(data.draw(st.integers(0, 3)))]
    thought = data.draw(st.just("") | words)
    between = [data.draw(blanks) for _ in range(len(calls) + 1)]
    written = f"<think>{between[0]}{thought}{between[0]}</think>" if thought else ""
    written += f"{between[0]}{text}"
    written += "".join(f"{gap}{hermes(one)}" for gap, one in zip(between[1:], calls, strict=True))
    expected = [*([Thought(thought)] if thought else []), *([text] if text else []), *calls]
    if not thought and between[0] and text:
        expected[0] = between[0] + text
    assert read(HERMES_THINKS, written, tools=TOOLS) == (expected or ([written] if written else []))
