"""A tokenizer's response template is followed while the reply is written, to what transformers makes of it in the end."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers.utils.chat_parsing import parse_response

from app.settings import DEMO_MODEL
from engine.grammar import CallForm, ThoughtForm
from engine.messages import Tool
from engine.text.formats import response_format
from engine.text.reply_text import Call, Piece, Thought
from tests.engine.text.parse import TOOLS, add, cut, in_json, joined, parser_of, read, segments

FUNCTION = {"type": "function", "function": "{content}"}
NAMED = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}

MARKED: dict[str, Any] = {
    "start_anchor": "<|bot|>",
    "fields": {
        "reasoning_content": {"open": "<mull>", "close": "</mull>"},
        "tool_calls": {
            "open_pattern": r"\s*<call>",
            "close": "</call>",
            "content": "json",
            "repeats": True,
            "transform": FUNCTION,
        },
        "content": {"close_pattern": r"\s*<\|end\|>"},
    },
}
"""Calls in JSON between marks, as most families have them."""

TAGS: dict[str, Any] = {
    "start_anchor": "<|bot|>",
    "fields": {
        "tool_calls": {
            "open_pattern": r"<call name=(?P<name>\w+)>",
            "close_pattern": r"\s*</call>",
            "content": "xml-inline",
            "content_args": {"tag_pattern": r"<(?P<key>\w+)>(?P<value>.*?)</(?P=key)>"},
            "repeats": True,
            "transform": NAMED,
        },
        "content": {},
    },
}
"""Arguments in tags: their types are those of the tool's schema."""

CHANNELS: dict[str, Any] = {
    "start_anchor": "<|bot|>",
    "fields": {
        "thinking": {"open": "<|to|>self<|says|>", "close": "<|over|>"},
        "tool_calls": {
            "open_pattern": r"<\|to\|>tool (?P<name>\w+)<\|says\|>",
            "close": "<|over|>",
            "content": "json",
            "repeats": True,
            "transform": NAMED,
        },
        "content": {"open": "<|to|>user<|says|>", "close": "<|over|>"},
    },
}
"""All that is said is in some channel, and nothing outside of them is."""

LISTED: dict[str, Any] = {
    "start_anchor": "<|bot|>",
    "fields": {
        "tool_calls": {
            "open": "<calls>",
            "close": ["</calls>", "</calls>."],
            "content": "json",
            "transform": {"type": "function", "function": {"name": "{tool}", "arguments": "{with}"}},
            "transform_each": True,
        },
        "content": {},
    },
}
"""A list of calls, whose members have names of their own."""

SPECIAL = ("<|to|>", "<|says|>", "<|over|>", "<mull>", "<|end|>", "<|other|>")
TEMPLATES = {"marked": MARKED, "tags": TAGS, "channels": CHANNELS, "listed": LISTED}
FORMATS = {name: response_format(template, SPECIAL) for name, template in TEMPLATES.items()}
TYPED = (
    Tool("add", parameters='{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"}}}'),
    *TOOLS[1:],
)
ADD = add()


@pytest.mark.parametrize(
    ("name", "text", "shown"),
    [
        ("marked", "<call>no json</call> at all", "<call>no json</call> at all"),
        ("marked", '<call>{"name": "add"}</call>', '<call>{"name": "add"}</call>'),
        ("marked", "<call>{", "<call>{"),
        ("tags", "<call name=add><a>1</a>", "<call name=add><a>1</a>"),
        (
            "channels",
            "<|to|>tool add<|says|>[]<|over|><|to|>user<|says|>a",
            "<|to|>tool add<|says|>[]<|over|>a",
        ),
        ("listed", '<calls>[{"tool": "add"}]</calls>', '<calls>[{"tool": "add"}]</calls>'),
    ],
)
def test_a_call_that_is_none_breaks_nothing(name: str, text: str, shown: str) -> None:
    assert read(FORMATS[name], text) == [shown]


def test_the_prompt_tells_what_is_open_behind_its_last_anchor() -> None:
    format_ = FORMATS["marked"]
    assert format_.opening("<|bot|>a<mull>b</mull><|user|>c<|bot|><mull>\n") == "<mull>\n"
    assert format_.opening("no anchor <mull>") == ""
    assert read(format_, "Why?</mull>So.", opened="<mull>\n") == [Thought("Why?"), "So."]


def test_special_tokens_that_delimit_are_its_markers() -> None:
    assert set(FORMATS["channels"].markers) == {"<|to|>", "<|says|>", "<|over|>"}
    assert FORMATS["marked"].markers == ("<mull>",)
    assert FORMATS["tags"].markers == ()


def test_a_template_of_another_form_is_refused() -> None:
    with pytest.raises(ValueError, match="fields"):
        response_format({"version": 1, "start_anchor": "a"}, ())


def as_transformers_has_it(template: dict[str, Any], text: str) -> tuple[str, str, list[Any]]:
    message = parse_response(
        text,
        template,
        prefix="<|bot|>",
        tools=[
            {"type": "function", "function": {"name": tool.name, "parameters": json.loads(tool.parameters)}}
            for tool in TYPED
        ],
    )
    calls = message.get("tool_calls", [])
    functions = [call["function"] for call in (calls if isinstance(calls, list) else [calls])]
    thought = message.get("reasoning_content", message.get("thinking", ""))
    return message.get("content", ""), thought, [(each["name"], each["arguments"]) for each in functions]


