"""The scripted engine keeps the endpoint's promises."""

from __future__ import annotations

import asyncio
import time

import pytest

from engine.api import Engine, EngineState, Streamer
from engine.errors import EngineLost, EngineUnavailable, PromptRejected
from engine.messages import (
    Chunk,
    Finished,
    FinishReason,
    Message,
    Output,
    Params,
    Prefilling,
    Queued,
    Reasoning,
    Regex,
    ReplySpec,
    Request,
    Started,
    Tool,
    ToolCallOutput,
)
from engine.scripted import Call, ScriptedEngine, Thought

HELLO = (Message("user", "hello there"),)


def make_request(request_id: str = "r", **params: int) -> Request:
    return Request(request_id, HELLO, Params(**params))


async def outputs_of(stream: Streamer) -> list[Output]:
    return [output async for output in stream]


async def end_of(stream: Streamer) -> Finished:
    end = (await outputs_of(stream))[-1]
    assert isinstance(end, Finished)
    return end


async def test_a_script_is_played_to_its_end() -> None:
    engine: Engine = ScriptedEngine(reply="one two")
    outputs = await outputs_of(engine.generate(make_request()))
    assert outputs == [
        Started("r", 6),
        Chunk("r", "one", 1),
        Chunk("r", " two", 1),
        Finished("r", FinishReason.STOP, 6, 0, 3),
    ]


async def test_a_script_has_thoughts_and_calls_and_its_end_tells_how_they_were_written() -> None:
    engine = ScriptedEngine()
    engine.script([Thought("A "), Thought("b."), "Look:", Call("look", '{"at": 1}', "up_1")])
    outputs = await outputs_of(engine.generate(make_request()))
    assert outputs == [
        Started("r", 6),
        Reasoning("r", "A ", 1),
        Reasoning("r", "b.", 1),
        Chunk("r", "Look:", 1),
        ToolCallOutput("r", "look", '{"at": 1}', 1, "up_1"),
        Finished("r", FinishReason.STOP, 6, 0, 5),
    ]


async def test_tools_take_room_of_the_prompt_and_a_raw_one_has_no_frame() -> None:
    engine = ScriptedEngine()
    tool = Tool("look", "Looks around.", "{}")
    assert await engine.count_tokens(HELLO, spec=ReplySpec(tools=(tool,))) == 6 + 4 + 4
    assert await engine.count_tokens(HELLO, spec=ReplySpec(tools=(tool,), tool_choice="none")) == 6
    assert await engine.count_tokens(HELLO, spec=ReplySpec(raw=True)) == 2


async def test_a_pattern_that_is_none_is_rejected_by_its_field() -> None:
    with pytest.raises(PromptRejected) as rejected:
        await ScriptedEngine().count_tokens(HELLO, spec=ReplySpec(format=Regex("(")))
    assert rejected.value.field == "format"


async def test_by_hand_a_step_makes_one_token_for_every_request() -> None:
    engine = ScriptedEngine(by_hand=True)
    engine.script(["a", "b"])
    engine.script("c d")
    first, second = engine.generate(make_request("1")), engine.generate(make_request("2"))
    engine.step()
    assert [first.get_nowait(), first.get_nowait(), first.get_nowait()] == [
        Started("1", 6),
        Chunk("1", "a", 1),
        None,
    ]
    engine.step(2)
    assert await outputs_of(second) == [
        Started("2", 6),
        Chunk("2", "c d", 2),
        Finished("2", FinishReason.STOP, 6, 0, 3),
    ]


async def test_beyond_the_batch_requests_wait_and_are_told_their_place() -> None:
    engine = ScriptedEngine(reply="word", by_hand=True, max_batch=1)
    _, second, third = (engine.generate(make_request(name)) for name in "123")
    assert [second.get_nowait(), third.get_nowait()] == [Queued("2", 1), Queued("3", 2)]
    assert (engine.statistics().running, engine.statistics().queued) == (0, 3)
    engine.step(2)
    assert [second.get_nowait(), third.get_nowait()] == [None, Queued("3", 1)]
    second.cancel()
    await end_of(second)
    engine.step(2)
    assert [type(output) for output in await outputs_of(third)] == [Started, Chunk, Finished]


