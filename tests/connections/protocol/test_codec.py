"""Frames to text and back; whatever a client writes gives a frame or an answer that names what is wrong."""

from __future__ import annotations

import json
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from connections.protocol import codec, frames
from connections.protocol.errors import BadFrame

WELL_FORMED = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
NAMES = st.text("abcXYZ019._:-", min_size=1, max_size=128)
IDS = st.text(WELL_FORMED, min_size=1, max_size=128)
COMMON: dict[str, Any] = {"ref": st.none() | st.text(WELL_FORMED, max_size=128)}
PARAMS = st.builds(
    frames.Params,
    max_new_tokens=st.none() | st.integers(-(2**63), 2**63),
    do_sample=st.none() | st.booleans(),
    temperature=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    stop=st.lists(st.text(WELL_FORMED), max_size=9).map(tuple),
    system=st.none() | st.text(WELL_FORMED),
)
FRAMES = st.one_of(
    st.builds(frames.Hello, **COMMON, client_id=st.none() | NAMES, token=st.none() | IDS),
    st.builds(
        frames.Send,
        **COMMON,
        client_msg_id=IDS,
        content=st.text(WELL_FORMED, min_size=1),
        conversation_id=NAMES,
        parent_id=st.none() | IDS | st.just(msgspec.UNSET),
        on_busy=st.sampled_from(["reject", "enqueue", "interrupt", "rollback"]),
        on_disconnect=st.sampled_from(["cancel", "continue"]),
        grace_s=st.floats(0, 60),
        params=PARAMS,
    ),
    st.builds(
        frames.Cancel,
        **COMMON,
        turn_id=st.none() | IDS,
        conversation_id=st.none() | NAMES,
        mode=st.sampled_from(["keep", "rollback"]),
        seen_off=st.none() | st.integers(0, 2**40),
    ),
    st.builds(frames.History, **COMMON, conversation_id=NAMES, limit=st.integers(1, 200)),
    st.builds(frames.Conversations, **COMMON, limit=st.integers(1, 200), before=st.none() | NAMES),
    st.builds(frames.Delete, **COMMON, conversation_id=NAMES),
    st.builds(frames.Ping, **COMMON, t=st.none() | st.integers() | st.text(WELL_FORMED)),
)
VALUES = st.text(st.characters(), max_size=20) | st.sampled_from(
    [
        None,
        True,
        0,
        -1,
        2**70,
        0.5,
        "",
        "\0",
        "\ud800",
        "x" * 200,
        [],
        [["a"]],
        {},
        {"stop": [1]},
        {"\udc00": "x"},
    ]
)
FIELDS = st.sampled_from(
    ["type", "ref", "client_msg_id", "content", "conversation_id", "params", "limit", "t", "seen_off", "else"]
)


def refusal(frame: object) -> BadFrame:
    with pytest.raises(BadFrame) as refused:
        codec.decode(frame if isinstance(frame, str | bytes) else json.dumps(frame))
    return refused.value


@given(FRAMES)
def test_a_frame_is_read_as_it_was_written(frame: frames.Request) -> None:
    assert codec.decode(msgspec.json.encode(frame).decode()) == frame


def read(text: str) -> frames.Request | BadFrame:
    try:
        return codec.decode(text)
    except BadFrame as refused:
        return refused


@given(st.text(st.characters()) | st.dictionaries(FIELDS, VALUES).map(json.dumps))
@example("")
@example("NaN")
@example("[" * 5_000 + "]" * 5_000)
@example('{"type":"ping","t":1e999}')
def test_any_text_is_a_frame_or_a_bad_frame_that_can_be_told(text: str) -> None:
    outcome = read(text)
    assert not isinstance(outcome, BadFrame) or str(outcome).encode()


@given(st.sampled_from(["ping", "send", "cancel"]), st.dictionaries(FIELDS, VALUES))
def test_a_frame_of_a_known_type_is_read_or_refused_under_its_ref(kind: str, fields: dict[str, Any]) -> None:
    assert read(json.dumps(fields | {"type": kind, "ref": "r7"})).ref == "r7"


def outcome(text: str) -> str:
    """The type of a frame, or why it is none."""
    frame = read(text)
    return str(frame if isinstance(frame, BadFrame) else msgspec.to_builtins(frame)["type"])


@pytest.mark.parametrize("depth", [*range(100, 1_000, 50), 1_500, 5_000, 9_000, 30_000])
def test_nesting_is_no_way_to_break_the_reader(depth: int) -> None:
    """An unknown field counts for nothing, however deep, and Python 3.13 gets through more of it than 3.11."""
    deep, too_deep = "[" * depth + "]" * depth, "The frame is nested too deeply."
    assert "object" in str(refusal(deep))
    assert outcome(f'{{"type":"ping","unknown":{deep}}}') in (
        {"ping", too_deep} if depth < 30_000 else {too_deep}
    )
    refusal(f'{{"type":"ping","t":"\\ud800","x":{"[" * depth}"\\ud800"{"]" * depth}}}')


def refusal_and_calls(text: str) -> tuple[str, int]:
    """Return why a frame is refused, and how many calls of functions that takes."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        why = str(refusal(text))
    finally:
        sys.setprofile(None)
    return why, calls


def test_a_deep_and_wide_frame_is_refused_with_little_work() -> None:
    """Looking for the bad string must not cost depth times width."""
    wide = ",".join(['""'] * 20_000)
    text = f'{{"type":"send","content":"\\ud800","x":{"[" * 800}{wide}{"]" * 800}}}'
    why, calls = refusal_and_calls(text)
    assert why.startswith("`content` has")
    assert calls < 200_000


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("\ud800", "The frame is not a JSON object."),
        ("a\0b", "The frame has a NUL character, which is not allowed."),
    ],
)
def test_in_what_is_longer_than_a_frame_no_bad_character_is_searched(content: str, why: str) -> None:
    """Each of its values would be looked at, while everybody waits."""
    stops = {"stop": ["x"] * 99_000}
    many = json.dumps({"type": "send", "client_msg_id": "m", "content": content, "params": stops})
    refused, calls = refusal_and_calls(many)
    assert refused == why
    assert calls < 1_000


def test_what_only_looks_like_a_nul_is_none() -> None:
    for content in ("\\u0000", "\\u0000" * 12_000):
        frame = {"type": "send", "client_msg_id": "m", "content": content, "unknown": "\0"}
        assert outcome(json.dumps(frame)) == "send"


def test_an_unknown_field_is_ignored() -> None:
    assert codec.decode('{"type":"ping","t":1,"future":{"a":[1]}}') == frames.Ping(t=1)


@pytest.mark.parametrize("ref", [7, "x" * 129, "\ud800", ["r"]])
def test_a_ref_that_can_not_be_carried_back_is_left_out(ref: object) -> None:
    assert refusal({"type": "ping", "t": {}, "ref": ref}).ref is None


def test_a_lone_surrogate_in_a_key_is_told_without_repeating_it() -> None:
    assert (
        str(refusal({"type": "ping", "\ud800": "\ud800"}))
        == "`key` has a lone surrogate, which is not allowed."
    )


def test_an_answer_repeats_only_the_beginning_of_what_was_sent() -> None:
    assert len(str(refusal({"type": "x" * 60_000}))) < 400


def test_absent_and_null_are_told_apart_in_server_frames() -> None:
    """`turn_id` is null where nothing ran; `ref` is left out where the client gave none."""
    reported = json.loads(codec.encode(frames.Cancelled(turn_id=None, already=False)))
    assert reported == {"type": "cancelled", "turn_id": None, "already": False}
