"""What an upstream is asked, by what it understands."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import EngineLost, EngineUnavailable
from engine.messages import Chunk, ErrorCode, Finished, FinishReason, Message, Params, Request
from engine.upstream.completions import (
    Choice,
    Completion,
    Delta,
    UpstreamReply,
    body_of,
    estimated_tokens,
    most_new_tokens,
)
from engine.upstream.http_client import (
    RequestRefused,
    error_inside,
    parse_error_body,
    retry_after,
    session_headers,
)
from engine.upstream.options import Features, UpstreamOptions
from tests.engine.replies import HELLO

EVERYTHING = Features(
    continuous_usage=True, top_k=True, repetition_penalty=True, priority="low_first", cache_salt=True
)


def body(params: Params, features: Features = Features(), **request: Any) -> dict[str, Any]:  # noqa: B008 - frozen
    options = UpstreamOptions("up", "http://h/v1", "model", context_tokens=4096, features=features)
    return body_of(Request("r", HELLO, params, **request), options, 100)


def test_a_plain_request_has_openais_own_fields_alone() -> None:
    params = Params(
        temperature=0.7,
        top_p=0.9,
        top_k=5,
        repetition_penalty=1.1,
        seed=3,
        stop=("END",),
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        logit_bias=((5, 1.0),),
    )
    assert body(params, cache_salt="alice", priority=2) == {
        "model": "model",
        "messages": [{"role": "user", "content": "hello there"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 100,
        "temperature": 0.7,
        "top_p": 0.9,
        "seed": 3,
        "stop": ["END"],
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "logit_bias": {"5": 1.0},
    }


def test_an_upstream_that_understands_more_is_told_more() -> None:
    sent = body(Params(top_k=5, repetition_penalty=1.1), EVERYTHING, cache_salt="alice", priority=2)
    assert (sent["top_k"], sent["repetition_penalty"], sent["priority"]) == (5, 1.1, -2)
    assert sent["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert "alice" not in str(sent), "a salt is told apart, not told"
    assert sent["cache_salt"] != body(Params(), EVERYTHING, cache_salt="bob")["cache_salt"]
    assert "cache_salt" not in body(Params(), EVERYTHING)


@pytest.mark.parametrize(
    "params", [Params(do_sample=False, temperature=0.7, top_p=0.9), Params(temperature=0.0)]
)
def test_no_sampling_is_temperature_zero(params: Params) -> None:
    sent = body(params, EVERYTHING)
    assert sent["temperature"] == 0.0
    assert "top_p" not in sent


def test_limits_and_priorities_have_other_words_elsewhere() -> None:
    sent = body(
        Params(), Features(usage=False, max_completion_tokens=True, priority="high_first"), priority=2
    )
    assert (sent["max_completion_tokens"], sent["priority"]) == (100, 2)
    assert "stream_options" not in sent


def test_a_conversation_keeps_to_one_replica() -> None:
    """By a digest of owner and conversation: the same every time, of the same length, and of nobody else's."""
    request = Request("r", HELLO, cache_salt="acme/alice", conversation="secret-plan")
    ((name, value),) = session_headers(request, "X-Dynamo-Session-ID").items()
    assert name == "X-Dynamo-Session-ID"
    assert re.fullmatch("[0-9a-f]{64}", value)
    for change, is_same in (
        ({"request_id": "s"}, True),
        ({"cache_salt": "acme/bob"}, False),
        ({"conversation": "b"}, False),
    ):
        other: Any = msgspec.structs.replace(request, **change)
        assert (session_headers(other, name) == {name: value}) is is_same
    assert session_headers(Request("r", HELLO), name) == session_headers(request, None) == {}


def test_the_prompts_cache_is_told_a_digest_of_owner_and_conversation() -> None:
    features = Features(prompt_cache_key=True)
    key = body(Params(), features, cache_salt="acme/alice", conversation="plan")["prompt_cache_key"]
    assert re.fullmatch("[0-9a-f]{64}", key)
    assert key != body(Params(), features, cache_salt="acme/bob", conversation="plan")["prompt_cache_key"]
    assert "prompt_cache_key" not in body(Params(), features, cache_salt="acme/alice")
    assert "prompt_cache_key" not in body(Params(), cache_salt="acme/alice", conversation="plan")


@pytest.mark.parametrize(
    ("requested", "prompt", "limit"), [(None, 10, 4086), (50, 10, 50), (5000, 4000, 96), (9, 5000, 1)]
)
def test_a_reply_gets_no_longer_than_the_window_has_room_for(
    requested: int | None, prompt: int, limit: int
) -> None:
    assert (
        most_new_tokens(requested, UpstreamOptions("up", "http://h", "model", context_tokens=4096), prompt)
        == limit
    )