def as_we_have_it(pieces: list[Piece]) -> tuple[str, str, list[Any]]:
    text = "".join(piece for piece in pieces if isinstance(piece, str))
    thought = "".join(piece.text for piece in pieces if isinstance(piece, Thought))
    calls = [piece for piece in pieces if isinstance(piece, Call)]
    return text.strip(), thought.strip(), [(call.name, json.loads(call.arguments)) for call in calls]


words = st.text(st.sampled_from("ab <é{\"'|"), min_size=1, max_size=9).map(str.strip)
objects = st.dictionaries(st.sampled_from("abc"), st.text(st.sampled_from("ab <{\\"), max_size=5), max_size=3)


def written(name: str, thought: str, text: str, calls: list[dict[str, str]]) -> str:
    """A reply as a model writes it that keeps to the template."""
    if name == "marked":
        made = f"<mull>{thought}</mull>{text}"
        return made + "".join(f"\n<call>{in_json(add(json.dumps(each)))}</call>" for each in calls)
    if name == "tags":
        tags = ("".join(f"<{key}>{number}</{key}>" for key, number in each.items()) for each in calls)
        return text + "".join(f"<call name=add>{each}</call>" for each in tags)
    if name == "channels":
        made = f"<|to|>self<|says|>{thought}<|over|><|bot|>"
        made += "".join(f"<|to|>tool add<|says|>{json.dumps(each)}<|over|>" for each in calls)
        return f"{made}<|to|>user<|says|>{text}<|over|>"
    listed = json.dumps([{"tool": "add", "with": each} for each in calls])
    return f"{text}<calls>{listed}</calls>" if calls else text


@given(
    st.sampled_from(sorted(TEMPLATES)),
    words,
    words,
    st.lists(objects, max_size=2),
    st.lists(st.integers(0, 300), max_size=6),
)
def test_a_reply_is_what_transformers_makes_of_it_however_it_is_cut(
    name: str, thought: str, text: str, calls: list[dict[str, str]], where: list[int]
) -> None:
    if name == "tags":
        calls = [{key: str(len(value)) for key, value in each.items()} for each in calls]
    reply = written(name, thought, text, calls)
    parts = segments(parser_of(FORMATS[name], tools=TYPED), cut(reply, where))
    assert "".join(segment.raw for segment in parts) == reply
    assert as_we_have_it(joined(parts)) == as_transformers_has_it(TEMPLATES[name], reply)


SCRAPS = [
    *("<mull>", "</mull>", "<call>", "</call>", "<call name=add>", "<a>1</a>", "<calls>", "</calls>", "."),
    *("<|to|>", "user", "self", "tool add", "<|says|>", "<|over|>", "<|end|>", "<|bot|>", " ", "\n", "<"),
    *(in_json(ADD), ADD.arguments, '{"tool": "add", "with": {}}', "[", "]", " " * 40),
]


@given(
    st.sampled_from(sorted(TEMPLATES)),
    st.lists(st.sampled_from(SCRAPS) | st.text(max_size=3), max_size=12).map("".join),
    st.lists(st.integers(0, 300), max_size=8),
)
def test_any_text_cut_anywhere_is_read_the_same_and_all_of_it_is_kept(
    name: str, text: str, where: list[int]
) -> None:
    def made(parts: list[str]) -> list[Piece]:
        found = segments(parser_of(FORMATS[name], hidden=SPECIAL[:3]), parts)
        assert "".join(segment.raw for segment in found) == text
        return joined(found)

    assert made([text]) == made(list(text)) == made(cut(text, where))


def test_a_delimiter_has_a_longest_length() -> None:
    fields = {"tool_calls": {"open_pattern": r"x+<", "close": ">"}, "content": {}}
    held = parser_of(response_format({"start_anchor": "<|bot|>", "fields": fields}, ()))
    assert joined(held.feed("x" * 5000)) == ["x" * (5000 - 1024)]


def test_a_grammar_knows_calls_that_are_plain_json_and_thoughts_before_what_is_said() -> None:
    assert FORMATS["marked"].call_form == CallForm("<call>", "</call>")
    assert FORMATS["tags"].call_form is FORMATS["channels"].call_form is None
    assert FORMATS["marked"].thought_form == ThoughtForm("<mull>", "</mull>")
    assert FORMATS["tags"].thought_form is None


@pytest.mark.parametrize(
    ("opening", "form"),
    [
        ({"open": ["<a>", "<b>"]}, ThoughtForm("<a>", "</a>")),
        ({"open_pattern": r"\s*<a>\s*"}, ThoughtForm("<a>", "</a>")),
        ({"open_pattern": r"(?:<a>|<b>)"}, None),
        ({"open_pattern": r"<a( n=\d+)?>"}, None),
    ],
)
def test_a_grammar_writes_a_mark_only_where_it_is_known_how(
    opening: dict[str, Any], form: ThoughtForm | None
) -> None:
    template = {"start_anchor": "<|bot|>", "fields": {"thinking": opening | {"close": "</a>"}, "content": {}}}
    assert response_format(template, []).thought_form == form


def test_the_demo_model_can_be_made_to_call() -> None:
    template = json.loads((DEMO_MODEL / "tokenizer_config.json").read_text())["response_template"]
    assert response_format(template, []).call_form == CallForm("<tool_call>", "</tool_call>")
