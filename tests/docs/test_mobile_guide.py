"""The examples in Swift and Kotlin, which no test can run, send and read frames of the protocol."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.docs.documents import ROOT

CODE = {
    "swift": ROOT / "examples" / "swift" / "Chat.swift",
    "kotlin": ROOT / "examples" / "kotlin" / "Chat.kt",
}
SCHEMAS = json.loads((ROOT / "app" / "specifications" / "schemas-v1.json").read_text())["$defs"]
LANGUAGES = {
    "swift": (
        r'\[\s*"type": "(\w+)"(.*?)\]',
        r'"(\w+)":',
        r'case ((?:"\w+"(?:, )?)+)',
        r'(frame|message)\["(\w+)"\]',
    ),
    "kotlin": (
        r'"type" to "(\w+)"(.*?)\)',
        r'"(\w+)" to',
        r'((?:"\w+"(?:, )?)+) ->',
        r'(frame|message)\.\w+\("(\w+)"\)',
    ),
}
"""How each sends a frame, names its fields, tells frames apart, and reads one."""


def frames_of(kind: str) -> dict[str, dict[str, Any]]:
    """The schemas of what one side sends, by the frames' types."""
    named = [one["$ref"].rpartition("/")[2] for one in SCHEMAS[kind]["oneOf"]]
    return {SCHEMAS[name]["properties"]["type"]["enum"][0]: SCHEMAS[name] for name in named}


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_the_examples_send_is_of_the_protocol(language: str) -> None:
    code = CODE[language].read_text()
    frame, field, _, _ = LANGUAGES[language]
    frames = re.findall(frame, code, re.DOTALL)
    assert {"hello", "send", "cancel", "history"} == {type_ for type_, _ in frames}
    for type_, rest in frames:
        schema, fields = frames_of("Request")[type_], {"type", *re.findall(field, rest)}
        assert set(schema.get("required", ())) <= fields <= set(schema["properties"])


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_the_examples_read_is_of_the_protocol(language: str) -> None:
    code = CODE[language].read_text()
    _, _, cases, read = LANGUAGES[language]
    received = {name for names in re.findall(cases, code) for name in re.findall(r"\w+", names)}
    frames = frames_of("Frame")
    assert {"ready", "history", "accepted", "delta", "done", "error", "gap"} == received <= set(frames)
    known = {
        "frame": {name for type_ in received for name in frames[type_]["properties"]},
        "message": set(SCHEMAS["Message"]["properties"]),
    }
    for whole, name in re.findall(read, code):
        assert name in known[whole]
