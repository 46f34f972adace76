"""What an upstream is asked, in the words that it understands, and what is refused by name since it would drop it."""

from __future__ import annotations

import json
import re
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api import not_served, spec_not_served
from engine.messages import (
    Format,
    Grammar,
    JsonObject,
    JsonSchema,
    Message,
    ModelFacts,
    Params,
    Regex,
    ReplySpec,
    Request,
    Tool,
    ToolCall,
)
from engine.upstream.completions import body_of, estimated_tokens, most_new_tokens
from engine.upstream.http_client import session_headers
from engine.upstream.options import PRESETS, Features, Server, UpstreamOptions, with_preset
from tests.engine.replies import HELLO

SCHEMA = '{"type":"object","properties":{}}'
LOOK = Tool("look", "Looks.", SCHEMA)
SHOWN = {"name": "look", "description": "Looks.", "parameters": json.loads(SCHEMA)}
TOOLS = {"tools": [{"type": "function", "function": SHOWN}], "tool_choice": "auto"}
VLLM = msgspec.convert(PRESETS["vllm"], Features)
SGLANG = msgspec.convert(PRESETS["sglang"], Features)
DYNAMO = msgspec.convert(PRESETS["dynamo"], Features)
EVERYTHING = Features(
    continuous_usage=True, top_k=True, repetition_penalty=True, priority="low_first", cache_salt=True
)
PLAIN = {
    "model": "model",
    "messages": [{"role": "user", "content": "hello there"}],
    "stream": True,
    "stream_options": {"include_usage": True},
    "max_tokens": 100,
}


def body(
    spec: ReplySpec = ReplySpec(),  # noqa: B008 - frozen
    features: Features = VLLM,
    messages: tuple[Message, ...] = HELLO,
    params: Params = Params(),  # noqa: B008 - frozen
    **request: Any,
) -> dict[str, Any]:
    """As it goes over the wire."""
    options = UpstreamOptions("up", "http://h/v1", "model", context_tokens=4096, features=features)
    requested = body_of(Request("r", messages, params, spec=spec, **request), options, 100)
    sent: dict[str, Any] = json.loads(msgspec.json.encode(requested))
    return sent


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
    assert body(features=Features(), params=params, cache_salt="alice", priority=2) == PLAIN | {
        "temperature": 0.7,
        "top_p": 0.9,
        "seed": 3,
        "stop": ["END"],
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "logit_bias": {"5": 1.0},
    }


@pytest.mark.parametrize(
    ("params", "features", "fields"),
    [
        (Params(do_sample=False, temperature=0.7, top_p=0.9), EVERYTHING, {"temperature": 0.0}),
        (Params(temperature=0.0), EVERYTHING, {"temperature": 0.0}),
        (Params(top_k=5, repetition_penalty=1.1), EVERYTHING, {"top_k": 5, "repetition_penalty": 1.1}),
        (
            Params(min_p=0.1, min_tokens=3, ignore_eos=True, special_tokens=True),
            VLLM,
            {"min_p": 0.1, "min_tokens": 3, "ignore_eos": True, "skip_special_tokens": False},
        ),
        (Params(special_tokens=False), VLLM, {}),
    ],
)
def test_sampling_goes_on_as_far_as_it_is_understood(
    params: Params, features: Features, fields: dict[str, Any]
) -> None:
    assert body(features=features, params=params) == body(features=features) | fields


def test_limits_priorities_and_salts_have_words_of_their_own() -> None:
    sent = body(features=EVERYTHING, cache_salt="alice", priority=2)
    assert (sent["priority"], sent["stream_options"]["continuous_usage_stats"]) == (-2, True)
    assert "alice" not in str(sent), "a salt is told apart, not told"
    assert sent["cache_salt"] != body(features=EVERYTHING, cache_salt="bob")["cache_salt"]
    assert "cache_salt" not in body(features=EVERYTHING)
    other = Features(usage=False, max_completion_tokens=True, priority="high_first")
    sent = body(features=other, priority=2)
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
    def key(owner: str, features: Features, **request: str) -> str | None:
        return body(features=features, cache_salt=owner, **request).get("prompt_cache_key")

    caches = Features(prompt_cache_key=True)
    assert re.fullmatch("[0-9a-f]{64}", key("acme/alice", caches, conversation="plan") or "")
    assert key("acme/alice", caches, conversation="plan") != key("acme/bob", caches, conversation="plan")
    assert key("acme/alice", caches) is key("acme/alice", Features(), conversation="plan") is None


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


TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@given(TEXT, TEXT)
def test_a_longer_prompt_is_never_estimated_shorter(text: str, more: str) -> None:
    short, long = ([Message("user", content)] for content in (text, text + more))
    plain = estimated_tokens(short, 3.0)
    assert 4 <= plain <= estimated_tokens(long, 3.0)
    called = (*short, Message("assistant", "", calls=(ToolCall("c", "look", text + "x"),)))
    assert estimated_tokens(called, 3.0) > plain + 4
    assert estimated_tokens(short, 3.0, ReplySpec(tools=(Tool("look", text + "x"),))) > plain + 4


