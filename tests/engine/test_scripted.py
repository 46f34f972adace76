"""The scripted engine keeps the endpoint's promises."""

from __future__ import annotations

import pytest

from engine.api import Streamer
from engine.errors import EngineLost, EngineUnavailable, PromptRejected
from engine.messages import (
    Finished,
    FinishReason,
    Params,
    Regex,
    ReplySpec,
    Request,
    Tool,
)
from engine.scripted import ScriptedEngine
from tests.engine.replies import HELLO, reply_of


def make_request(request_id: str = "r", **params: int) -> Request:
    return Request(request_id, HELLO, Params(**params))


async def end_of(stream: Streamer) -> Finished:
    return (await reply_of(stream))[1]


async def test_prompts_are_counted_with_their_tools_or_rejected() -> None:
    engine, tool = ScriptedEngine(), Tool("look", "Looks around.", "{}")
    for spec, tokens in (
        (ReplySpec(), 6),
        (ReplySpec(tools=(tool,)), 6 + 4 + 4),
        (ReplySpec(tools=(tool,), tool_choice="none"), 6),
    ):
        assert await engine.count_tokens(HELLO, spec=spec) == tokens
    with pytest.raises(PromptRejected):
        await engine.count_tokens([])
    with pytest.raises(PromptRejected) as rejected:
        await engine.count_tokens(HELLO, spec=ReplySpec(format=Regex("(")))
    assert rejected.value.field == "format"


async def test_a_cancel_that_crosses_the_end_is_harmless_and_an_open_id_is_not_taken_twice() -> None:
    engine = ScriptedEngine(by_hand=True)
    engine.script([])
    stream = engine.generate(make_request())
    with pytest.raises(ValueError, match="still open"):
        engine.generate(make_request())
    stream.cancel()
    engine.die()
    with pytest.raises(EngineLost):
        await end_of(stream)


async def test_a_prompt_beyond_the_window_is_an_error_of_its_own_request() -> None:
    end = await end_of(ScriptedEngine(context_tokens=6).generate(make_request()))
    assert end.reason is FinishReason.ERROR


@pytest.mark.parametrize("end", [ScriptedEngine.fail, ScriptedEngine.stop])
async def test_an_engine_that_is_over_refuses(end: object) -> None:
    engine = ScriptedEngine()
    assert callable(end)
    end(engine)
    assert engine.status.state.is_final
    with pytest.raises(EngineUnavailable):
        engine.generate(make_request())
    with pytest.raises(EngineUnavailable):
        await engine.count_tokens(HELLO)
