"""The three pages of PROTOCOL.md about chat: their frames are real, their tables complete, and they stay three pages."""

from __future__ import annotations

import json
import re

import msgspec
import pytest
from jsonschema import Draft202012Validator

from connections.protocol import codec
from connections.protocol.errors import BadFrame, CloseCode, Unauthenticated
from sessions.errors import Refused
from specs import schemas
from tests.docs.documents import PROTOCOL

CHAT = re.findall(r"^## Chat\n.*?(?=^## )", PROTOCOL.read_text(), re.DOTALL | re.MULTILINE)[0]
BLOCKS = re.findall(r"^```json\n(.*?)^```", CHAT, re.DOTALL | re.MULTILINE)
FRAMES = [frame for block in BLOCKS for frame in re.split(r"^(?=[<>] )", block, flags=re.MULTILINE) if frame]
CORE = {
    *("hello", "ready", "send", "accepted", "delta", "done", "cancel", "cancelled"),
    *("resume", "resumed", "gap", "snapshot", "history", "error"),
}
VALIDATOR = Draft202012Validator(schemas.document())


def kinds(error: type[Exception]) -> set[type[Exception]]:
    return {error}.union(*map(kinds, error.__subclasses__()))


@pytest.mark.parametrize("frame", FRAMES)
def test_each_example_is_a_frame_of_its_side(frame: str) -> None:
    text = frame[1:]
    if frame.startswith(">"):
        codec.decode(text)
    else:
        types = {str(kind.__struct_config__.tag): kind for kind in schemas.server_frames()}
        example = json.loads(text)
        told = msgspec.json.decode(text, type=types[example["type"]])
        assert json.loads(codec.encode(told)) == example
    assert VALIDATOR.is_valid(json.loads(text))


def test_each_frame_that_a_chat_needs_has_an_example() -> None:
    assert {json.loads(frame[1:])["type"] for frame in FRAMES} == CORE


def test_the_tables_have_every_error_and_close_code() -> None:
    first_cells = re.findall(r"^\| ([^|]*) \|", CHAT.partition("### Errors")[2], re.MULTILINE)
    named = set(re.findall(r"`(\w+)`", " ".join(first_cells))) - {"code"}
    over_http = ("connections.api", "connections.http")
    refusals = [one for one in kinds(Refused) if not one.__module__.startswith(over_http)]
    codes = {one.code for one in refusals if hasattr(one, "code")}
    assert {int(code) for code in re.findall(r"\b\d{4}\b", " ".join(first_cells))} >= set(CloseCode)
    assert named == codes | {BadFrame.code, Unauthenticated.code, "speech_unavailable"}


def test_they_are_three_pages() -> None:
    assert len(CHAT.split()) <= 1800
