"""How a model writes its replies is found out from its tokenizer, once."""

from __future__ import annotations

import logging

import pytest

from engine.text.formats import Kind, ReplyFormat, detect_format, family_format
from tests.engine.chat_families import FAMILIES, PLAIN, QWEN, family
from tests.engine.text.test_response_templates import MARKED


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
    tokenizer = family(PLAIN, ())
    tokenizer.chat_template = {"default": PLAIN, "tool_use": QWEN}
    assert kinds(detect_format(tokenizer)) == {Kind.CALLS, Kind.THOUGHT}