@given(st.text(st.characters(exclude_categories=["Cs"])), st.text(st.characters(exclude_categories=["Cs"])))
def test_a_longer_prompt_is_never_estimated_shorter(text: str, more: str) -> None:
    short, long = ([Message("user", content)] for content in (text, text + more))
    assert 4 <= estimated_tokens(short, 3.0) <= estimated_tokens(long, 3.0)


@given(st.lists(st.text(st.sampled_from("ae 👩👧🇩🇪\u200d\u0301é"), max_size=6), max_size=12))
def test_a_reply_is_whole_however_its_deltas_are_cut(texts: list[str]) -> None:
    reply = UpstreamReply("r", prompt_tokens=1, max_new_tokens=99)
    outputs = [out for text in texts for out in reply.take(Completion((Choice(Delta(text)),)))]
    chunks = [output for output in [*outputs, *reply.finish()] if isinstance(output, Chunk)]
    assert "".join(chunk.text for chunk in chunks) == "".join(texts)
    assert all(chunk.text for chunk in chunks)
    assert sum(chunk.tokens for chunk in chunks) == sum(bool(text) for text in texts)


def totals(prompt: object, generated: object, cached: object = None) -> msgspec.Raw:
    details = {"cached_tokens": cached}
    counts = {"prompt_tokens": prompt, "completion_tokens": generated, "prompt_tokens_details": details}
    return msgspec.Raw(json.dumps(counts).encode())


@given(*[st.none() | st.integers() | st.floats() | st.text() | st.lists(st.none())] * 3)
def test_totals_that_can_not_be_true_are_ignored(prompt: object, generated: object, cached: object) -> None:
    """Counters can't go down, quotas are charged by them, and clients are told of them."""
    reply = UpstreamReply("r", prompt_tokens=5, max_new_tokens=99, most_tokens=4096)
    reply.take(Completion((Choice(Delta("a")),), totals(prompt, generated, cached)))
    end = reply.finished(FinishReason.STOP)
    assert 0 <= end.cached_tokens <= end.prompt_tokens <= 4096
    assert 1 <= end.generated_tokens <= 4096


@pytest.mark.parametrize("usage", [b"7", b'"many"', b"[]", b'{"prompt_tokens": {}}'])
def test_usage_of_another_shape_ends_no_reply(usage: bytes) -> None:
    reply = UpstreamReply("r", prompt_tokens=5, max_new_tokens=99)
    reply.take(Completion((Choice(Delta("a"), "stop"),), msgspec.Raw(usage)))
    assert reply.finish()[-1] == Finished("r", FinishReason.STOP, 5, 0, 1)


def test_running_totals_count_what_a_delta_has_of_tokens() -> None:
    reply = UpstreamReply("r", prompt_tokens=1, max_new_tokens=99)
    first = reply.take(Completion((Choice(Delta("three tokens")),), totals(7, 3)))
    then = reply.take(Completion((Choice(Delta(" two")),), totals(7, 5)))
    assert [output.tokens for output in [*first, *then] if isinstance(output, Chunk)] == [3, 2]
    assert reply.prompt_tokens == 7


def test_what_comes_behind_the_end_is_no_text() -> None:
    reply = UpstreamReply("r", prompt_tokens=1, max_new_tokens=99)
    reply.take(Completion((Choice(Delta("a"), "stop"),)))
    assert reply.take(Completion((Choice(Delta("b")),))) == []


@pytest.mark.parametrize(("stop_reason", "stop"), [("END", "END"), (151_645, None), (None, None)])
def test_an_upstream_says_which_stop_string_ended_the_reply(stop_reason: object, stop: str | None) -> None:
    """As vLLM does: a string, or the id of a token, which is none."""
    reply = UpstreamReply("r", prompt_tokens=1, max_new_tokens=99)
    reply.take(Completion((Choice(Delta("a"), "stop", stop_reason=stop_reason),)))
    assert reply.finish()[-1] == Finished("r", FinishReason.STOP, 1, 0, 1, stop=stop)


def test_errors_are_read_however_they_are_written() -> None:
    assert parse_error_body(b"<html>").message == "<html>"
    assert parse_error_body(b"[1]").message == ""
    assert parse_error_body(b'{"error": {"message": "m", "code": "429"}}').status == 429
    assert isinstance(error_inside("up", {"message": "m", "code": 503}), EngineUnavailable)
    assert isinstance(error_inside("up", {"message": "prompt is too long"}), RequestRefused)
    assert isinstance(error_inside("up", 7), EngineLost)
    refusal = error_inside("up", {"message": "m", "code": 400})
    assert isinstance(refusal, RequestRefused)
    assert refusal.code is ErrorCode.BAD_PARAMS


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("7", 7.0),
        ("-1", None),
        ("nan", None),
        ("1e9", None),
        ("99999999999", None),
        ("3600", 60.0),
        ("soon", None),
        ("Thu, 01 Jan 1970 00:01:00 GMT", 50.0),
    ],
)
def test_a_time_to_retry_is_read(header: str | None, seconds: float | None) -> None:
    assert retry_after(header, now=10.0) == seconds