@pytest.mark.parametrize(
    ("spec", "features", "fields"),
    [
        (ReplySpec(tools=(LOOK,)), VLLM, TOOLS),
        (
            ReplySpec(tools=(LOOK,), tool_choice="required", parallel_calls=False),
            VLLM,
            TOOLS | {"tool_choice": "required", "parallel_tool_calls": False},
        ),
        (
            ReplySpec(tools=(LOOK,), tool_choice="named", tool_name="look"),
            VLLM,
            TOOLS | {"tool_choice": {"type": "function", "function": {"name": "look"}}},
        ),
        (ReplySpec(tools=(LOOK,), tool_choice="none"), VLLM, {}),
        (ReplySpec(reasoning="high"), VLLM, {"reasoning_effort": "high"}),
        (
            ReplySpec(reasoning="off"),
            VLLM,
            {
                "reasoning_effort": "none",
                "chat_template_kwargs": {"enable_thinking": False, "thinking": False},
            },
        ),
        (
            ReplySpec(reasoning="off", template={"thinking": True}),
            Features(template=True),
            {"chat_template_kwargs": {"enable_thinking": False, "thinking": True}},
        ),
        (ReplySpec(reasoning="off"), Features(reasoning=True), {"reasoning_effort": "none"}),
        (ReplySpec(reasoning="off"), Features(), {}),
        (ReplySpec(template={"a": 1}), VLLM, {"chat_template_kwargs": {"a": 1}}),
        (ReplySpec(continues=True), VLLM, {"continue_final_message": True, "add_generation_prompt": False}),
    ],
)
def test_tools_and_reasoning_go_on_in_the_servers_own_words(
    spec: ReplySpec, features: Features, fields: dict[str, Any]
) -> None:
    assert body(spec, features) == body(features=features) | fields


@pytest.mark.parametrize(
    ("form", "features", "fields"),
    [
        (JsonObject(), VLLM, {"response_format": {"type": "json_object"}}),
        (
            JsonSchema(SCHEMA),
            VLLM,
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "reply", "strict": True, "schema": json.loads(SCHEMA)},
                }
            },
        ),
        (Regex("a+"), VLLM, {"structured_outputs": {"regex": "a+"}}),
        (Grammar('start: "a"'), VLLM, {"structured_outputs": {"grammar": 'start: "a"'}}),
        (Regex("a+"), SGLANG, {"regex": "a+"}),
        (Regex("a+"), DYNAMO, {"guided_regex": "a+"}),
        (Grammar('start: "a"'), DYNAMO, {"guided_grammar": 'start: "a"'}),
    ],
)
def test_a_format_goes_on_in_the_servers_own_words(
    form: Format, features: Features, fields: dict[str, Any]
) -> None:
    assert body(ReplySpec(format=form), features) == body(features=features) | fields


def facts(features: Features) -> ModelFacts:
    return ModelFacts(
        "m", 9, Params(), "up", "upstream", 1, 0, lacks=features.lacks, features=features.of_specs
    )


ALL = (
    ReplySpec(tools=(LOOK,)),
    ReplySpec(tools=(LOOK,), tool_choice="required"),
    ReplySpec(format=JsonObject()),
    ReplySpec(format=JsonSchema(SCHEMA)),
    ReplySpec(format=Regex("a")),
    ReplySpec(format=Grammar("a")),
    ReplySpec(reasoning="high"),
    ReplySpec(template={"a": 1}),
    ReplySpec(continues=True),
)


@pytest.mark.parametrize(
    ("features", "refused"),
    [
        (Features(), [None] * 2 + ["format"] * 4 + [None, "template", "continues"]),
        (Features(tools="auto"), [None, "tools"]),
        (Features(tools="off"), ["tools", "tools"]),
        (Features(format="json_object"), [None] * 3 + ["format", "format", "format"]),
        (Features(format="json_schema"), [None] * 4 + ["format", "format"]),
        (Features(format="sglang"), [None] * 5 + ["format"]),
        (VLLM, [None] * len(ALL)),
    ],
)
def test_what_an_upstream_can_not_follow_is_refused_by_name(
    features: Features, refused: list[str | None]
) -> None:
    assert [spec_not_served(spec, facts(features)) for spec in ALL][: len(refused)] == refused


def test_sampling_that_an_upstream_drops_is_refused_by_name() -> None:
    requested = {
        "top_k": 5,
        "repetition_penalty": 1.1,
        "top_logprobs": 0,
        "min_p": 0.1,
        "presence_penalty": 1.0,
        "frequency_penalty": 1.0,
        "logit_bias": ((5, 1.0),),
        "min_tokens": 3,
        "ignore_eos": True,
        "special_tokens": True,
    }
    poor, rich = facts(Features(penalties=False, logit_bias=False, logprobs=False)), facts(VLLM)
    for name, value in requested.items():
        assert not_served(Params(**{name: value}), poor) == name  # type: ignore[arg-type]
        assert not_served(Params(**{name: value}), rich) is None  # type: ignore[arg-type]
        neutral = {"logit_bias": (), "repetition_penalty": 1.0, "top_logprobs": None}.get(name, type(value)())
        assert not_served(Params(**{name: neutral}), poor) is None  # type: ignore[arg-type]
    assert not_served(Params(), poor) is None


@pytest.mark.parametrize("server", get_args(Server))
def test_every_kind_of_server_has_features_that_an_operator_may_change(server: Server) -> None:
    table = {"server": server, "features": {"top_k": True, "tools": "off"}}
    features = msgspec.convert(with_preset(table)["features"], Features)
    assert (features.top_k, features.tools) == (True, "off")
    assert features.reasoning is bool(PRESETS[server].get("reasoning"))
    for left_alone in ({"server": "other"}, {"name": "up"}):
        assert with_preset(left_alone) == left_alone
