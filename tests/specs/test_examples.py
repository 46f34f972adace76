"""The examples of frames are what the codec reads and writes, and one conversation."""

from __future__ import annotations

import json
from hashlib import sha256
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator

from connections.protocol import codec, frames, params
from sessions.tools.tool_registry import ToolRegistry
from specs import schemas
from specs.frames import EVENT_EXAMPLES, KEPT, REQUEST_EXAMPLES, example_of

VALIDATOR = Draft202012Validator(schemas.document())


def within(part: Any, whole: Any) -> bool:
    """Whether all that a value says is in another one."""
    match part, whole:
        case dict(), dict():
            return part.keys() <= whole.keys() and all(within(part[key], whole[key]) for key in part)
        case list(), list() | tuple():
            return len(part) == len(whole) and all(map(within, part, whole))
    return bool(part == whole)


@pytest.mark.parametrize("frame", schemas.client_frames(), ids=schemas.name_of)
def test_the_codec_takes_what_a_client_says_and_ignores_nothing(frame: type[msgspec.Struct]) -> None:
    example = example_of(frame)
    taken = codec.decode(json.dumps(example))
    assert type(taken) is frame
    assert within(example, msgspec.to_builtins(taken))
    assert VALIDATOR.is_valid(example)
    if isinstance(taken, frames.TurnFrame):
        params.generation(taken.params, max_new_tokens=4096)
        assert len(params.offered_tools(taken, ToolRegistry())) == len(taken.tools)


@pytest.mark.parametrize("frame", schemas.server_frames(), ids=schemas.name_of)
def test_the_codec_writes_what_the_server_says_letter_for_letter(frame: type[msgspec.Struct]) -> None:
    example = example_of(frame)
    reported = msgspec.json.decode(json.dumps(example), type=frame)
    assert list(json.loads(codec.encode(reported))) == list(example)
    assert json.loads(codec.encode(reported)) == example
    assert VALIDATOR.is_valid(example)


def test_every_frame_has_one_example_and_nothing_else() -> None:
    def tags(kinds: schemas.Types) -> set[str]:
        return {str(kind.__struct_config__.tag) for kind in kinds}

    assert (REQUEST_EXAMPLES.keys(), EVENT_EXAMPLES.keys()) == (
        tags(schemas.client_frames()),
        tags(schemas.server_frames()),
    )


def test_they_are_one_conversation() -> None:
    done, reported = (
        EVENT_EXAMPLES["done"],
        [example for example in EVENT_EXAMPLES.values() if "seq" in example],
    )
    reply = EVENT_EXAMPLES["history"]["messages"][1]
    assert REQUEST_EXAMPLES["cancel"]["seen_off"] == done["chars"] == len(KEPT)
    assert KEPT.startswith(EVENT_EXAMPLES["delta"]["text"])
    assert (reply["content"], reply["message_id"]) == (KEPT, done["message_id"])
    assert done["text_sha256"] == sha256(KEPT.encode()).hexdigest()
    assert done["reasoning_chars"] == len(EVENT_EXAMPLES["reasoning"]["text"])
    assert REQUEST_EXAMPLES["continue"]["message_id"] == done["message_id"]
    call = EVENT_EXAMPLES["tool_call"]
    assert REQUEST_EXAMPLES["tool_decision"]["args_sha256"] == call["args_sha256"]
    assert call["args_sha256"] == sha256(call["args"].encode()).hexdigest()
    assert call["name"] == REQUEST_EXAMPLES["edit"]["tools"][0]["name"]
    assert EVENT_EXAMPLES["tool_state"]["content"] == REQUEST_EXAMPLES["tool_result"]["content"]
    assert all(before["seq"] <= behind["seq"] for before, behind in pairwise(reported))
    hit = EVENT_EXAMPLES["found"]["hits"][0]
    found = hit["snippet"][hit["off"] : hit["off"] + hit["len"]]
    assert found == REQUEST_EXAMPLES["search"]["query"]
