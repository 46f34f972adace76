"""Tools, formats, thoughts and raw prompts as an upstream is asked for them, and as its answers are read."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api import not_served, spec_not_served
from engine.errors import EngineLost
from engine.messages import (
    Chunk,
    Finished,
    FinishReason,
    Format,
    Grammar,
    JsonObject,
    JsonSchema,
    Message,
    ModelFacts,
    Output,
    Params,
    Reasoning,
    Regex,
    ReplySpec,
    Request,
    Tool,
    ToolCall,
    ToolCallOutput,
)
from engine.upstream.completions import (
    MAX_CALL_BYTES,
    MAX_CALLS,
    CallPart,
    Choice,
    Completion,
    Delta,
    FunctionPart,
    UpstreamReply,
    body_of,
    estimated_tokens,
    path_of,
)
from engine.upstream.options import PRESETS, Features, Server, UpstreamOptions, with_preset
from tests.engine.replies import HELLO, outputs_of
from tests.engine.upstream.test_upstream import serving
from tests.engine.upstream_server import Answer, UpstreamServer, upstream_server

SCHEMA = '{"type":"object","properties":{}}'
LOOK = Tool("look", "Looks.", SCHEMA)
VLLM = msgspec.convert(PRESETS["vllm"], Features)
SGLANG = msgspec.convert(PRESETS["sglang"], Features)
DYNAMO = msgspec.convert(PRESETS["dynamo"], Features)


def body(
    spec: ReplySpec, features: Features = VLLM, messages: tuple[Message, ...] = HELLO, **params: Any
) -> dict[str, Any]:
    """As it goes over the wire."""
    options = UpstreamOptions("up", "http://h/v1", "model", context_tokens=4096, features=features)
    requested = body_of(Request("r", messages, Params(**params), spec=spec), options, 100)
    sent: dict[str, Any] = json.loads(msgspec.json.encode(requested))
    return sent


def test_tools_go_on_with_their_schemas_as_they_are() -> None:
    sent = body(ReplySpec(tools=(LOOK,)))
    function = {"name": "look", "description": "Looks.", "parameters": json.loads(SCHEMA)}
    assert sent["tools"] == [{"type": "function", "function": function}]
    assert sent["tool_choice"] == "auto"
    assert "parallel_tool_calls" not in sent


@pytest.mark.parametrize(
    ("spec", "choice"),
    [
        (ReplySpec(tools=(LOOK,), tool_choice="required", parallel_calls=False), "required"),
        (
            ReplySpec(tools=(LOOK,), tool_choice="named", tool_name="look"),
            {"type": "function", "function": {"name": "look"}},
        ),
    ],
)
def test_the_choice_goes_on(spec: ReplySpec, choice: Any) -> None:
    sent = body(spec)
    assert sent["tool_choice"] == choice
    assert sent.get("parallel_tool_calls") == (None if spec.parallel_calls else False)


def test_tools_that_may_not_be_called_are_not_shown() -> None:
    assert "tools" not in body(ReplySpec(tools=(LOOK,), tool_choice="none"))


def test_calls_results_and_thoughts_stand_in_the_history() -> None:
    messages = (
        *HELLO,
        Message("assistant", "", reasoning="Hm.", calls=(ToolCall("c1", "look", '{"a":1}'),)),
        Message("tool", "A tree.", call_id="c1"),
    )
    called = {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a":1}'}}
        ],
    }
    result = {"role": "tool", "content": "A tree.", "tool_call_id": "c1"}
    thought = {"reasoning": "Hm.", "reasoning_content": "Hm."}
    assert body(ReplySpec(), messages=messages)["messages"][1:] == [called | thought, result]
    assert body(ReplySpec(), Features(tools="all"), messages)["messages"][1:] == [called, result]


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
    plain, requested = body(ReplySpec(), features), body(ReplySpec(format=form), features)
    assert requested == plain | fields


@pytest.mark.parametrize(
    ("spec", "features", "fields"),
    [
        (ReplySpec(reasoning="high"), VLLM, {"reasoning_effort": "high"}),
        (
            ReplySpec(reasoning="off"),
            VLLM,
            {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": False, "thinking": False}},
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
)  # fmt: skip
def test_how_much_is_thought_goes_on(spec: ReplySpec, features: Features, fields: dict[str, Any]) -> None:
    assert body(spec, features) == body(ReplySpec(), features) | fields


def test_a_raw_prompt_goes_to_the_other_door_as_it_is() -> None:
    spec = ReplySpec(raw=True, format=Regex("a+"))
    sent = body(spec, top_logprobs=2, messages=(Message("user", "Once upon"),))
    assert (sent["prompt"], sent["max_tokens"], sent["logprobs"]) == ("Once upon", 100, 2)
    assert sent["structured_outputs"] == {"regex": "a+"}
    assert not sent.keys() & {"messages", "tools", "add_generation_prompt", "top_logprobs"}
    assert path_of(Request("r", HELLO, spec=spec)) == "completions"
    assert path_of(Request("r", HELLO)) == "chat/completions"


def test_the_missing_sampling_fields_go_on() -> None:
    requested = {"min_p": 0.1, "min_tokens": 3, "ignore_eos": True}
    sent = body(ReplySpec(), special_tokens=True, **requested)
    assert sent == body(ReplySpec()) | requested | {"skip_special_tokens": False}
    assert body(ReplySpec(), special_tokens=False) == body(ReplySpec())


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_tools_and_calls_are_never_estimated_to_be_nothing(text: str) -> None:
    plain = estimated_tokens(HELLO, 3.0)
    called = (*HELLO, Message("assistant", "", calls=(ToolCall("c", "look", text),)))
    assert estimated_tokens(called, 3.0) > plain + 4
    assert estimated_tokens(HELLO, 3.0, ReplySpec(tools=(Tool("look", text),))) > plain + 4
    assert estimated_tokens(HELLO, 3.0, ReplySpec(raw=True)) == plain - 4


# ---- what it understands


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
    ReplySpec(raw=True),
)


@pytest.mark.parametrize(
    ("features", "refused"),
    [
        (Features(), [None] * 2 + ["format"] * 4 + [None, "template", "continues", "raw"]),
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
    assert features.completions is bool(PRESETS[server].get("completions"))


def test_a_kind_that_nobody_knows_is_left_to_whoever_reads_the_table() -> None:
    assert with_preset({"server": "other"}) == {"server": "other"}
    assert with_preset({"name": "up"}) == {"name": "up"}


# ---- what it says


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
    assert (
        sum(output.tokens for output in outputs if isinstance(output, Chunk | Reasoning | ToolCallOutput))
        == 7
    )


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
    shown = "".join(output.text for output in outputs if isinstance(output, Chunk))
    assert shown == f"So: {text or f'{name}({arguments})'}"


@pytest.mark.parametrize("call_id", ["x" * 129, "a b", "<script>"])
def test_a_name_that_no_call_should_have_is_not_kept(call_id: str) -> None:
    outputs = outputs_for(Delta(tool_calls=(part(0, "look", "{}", call_id),)))
    assert [output.call_id for output in outputs if isinstance(output, ToolCallOutput)] == [""]


def test_more_calls_than_there_may_be_end_the_reply() -> None:
    with pytest.raises(EngineLost, match=f"more than {MAX_CALLS} calls"):
        outputs_for(Delta(tool_calls=tuple(part(number, "look", "{}") for number in range(MAX_CALLS + 1))))
    with pytest.raises(EngineLost, match=f"more than {MAX_CALL_BYTES} bytes"):
        outputs_for(*[Delta(tool_calls=(part(0, "look", "x" * 65_536),))] * 17)


@given(st.lists(st.sampled_from("ae 👩👧🇩🇪\u200d\u0301é"), max_size=12), st.data())
def test_thoughts_are_whole_however_they_are_cut(texts: list[str], data: st.DataObject) -> None:
    thinks = [data.draw(st.booleans(), label="thinks") for _ in texts]
    deltas = [
        Delta(reasoning_content=text) if think else Delta(text)
        for text, think in zip(texts, thinks, strict=True)
    ]
    outputs = outputs_for(*deltas)
    for kind, wanted in ((Reasoning, True), (Chunk, False)):
        joined = "".join(output.text for output in outputs if isinstance(output, kind))
        assert joined == "".join(text for text, think in zip(texts, thinks, strict=True) if think is wanted)
    pieces = [output for output in outputs if isinstance(output, Chunk | Reasoning)]
    assert all(piece.text for piece in pieces)
    assert sum(piece.tokens for piece in pieces) == len(texts)


# ---- over HTTP


@pytest.fixture
async def server() -> AsyncIterator[UpstreamServer]:
    async with upstream_server() as upstream:
        yield upstream


def call_delta(index: int, **call: Any) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, **call}]}


async def test_a_reply_that_thinks_and_calls_comes_over_http(server: UpstreamServer) -> None:
    server.answers = [
        Answer(
            deltas=(
                {"reasoning_content": "Hm."},
                {"content": "So:"},
                call_delta(0, id="c1", type="function", function={"name": "look", "arguments": ""}),
                call_delta(0, function={"arguments": '{"a":1}'}),
            ),
            reason="tool_calls",
        )
    ]
    async with serving(server, features=VLLM) as engine:
        outputs = await outputs_of(engine.generate(Request("r", HELLO, spec=ReplySpec(tools=(LOOK,)))))
        assert engine.facts is not None
        assert "tools" in engine.facts.features
    assert together(outputs) == [("thought", "Hm."), ("text", "So:"), ("call", 'c1 look {"a":1}')]
    assert isinstance(outputs[-1], Finished)
    assert outputs[-1].reason is FinishReason.STOP
    assert server.bodies[0]["tools"][0]["function"]["name"] == "look"


async def test_a_reply_that_only_thought_is_not_asked_again(server: UpstreamServer) -> None:
    server.answers = [Answer(deltas=({"reasoning": "Let me see. "}, {"content": "A tree."}), end_after=1)]
    async with serving(server, features=VLLM) as engine:
        stream = engine.generate(Request("r", HELLO))
        with pytest.raises(EngineLost):
            await outputs_of(stream)
    assert len(server.bodies) == 1


async def test_a_raw_prompt_is_answered_by_the_other_door(server: UpstreamServer) -> None:
    async with serving(server, features=VLLM) as engine:
        requested = Request("r", (Message("user", "Once"),), spec=ReplySpec(raw=True))
        outputs = await outputs_of(engine.generate(requested))
        assert "".join(output.text for output in outputs if isinstance(output, Chunk)) == "Hello there."
        assert server.bodies[0]["prompt"] == "Once"
        assert await engine.count_tokens(requested.messages, spec=requested.spec) == 42
        assert server.bodies[1]["prompt"] == "Once"


async def test_tools_are_counted_with_the_messages(server: UpstreamServer) -> None:
    async with serving(server, features=VLLM) as engine:
        await engine.count_tokens(HELLO, spec=ReplySpec(tools=(LOOK,), template={"a": 1}))
    assert server.bodies[0]["tools"][0]["function"]["parameters"] == json.loads(SCHEMA)
    assert server.bodies[0]["chat_template_kwargs"] == {"a": 1}
