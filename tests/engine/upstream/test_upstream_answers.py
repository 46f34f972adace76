"""What an upstream answers: text, thoughts, calls, totals and tokens, however they are cut, and what can't be true."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.errors import EngineLost, EngineUnavailable
from engine.messages import (
    ChosenToken,
    Chunk,
    ErrorCode,
    Finished,
    FinishReason,
    Output,
    Reasoning,
    Request,
    Tool,
    ToolCallOutput,
)
from engine.upstream.completions import (
    MAX_CALL_BYTES,
    MAX_CALLS,
    NO_LOGPROBS,
    CallPart,
    Choice,
    Completion,
    Delta,
    FunctionPart,
    UpstreamLogprobs,
    UpstreamReply,
)
from engine.upstream.http_client import RequestRefused, error_inside, parse_error_body, retry_after
from engine.upstream.options import PRESETS, Features
from tests.engine.replies import HELLO, outputs_of, text_of
from tests.engine.upstream.test_upstream import serving
from tests.engine.upstream_server import Answer, UpstreamServer

LOOK = Tool("look", "Looks.", '{"type":"object","properties":{}}')
VLLM = msgspec.convert(PRESETS["vllm"], Features)


def part(index: int | None, name: str | None, arguments: Any, call_id: str | None = None) -> CallPart:
    return CallPart(index, call_id, FunctionPart(name, arguments))


def outputs_for(*deltas: Delta, reason: str | None = "stop") -> list[Output]:
    reply = UpstreamReply("r", prompt_tokens=1, max_new_tokens=99, upstream="up")
    outputs = [out for delta in deltas for out in reply.take(Completion((Choice(delta),)))]
    return [*outputs, *reply.take(Completion((Choice(Delta(), reason),))), *reply.finish()]


def test_calls_are_put_together_and_keep_their_order() -> None:
    outputs = outputs_for(
        Delta(reasoning="Hm"),
        Delta(reasoning_content="m."),
        Delta("So: "),
        Delta(tool_calls=(part(0, "look", None, "c1"),)),
        Delta(tool_calls=(part(0, None, '{"a"'),)),
        Delta(tool_calls=(part(0, None, ":1}"), part(1, "go", "", "c2"))),
        Delta("Well."),
        reason="tool_calls",
    )
    assert together(outputs) == [
        ("thought", "Hmm."),
        ("text", "So: "),
        ("call", 'c1 look {"a":1}'),
        ("call", "c2 go {}"),
        ("text", "Well."),
    ]
    assert outputs[-1] == Finished("r", FinishReason.STOP, 1, 0, 7)
    said = [output for output in outputs if isinstance(output, Chunk | Reasoning | ToolCallOutput)]
    assert sum(output.tokens for output in said) == 7


def together(outputs: list[Output]) -> list[tuple[str, str]]:
    """What was said, neighbours of one kind as one."""
    merged: list[tuple[str, str]] = []
    for output in outputs:
        match output:
            case ToolCallOutput():
                merged.append(("call", f"{output.call_id} {output.name} {output.arguments}"))
            case Chunk() | Reasoning():
                kind = "text" if isinstance(output, Chunk) else "thought"
                before = merged.pop()[1] if merged and merged[-1][0] == kind else ""
                merged.append((kind, before + output.text))
    return merged


def test_a_server_that_numbers_no_calls_sends_them_whole() -> None:
    outputs = outputs_for(
        Delta(tool_calls=(part(None, "look", {"a": 1}), part(None, "look", '{"a":2}'))),
        Delta(tool_calls=(part(None, "go", None),)),
    )
    calls = [(output.name, output.arguments) for output in outputs if isinstance(output, ToolCallOutput)]
    assert calls == [("look", '{"a":1}'), ("look", '{"a":2}'), ("go", "{}")]


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ("look", '{"a":', 'look({"a":)'),
        ("look", "[1]", "look([1])"),
        ("look", "[" * 100_000, None),
        ("two words", "{}", "two words({})"),
        ("x" * 257, "{}", "x" * 257 + "({})"),
        (None, "{}", "{}"),
    ],
)
def test_what_looks_like_a_call_and_is_none_is_text(
    name: str | None, arguments: str, text: str | None
) -> None:
    outputs = outputs_for(Delta("So: "), Delta(tool_calls=(part(0, name, arguments),)))
    assert not any(isinstance(output, ToolCallOutput) for output in outputs)
    assert text_of(outputs) == f"So: {text or f'{name}({arguments})'}"


@pytest.mark.parametrize("call_id", ["x" * 129, "a b", "<script>"])
def test_a_name_that_no_call_should_have_is_not_kept(call_id: str) -> None:
    outputs = outputs_for(Delta(tool_calls=(part(0, "look", "{}", call_id),)))
    assert [output.call_id for output in outputs if isinstance(output, ToolCallOutput)] == [""]


def test_more_calls_than_there_may_be_end_the_reply() -> None:
    with pytest.raises(EngineLost, match=f"more than {MAX_CALLS} calls"):
        outputs_for(Delta(tool_calls=tuple(part(number, "look", "{}") for number in range(MAX_CALLS + 1))))
    with pytest.raises(EngineLost, match=f"more than {MAX_CALL_BYTES} bytes"):
        outputs_for(*[Delta(tool_calls=(part(0, "look", "x" * 65_536),))] * 17)


@given(st.lists(st.text(st.sampled_from("ae 👩👧🇩🇪\u200d\u0301é"), max_size=6), max_size=12), st.data())
def test_text_and_thoughts_are_whole_however_they_are_cut(texts: list[str], data: st.DataObject) -> None:
    thinks = [data.draw(st.booleans(), label="thinks") for _ in texts]
    deltas = [
        Delta(reasoning_content=text) if think else Delta(text)
        for text, think in zip(texts, thinks, strict=True)
    ]
    outputs = outputs_for(*deltas)
    for kind, wanted in ((Reasoning, True), (Chunk, False)):
        expected = "".join(text for text, think in zip(texts, thinks, strict=True) if think is wanted)
        assert text_of(outputs, kind) == expected
    pieces = [output for output in outputs if isinstance(output, Chunk | Reasoning)]
    assert all(piece.text for piece in pieces)
    assert sum(piece.tokens for piece in pieces) == sum(map(bool, texts))


def totals(prompt: object, generated: object, cached: object = None) -> msgspec.Raw:
    details = {"cached_tokens": cached}
    counts = {"prompt_tokens": prompt, "completion_tokens": generated, "prompt_tokens_details": details}
    return msgspec.Raw(json.dumps(counts).encode())


@settings(max_examples=30)
@example(5000, 1, 0)
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


@pytest.mark.parametrize(("stop_reason", "stop"), [("END", "END"), (151_645, None), (None, None)])
def test_an_upstream_says_which_stop_string_ended_the_reply(stop_reason: object, stop: str | None) -> None:
    """As vLLM does: a string, or the id of a token, which is none."""
    reply = UpstreamReply("r", prompt_tokens=1, max_new_tokens=99)
    reply.take(Completion((Choice(Delta("a"), "stop", stop_reason=stop_reason),)))
    assert reply.take(Completion((Choice(Delta("b")),))) == [], "nothing comes behind the end"
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


def logprobs_json(*tokens: str) -> msgspec.Raw:
    """As OpenAI writes it."""
    content = [
        {"token": one, "logprob": -1.5, "bytes": list(one.encode()), "top_logprobs": []} for one in tokens
    ]
    return msgspec.Raw(msgspec.json.encode({"content": content, "refusal": None}))


def names(tokens: tuple[ChosenToken, ...]) -> list[str]:
    return [one.chosen.token for one in tokens]


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


async def test_a_reply_that_only_thought_is_not_asked_again(server: UpstreamServer) -> None:
    server.answers = [Answer(deltas=({"reasoning": "Let me see. "}, {"content": "A tree."}), end_after=1)]
    async with serving(server, features=VLLM) as engine:
        stream = engine.generate(Request("r", HELLO))
        with pytest.raises(EngineLost):
            await outputs_of(stream)
    assert len(server.bodies) == 1
