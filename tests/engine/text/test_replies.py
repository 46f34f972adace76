"""How a model writes its replies is found out from its tokenizer; what is shown of one goes by that and by what was asked."""

from __future__ import annotations

import logging
from functools import cache

import pytest
from transformers import PreTrainedTokenizerFast

from engine.messages import PLAIN, Message, Params, ReplySpec, Request
from engine.text.formats import Kind, ReplyFormat, detect_format, family_format
from engine.text.parser import ParsedReply, ReplyFactory, ReplyPrefix
from engine.text.reply_text import Piece, ReplyText, Thought
from tests.engine.chat_families import FAMILIES, QWEN, family
from tests.engine.chat_families import PLAIN as PLAIN_TEMPLATE
from tests.engine.text.parse import TOOLS, add, in_json, merged
from tests.engine.text.test_parser import hermes
from tests.engine.text.test_response_templates import MARKED

WITH_TOOLS = ReplySpec(tools=TOOLS)
ADD = add()


@cache
def tokenizer(name: str) -> PreTrainedTokenizerFast:
    return FAMILIES[name]()


def written(
    name: str,
    text: str,
    spec: ReplySpec = PLAIN,
    *,
    begins: ReplyPrefix = ReplyPrefix(),  # noqa: B008 - a value
    params: Params = Params(),  # noqa: B008 - a value
) -> tuple[ReplyText | ParsedReply, list[Piece]]:
    """A reply that a model of a family writes, by its tokens, and what is told of it."""
    replies = ReplyFactory(tokenizer(name), detect_format(tokenizer(name)))
    request = Request("r", (Message("user", "hi"),), params, spec=spec)
    reply = replies.begin(request, begins)
    reported: list[Piece] = []
    for token_id in tokenizer(name).encode(text, add_special_tokens=False):
        reported += reply.push(token_id).pieces
    return reply, merged([*reported, *reply.flush()])


CALLS = {
    "qwen": f"So:\n{hermes(ADD)}",
    "llama": f"<|python_tag|>{in_json(ADD, 'parameters')}",
    "mistral": f"[TOOL_CALLS]add[ARGS]{ADD.arguments}",
}


@pytest.mark.parametrize("name", sorted(CALLS))
def test_the_tokens_of_a_family_make_its_calls(name: str) -> None:
    assert written(name, CALLS[name], WITH_TOOLS)[1][-1] == ADD


@pytest.mark.parametrize(("name", "shown"), [("qwen", CALLS["qwen"]), ("mistral", f"add{ADD.arguments}")])
def test_without_tools_a_reply_is_what_it_was_before_there_were_any(name: str, shown: str) -> None:
    """Added tokens are text, special ones are none."""
    assert written(name, CALLS[name])[1] == [shown]
    assert written(name, CALLS[name], ReplySpec(tools=TOOLS, tool_choice="none"))[1] == [shown]


def test_special_tokens_are_shown_only_where_that_is_asked() -> None:
    shows = Params(special_tokens=True)
    for text in ("a<|im_start|>b", "<think>a</think><|im_end|>b"):
        hidden, shown = written("qwen", text)[1], written("qwen", text, params=shows)[1]
        assert "<|im" not in str(hidden)
        assert "<|im" in str(shown)
    assert written("mistral", CALLS["mistral"], params=shows)[1] == [CALLS["mistral"]]
    assert written("mistral", "a [ARGS] b", WITH_TOOLS, params=shows)[1] == ["a [ARGS] b"]


def test_a_call_that_is_none_is_told_without_its_special_tokens() -> None:
    assert written("mistral", "[TOOL_CALLS]add[ARGS]1", WITH_TOOLS)[1] == ["add1"]
    assert written("qwen", "<tool_call>none</tool_call>", WITH_TOOLS)[1] == ["<tool_call>none</tool_call>"]


def test_reasoning_is_parsed_whatever_the_spec_says_of_it() -> None:
    for spec in (PLAIN, ReplySpec(reasoning="off"), WITH_TOOLS):
        assert written("qwen", "<think>\na\n</think>\n\nb", spec)[1] == [Thought("a"), "b"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("qwen", "calls as hermes, reasoning in <think>"),
        ("llama", "calls as llama 3"),
        ("mistral", "calls as mistral"),
        ("r1", "reasoning in <think>"),
        ("plain", None),
    ],
)
def test_a_family_is_known_by_its_template_and_its_tokens(name: str, expected: str | None) -> None:
    found = detect_format(FAMILIES[name]())
    assert (found.name if found else None) == expected


def kinds(found: ReplyFormat | None) -> set[Kind]:
    return {region.kind for region in found.regions} if found else set()


@pytest.mark.parametrize(
    ("template", "tokens", "expected"),
    [
        ("<tool_call><function=name></function></tool_call>", (), set()),
        ("content.split('</think>')[-1]", (), {Kind.THOUGHT}),
        ("", ("<think>", "</think>"), {Kind.THOUGHT}),
        ("", ("<think>",), set()),
        ("[THINK]", (), {Kind.THOUGHT}),
        ("<tool_call>", ("</tool_call>",), {Kind.CALLS}),
        ("parameters", ("<|python_tag|>",), set()),
        ("parameters of tool_calls", ("<|python_tag|>",), {Kind.CALLS}),
    ],
)
def test_marks_count_in_the_template_or_as_tokens(
    template: str, tokens: tuple[str, ...], expected: set[Kind]
) -> None:
    assert kinds(family_format(template, tokens)) == expected


def test_a_response_template_says_it_before_any_family() -> None:
    tokenizer = FAMILIES["qwen"]()
    tokenizer.response_template = MARKED
    found = detect_format(tokenizer)
    assert found is not None
    assert found.name == "the tokenizer's response template"


def test_a_response_template_that_is_none_is_told_and_the_family_counts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tokenizer = FAMILIES["r1"]()
    tokenizer.response_template = {"fields": {}}
    found = detect_format(tokenizer)
    assert found is not None
    assert found.name == "reasoning in <think>"
    assert "response template can't be used" in caplog.text
    assert caplog.records[0].levelno == logging.WARNING


def test_of_several_templates_all_count() -> None:
    tokenizer = family(PLAIN_TEMPLATE, ())
    tokenizer.chat_template = {"default": PLAIN_TEMPLATE, "tool_use": QWEN}
    assert kinds(detect_format(tokenizer)) == {Kind.CALLS, Kind.THOUGHT}
