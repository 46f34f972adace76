"""The pure pieces behind an MCP server: its list, and the text of what it says."""

from __future__ import annotations

import json
import re
from typing import Any

import mcp_types
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sessions.tools.mcp_options import (
    DESCRIPTION_BYTES,
    LIST_BYTES,
    RemoteTool,
    listing_of,
)
from sessions.tools.mcp_server import text_of
from sessions.tools.tool_registry import NAME, Approval
from tests.sessions.tools.mcp_servers import options_of


def remote(name: str, **more: Any) -> RemoteTool:
    given = {"description": "", "schema": {"type": "object"}, "read_only": False, "idempotent": False}
    return RemoteTool(name=name, **given | more)


@settings(max_examples=30)
@given(st.lists(st.text(max_size=70), max_size=20), st.sampled_from(["", "p_"]))
def test_names_are_such_as_models_can_call(names: list[str], prefix: str) -> None:
    listing = listing_of([remote(name) for name in names], options_of("http://a/", prefix=prefix))
    offered = [tool.name for tool in listing.tools]
    assert offered == sorted(set(offered))
    for name in offered:
        assert re.fullmatch(NAME, name)
        assert name.startswith(prefix)
        assert listing.remote[name] in names
    assert len(listing.left_out) + len(offered) == len(names)


def test_the_operators_word_outranks_the_servers() -> None:
    options = options_of("http://a/", always_ask=("a", "*"), never_ask=("b",))
    tools = {
        tool.name: tool
        for tool in listing_of([remote("a"), remote("b"), remote("c", read_only=True)], options).tools
    }
    assert {name: tool.approval for name, tool in tools.items()} == {
        "a": Approval.ALWAYS,
        "b": Approval.NEVER,
        "c": Approval.ALWAYS,
    }


def test_all_descriptions_of_a_server_have_a_bound() -> None:
    long = "x" * DESCRIPTION_BYTES
    listing = listing_of(
        [remote(f"t{number}", description=long) for number in range(100)], options_of("http://a/")
    )
    assert len(listing.tools) == LIST_BYTES // (DESCRIPTION_BYTES + 20)


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({}, "its schema is not of an object"),
        ({"type": ["object"]}, "its schema is not of an object"),
        ({"type": "object", "$schema": []}, "its schema is not valid JSON Schema"),
        ({"type": "object", "required": "a"}, "its schema is not valid JSON Schema"),
        ({"type": "object", "properties": {"a": {"pattern": "("}}}, "its schema is not valid JSON Schema"),
        (
            {"type": "object", "properties": {"a": {"$ref": "file:///etc/passwd"}}},
            "its schema refers to another document",
        ),
        ({"type": "object", "properties": {"a": object()}}, "its schema is not JSON"),
        (deep(40), "its schema is more than 64 deep"),
    ],
)
def test_a_schema_that_is_none_leaves_its_tool_out(schema: dict[str, Any], why: str) -> None:
    listing = listing_of([remote("a", schema=schema), remote("b")], options_of("http://a/"))
    assert [tool.name for tool in listing.tools] == ["b"]
    assert listing.left_out == (("a", why),)


CONTENT: list[tuple[dict[str, Any], str]] = [
    ({"content": []}, "The tool gave no text."),
    ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "a\nb"),
    (
        {"content": [{"type": "audio", "data": "eHh4", "mimeType": "audio/wav"}]},
        "[A sound, audio/wav, 3 bytes. It can't be played here.]",
    ),
    (
        {"content": [{"type": "resource_link", "uri": "file:///a", "name": "notes"}]},
        "[A link to notes: file:///a]",
    ),
    ({"content": [{"type": "resource", "resource": {"uri": "file:///a", "text": "in it"}}]}, "in it"),
    (
        {"content": [{"type": "resource", "resource": {"uri": "file:///a", "blob": "eHg="}}]},
        "[A file, of no known type: file:///a]",
    ),
    (
        {"content": [{"type": "image", "data": "eHg=", "mimeType": "x" * 300}]},
        f"[An image, {'x' * 200}…, 2 bytes. It can't be shown here.]",
    ),
    ({"content": [], "structuredContent": {"a": 1}}, '{"a":1}'),
    ({"content": [{"type": "text", "text": '{ "a": 1 }'}], "structuredContent": {"a": 1}}, '{ "a": 1 }'),
    ({"content": [{"type": "text", "text": "3"}], "structuredContent": {"result": 3}}, "3"),
    ({"content": [{"type": "text", "text": "3"}], "structuredContent": {"result": 4}}, '3\n{"result":4}'),
    ({"content": [{"type": "text", "text": "{nothing"}], "structuredContent": {"a": 1}}, '{nothing\n{"a":1}'),
]


@pytest.mark.parametrize(("result", "text"), CONTENT)
def test_a_result_becomes_text(result: dict[str, Any], text: str) -> None:
    read = mcp_types.CallToolResult.model_validate_json(json.dumps(result), by_name=False)
    assert text_of(read) == text