async def test_a_long_prompt_is_computed_over_steps_but_for_what_is_kept() -> None:
    engine = ScriptedEngine(reply="word", by_hand=True)
    engine.prefill_tokens, engine.cached_tokens = 2, 1
    stream = engine.generate(make_request())
    engine.step()
    assert [stream.get_nowait(), stream.get_nowait()] == [Started("r", 6, 1), Prefilling("r", 0.5)]
    engine.step()
    assert stream.get_nowait() == Prefilling("r", 5 / 6)
    engine.step(2)
    assert await outputs_of(stream) == [Chunk("r", "word", 1), Finished("r", FinishReason.STOP, 6, 1, 2)]
    assert (engine.statistics().prompt_tokens, engine.statistics().cached_tokens) == (5, 1)


async def test_a_reply_ends_at_the_tokens_it_may_have() -> None:
    end = await end_of(ScriptedEngine(reply="a b c").generate(make_request(max_new_tokens=2)))
    assert (end.reason, end.generated_tokens) == (FinishReason.LENGTH, 2)


async def test_a_prompt_beyond_the_window_is_an_error_of_its_own_request() -> None:
    end = await end_of(ScriptedEngine(context_tokens=6).generate(make_request()))
    assert end.reason is FinishReason.ERROR


async def test_a_cancel_is_confirmed_without_a_further_step() -> None:
    engine = ScriptedEngine(by_hand=True)
    stream = engine.generate(make_request())
    engine.step()
    stream.cancel()
    end = await end_of(stream)
    assert (end.reason, end.steps_after, end.generated_tokens) == (FinishReason.CANCELLED, 0, 1)


async def test_a_held_cancel_is_confirmed_by_the_step_that_was_under_way() -> None:
    engine = ScriptedEngine(by_hand=True)
    engine.hold_cancels = True
    stream = engine.generate(make_request())
    stream.cancel()
    await asyncio.sleep(0)
    assert stream.get_nowait() is None
    engine.step()
    assert (await end_of(stream)).steps_after == 1
    assert engine.statistics().steps_after_cancel == 1


async def test_a_cancel_that_crosses_the_end_is_harmless() -> None:
    engine = ScriptedEngine(by_hand=True)
    engine.script([])
    stream = engine.generate(make_request())
    stream.cancel()
    engine.die()
    with pytest.raises(EngineLost):
        await end_of(stream)


async def test_a_death_loses_what_ran_and_later_requests_are_served() -> None:
    engine = ScriptedEngine()
    lost = engine.generate(make_request("1"))
    engine.die()
    with pytest.raises(EngineLost):
        await end_of(lost)
    assert (await end_of(engine.generate(make_request("2")))).reason is FinishReason.STOP
    assert engine.status.restarts == 1


async def test_a_request_made_during_a_restart_waits_for_it() -> None:
    engine = ScriptedEngine()
    engine.die(revive=False)
    stream = engine.generate(make_request())
    with pytest.raises(EngineUnavailable):
        await engine.ready(timeout_s=0)
    assert engine.statistics().queued == 1
    engine.revive()
    assert (await end_of(stream)).reason is FinishReason.STOP


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


async def test_tokens_are_counted_and_an_empty_prompt_is_refused() -> None:
    engine = ScriptedEngine()
    assert await engine.count_tokens(HELLO) == 6
    with pytest.raises(PromptRejected):
        await engine.count_tokens([])


async def test_a_paced_engine_plays_by_the_clock() -> None:
    engine = ScriptedEngine(reply="a b", pace_s=0.001)
    outputs = await outputs_of(engine.generate(make_request()))
    assert len(outputs) == 4
    assert engine.facts is not None
    assert engine.status.state is EngineState.READY


async def test_a_paced_engine_makes_up_for_one_step_that_the_event_loop_was_late_for() -> None:
    engine = ScriptedEngine(reply="a b c d e f g h", pace_s=0.2)
    stream = engine.generate(make_request())
    time.sleep(0.6)  # noqa: ASYNC251 - three paces, in which the event loop turns for nobody
    for _ in range(10):
        await asyncio.sleep(0)
    assert engine.statistics().steps == 2
    stream.cancel()


async def test_an_open_id_is_not_taken_twice() -> None:
    engine = ScriptedEngine(by_hand=True)
    engine.generate(make_request())
    with pytest.raises(ValueError, match="still open"):
        engine.generate(make_request())
