"""What an upstream tells of its tokens leaves with their text, in whichever chunks both come."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.messages import ChosenToken, Chunk, TokenLogprob
from engine.upstream.completions import (
    NO_LOGPROBS,
    CallPart,
    Choice,
    Completion,
    Delta,
    FunctionPart,
    UpstreamLogprobs,
    UpstreamReply,
)


def logprobs_json(*tokens: str) -> msgspec.Raw:
    """As OpenAI writes it."""
    content = [
        {"token": one, "logprob": -1.5, "bytes": list(one.encode()), "top_logprobs": []} for one in tokens
    ]
    return msgspec.Raw(msgspec.json.encode({"content": content, "refusal": None}))


def names(tokens: tuple[ChosenToken, ...]) -> list[str]:
    return [one.chosen.token for one in tokens]


def test_tokens_come_with_their_names_bytes_and_alternatives() -> None:
    logprobs = UpstreamLogprobs()
    other = {"token": "Ho", "logprob": -2.0, "bytes": None}
    entry = {"token": "Hi", "logprob": -0.5, "bytes": [72, 105], "top_logprobs": [other]}
    logprobs.add("Hi", msgspec.Raw(msgspec.json.encode({"content": [entry]})))
    assert logprobs.leave("Hi") == (
        ChosenToken(TokenLogprob("Hi", -0.5, b"Hi"), (TokenLogprob("Ho", -2.0, None),), 2),
    )


def test_tokens_that_come_before_their_text_wait_for_it() -> None:
    """An upstream that holds back what may become a stop string tells its tokens all the same."""
    logprobs = UpstreamLogprobs()
    logprobs.add("One", logprobs_json("One", " EN"))
    assert names(logprobs.leave("One")) == ["One"]
    logprobs.add("", logprobs_json("D"))
    logprobs.add(" EN", NO_LOGPROBS)
    assert names(logprobs.leave(" EN")) == [" EN"]


def test_a_character_in_parts_is_told_when_it_is_whole() -> None:
    logprobs = UpstreamLogprobs()
    first, second = "中".encode()[:1], "中".encode()[1:]
    for text, part in (("", first), ("中", second)):
        entry = {"token": "?", "logprob": -1.0, "bytes": list(part)}
        logprobs.add(text, msgspec.Raw(msgspec.json.encode({"content": [entry]})))
    assert [one.chosen.raw for one in logprobs.leave("中")] == [first, second]


@given(st.lists(st.text(min_size=1, max_size=3), max_size=9), st.data())
def test_all_are_told_once_in_order_and_none_before_its_text(words: list[str], data: st.DataObject) -> None:
    logprobs, text, left = UpstreamLogprobs(), "".join(words), ""
    named: list[str] = []
    while words or text:
        some = data.draw(st.integers(0, len(words)), label="tokens")
        part = text[: data.draw(st.integers(0 if some else 1, max(1, len(text))), label="characters")]
        if not (some or part):
            break
        logprobs.add(part, logprobs_json(*words[:some]))
        words, text, left = words[some:], text[len(part) :], left + part
        named += names(logprobs.leave(part))
        assert left.startswith("".join(named))


@pytest.mark.parametrize(
    "odd",
    [
        b"null",
        b"{}",
        b'{"content":null}',
        b'{"tokens":["a"]}',
        b'{"content":[5]}',
        b'{"content":[{"token":"a","logprob":-1,"bytes":[300]}]}',
        b'{"content":[{"token":"a","logprob":-1,"bytes":[-1]}]}',
        b'{"content":[{"token":"\\ud800","logprob":-1}]}',
    ],
)
def test_what_is_told_in_another_way_is_passed_over(odd: bytes) -> None:
    logprobs = UpstreamLogprobs()
    logprobs.add("a", msgspec.Raw(odd))
    assert logprobs.leave("a") == ()


@pytest.mark.parametrize("hidden", ["reasoning_content", "reasoning", "tool_calls"])
def test_what_is_no_text_is_not_told_by_its_tokens(hidden: str) -> None:
    """Neither alone nor beside the first text, and the text's own tokens keep their places."""
    reply = UpstreamReply("r", prompt_tokens=1, max_new_tokens=99, logprobs=True)

    def beside(text: str) -> dict[str, Any]:
        call = (CallPart(0, None, FunctionPart("look", "{}")),)
        return {hidden: call if hidden == "tool_calls" else text}

    received = [
        (Delta(**beside("secret")), logprobs_json("secret")),
        (Delta("One", **beside(" thought")), logprobs_json(" thought", "One")),
        (Delta(""), logprobs_json(" two")),
        (Delta(" two"), NO_LOGPROBS),
    ]
    outputs = [
        out for delta, tokens in received for out in reply.take(Completion((Choice(delta, None, tokens),)))
    ]
    chunks = [(output.text, names(output.logprobs)) for output in outputs if isinstance(output, Chunk)]
    assert chunks == [("One", []), (" two", [" two"])]


def test_a_completion_tells_its_tokens_by_their_places() -> None:
    logprobs = UpstreamLogprobs()
    by_place = {
        "tokens": ["One", " two"],
        "token_logprobs": [None, -0.5],
        "top_logprobs": [None, {" two": -0.5, " too": -1.5}],
        "text_offset": [0, 3],
    }
    logprobs.add("One two", msgspec.Raw(msgspec.json.encode(by_place)))
    (second,) = logprobs.leave("One two")
    assert second.chosen == TokenLogprob(" two", -0.5, None)
    assert [other.token for other in second.top] == [" two", " too"]
