"""The server runs its tools itself: each call is claimed in the store before it starts, and started once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Unpack

import pytest
from redis.asyncio import Redis

from engine.scripted import Call, ScriptedEngine
from sessions import events
from sessions.commands.turn_manager import DRAIN_CANCEL_S
from sessions.errors import Conflict
from sessions.events import CallState, Done, Reason, Status, ToolCall, ToolState
from sessions.tool_round import CallStates
from sessions.tools.tool_registry import (
    Approval,
    CallContext,
    Progress,
    ServerTool,
    ToolFailed,
    ToolLost,
    ToolRegistry,
)
from tests.sessions.chat_driver import (
    Chat,
    Options,
    eventually,
    filtering,
    running_turns_in_store,
    serving,
)
from tests.sessions.recorder import Recorder, continuous
from tests.sessions.tool_round.sample_tools import BERN, CLOCK, WEATHER, WIPE

TICK = Call("clock", '{"zone": "UTC"}')
SWEEP = Call("wipe", "{}")


class Bench:
    """A source of two tools, whose calls end when the test says so."""

    def __init__(self, *, idempotent: bool = False) -> None:
        self.started: list[tuple[str, str, dict[str, Any]]] = []
        self.contexts: list[CallContext] = []
        self.cancelled = 0
        self._idempotent = idempotent
        self._ends: dict[str, asyncio.Future[str]] = {}

    def offered(self) -> tuple[ServerTool, ...]:
        return tuple(
            ServerTool(
                name=name,
                description=name,
                parameters="{}",
                approval=approval,
                idempotent=self._idempotent,
            )
            for name, approval in (("clock", Approval.NEVER), ("wipe", Approval.ALWAYS))
        )

    async def run(self, name: str, arguments: dict[str, Any], context: CallContext) -> str:
        self.started.append((context.call_id, name, arguments))
        self.contexts.append(context)
        end = self._ends.setdefault(context.call_id, asyncio.get_running_loop().create_future())
        try:
            return await asyncio.shield(end)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        yield

    def ends(self, call_id: str, result: str | Exception) -> None:
        end = self._ends[call_id]
        if isinstance(result, str):
            end.set_result(result)
        else:
            end.set_exception(result)


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
async def served(store: Redis, engine: ScriptedEngine, bench: Bench) -> AsyncIterator[Chat]:
    async with serving(store, engine, registry=ToolRegistry([bench])) as chat:
        yield chat


async def started(chat: Chat, bench: Bench, *calls: Call, **options: Unpack[Options]) -> Done:
    """A reply whose calls run."""
    options.setdefault("tools", [CLOCK])
    done = await chat.play("Time?", *calls or (TICK,), **options)
    await eventually(lambda: len(bench.started) == len(calls or (TICK,)))
    return done


async def end(chat: Chat, bench: Bench, call_id: str) -> None:
    bench.ends(call_id, "Noon.")
    await chat.follow("It is noon.")


async def test_a_tool_runs_once_its_claim_is_in_the_store_and_the_turn_goes_on_by_itself(
    served: Chat, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its progress is shown."""
    claims: list[tuple[CallState, str | None]] = []
    run, storage = bench.run, served.sessions.storage

    async def look(name: str, arguments: dict[str, Any], context: CallContext) -> str:
        kept = await storage.history.call(served.keys, context.call_id)
        assert kept is not None
        claims.append((kept.state, kept.runner))
        return await run(name, arguments, context)

    monkeypatch.setattr(bench, "run", look)
    done = await started(served, bench)
    assert claims == [(CallState.RUNNING, storage.ownership.replica)]
    assert bench.started == [(done.open[0], "clock", {"zone": "UTC"})]
    bench.contexts[0].progress(Progress(done=1, total=4, message="Looking."))
    status = served.reader.of(Status)[-1]
    assert (status.state, status.call_id, status.progress) == ("tool", done.open[0], 0.25)
    assert (status.turn_id, status.message) == (done.turn_id, "Looking.")
    await end(served, bench, done.open[0])
    assert served.engine.requests[-1].messages[-1].content == "Noon."
    assert [state.state for state in served.reader.of(ToolState)] == [CallState.RUNNING, CallState.DONE]
    (call,) = served.reader.of(ToolCall)
    assert (call.where, call.expires_at) == ("server", None)
    assert continuous(served.reader.events)


async def test_tools_of_server_and_client_are_waited_for_together(served: Chat, bench: Bench) -> None:
    done = await served.play("Time and weather?", TICK, BERN, TICK, tools=[CLOCK, WEATHER])
    await eventually(lambda: len(bench.started) == 2)
    bench.ends(done.open[2], "Noon.")
    await served.result(done.open[1], "Rain.")
    await served.reader.until(lambda: len(served.reader.of(ToolState)) == 4)
    assert len(served.engine.requests) == 1
    await end(served, bench, done.open[0])
    assert len(bench.started) == 2


async def test_what_a_tool_says_about_its_failure_is_for_the_model(served: Chat, bench: Bench) -> None:
    done = await started(served, bench, TICK, TICK, TICK)
    bench.ends(done.open[0], ToolFailed("The clock stands."))
    bench.ends(done.open[1], ToolLost("Nobody knows."))
    bench.ends(done.open[2], ZeroDivisionError("a secret"))
    await served.follow("So.")
    reported = [message.content for message in served.engine.requests[-1].messages if message.role == "tool"]
    assert reported[:2] == ["Error: The clock stands.", "Nobody knows."]
    assert "internal error" in reported[2]
    assert "secret" not in reported[2]
    page = await served.history(Recorder())
    assert isinstance(page.messages[1].calls, tuple)
    assert [call.state for call in page.messages[1].calls] == [
        CallState.DONE,
        CallState.LOST,
        CallState.DONE,
    ]


@pytest.mark.parametrize("call", [Call("wipe"), Call("nobody"), Call("clock", "[1]"), Call("clock", "{")])
async def test_what_was_not_offered_or_makes_no_sense_is_not_run(
    served: Chat, bench: Bench, call: Call
) -> None:
    await served.play("Time?", call, tools=[CLOCK])
    await served.follow("So.")
    assert bench.started == []
    assert served.engine.requests[-1].messages[-1].content.startswith("Error: ")


async def test_a_tool_that_needs_approval_starts_when_it_is_allowed_with_what_was_allowed(
    served: Chat, bench: Bench
) -> None:
    done = await served.play("Wipe!", SWEEP, SWEEP, tools=[WIPE])
    assert bench.started == []
    denied, allowed = served.reader.of(ToolCall)
    await served.decide(denied, allow=False)
    await served.decide(allowed, args='{"disk": 2}')
    await eventually(lambda: bool(bench.started))
    assert bench.started == [(done.open[1], "wipe", {"disk": 2})]
    await end(served, bench, done.open[1])
    assert len(bench.started) == 1


async def test_one_that_is_allowed_while_the_reply_is_written_starts_behind_it(
    served: Chat, bench: Bench
) -> None:
    served.engine.script([SWEEP, "So", " far."])
    accepted = await served.running("Wipe!", tools=[WIPE])
    await served.step()
    await served.decide(await served.reader.next(ToolCall))
    assert bench.started == []
    done = await served.finish(accepted.turn_id)
    await eventually(lambda: bool(bench.started))
    await end(served, bench, done.open[0])
    assert len(bench.started) == 1


async def test_nobody_brings_a_result_in_a_tools_place_and_a_cancel_ends_what_runs(
    served: Chat, bench: Bench
) -> None:
    done = await started(served, bench, TICK, TICK)
    with pytest.raises(Conflict, match="server runs"):
        await served.result(done.open[0], "Midnight.")
    assert (await served.stop()).reason is Reason.CANCELLED
    await served.wait_idle()
    assert bench.cancelled == 2
    assert [state.state for state in served.reader.of(ToolState)][2:] == [CallState.CANCELLED] * 2


async def test_a_filter_reads_results_too(store: Redis, engine: ScriptedEngine, bench: Bench) -> None:
    filters = filtering(incoming=["midnight"])
    async with serving(store, engine, registry=ToolRegistry([bench]), filters=filters) as chat:
        done = await started(chat, bench)
        bench.ends(done.open[0], "It is midnight.")
        await chat.follow("So.")
    assert "filter" in engine.requests[-1].messages[-1].content


# ---- death and restart


@pytest.mark.parametrize("idempotent", [False, True])
async def test_a_call_whose_replica_died_is_lost_unless_it_may_run_again(
    store: Redis, engine: ScriptedEngine, *, idempotent: bool
) -> None:
    here, there = Bench(idempotent=idempotent), Bench(idempotent=idempotent)
    other_engine = ScriptedEngine(by_hand=True)
    async with (
        serving(store, engine, registry=ToolRegistry([here])) as chat,
        serving(store, other_engine, registry=ToolRegistry([there]), alone=False) as other,
    ):
        (call_id,) = (await started(chat, here)).open
        await other.history()
        await chat.lose_lease()
        await other.reap()
        if idempotent:
            await eventually(lambda: bool(there.started))
            there.ends(call_id, "Noon.")
        await other.follow("So.")
        assert len(there.started) == int(idempotent)
        state = other.reader.of(ToolState)[-1]
        assert state.state is (CallState.DONE if idempotent else CallState.LOST)
        reported = other_engine.requests[-1].messages[-1].content
        assert reported == (
            "Noon." if idempotent else "The call was interrupted. Whether it was carried out is not known."
        )
        here.ends(call_id, "Too late.")
        await chat.wait_idle()
        assert len(here.started) == 1
        assert continuous(other.reader.events)
        page = await other.history(Recorder())
        assert len(page.messages) == 3


async def test_a_restart_loses_what_ran_and_goes_on(
    store: Redis, engine: ScriptedEngine, bench: Bench
) -> None:
    """It waits for no tool longer than its time."""
    async with serving(store, engine, registry=ToolRegistry([bench])) as chat:
        await chat.play("Time?", TICK, BERN, tools=[CLOCK, WEATHER], on_disconnect="continue")
        await eventually(lambda: bool(bench.started))
        call = chat.reader.of(ToolCall)[1]
        async with asyncio.timeout(DRAIN_CANCEL_S / 2):
            await chat.sessions.drain(0.01)
    assert bench.cancelled == 1
    assert await running_turns_in_store(store) == 1
    again = Bench()
    async with serving(store, engine, registry=ToolRegistry([again])) as chat:
        await chat.history()
        await eventually(lambda: bool(chat.live_conversation.turns))
        await chat.result(call.call_id, "Rain.")
        await chat.follow("So.")
        page = await chat.history(Recorder())
    assert isinstance(page.messages[1].calls, tuple)
    assert [one.state for one in page.messages[1].calls] == [CallState.LOST, CallState.DONE]
    assert again.started == []
    assert await running_turns_in_store(store) == 0


async def test_a_drain_waits_for_tools_that_run(store: Redis, engine: ScriptedEngine, bench: Bench) -> None:
    async with serving(store, engine, registry=ToolRegistry([bench])) as chat:
        done = await started(chat, bench)
        draining = asyncio.create_task(chat.sessions.drain(30))
        await eventually(lambda: chat.sessions.admission.draining)
        bench.ends(done.open[0], "Noon.")
        await draining
        assert [state.state for state in chat.reader.of(ToolState)] == [CallState.RUNNING, CallState.DONE]
        assert len(chat.reader.of(events.Accepted)) == 1
    engine.script(["It is noon."])
    async with serving(store, engine, registry=ToolRegistry([Bench()])) as chat:
        await eventually(lambda: len(engine.requests) == 2)  # it goes on by itself, whoever is there
        await chat.history()
        await chat.finish(engine.requests[-1].request_id)
        page = await chat.history(Recorder())
    assert engine.requests[-1].messages[-1].content == "Noon."
    assert page.messages[-1].content == "It is noon."


async def test_a_tool_does_not_start_while_its_claim_is_not_in_the_store(
    served: Chat, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    confirmed = asyncio.Event()
    requested = asyncio.Event()

    async def later(self: CallStates, *_: object) -> None:
        requested.set()
        await confirmed.wait()

    monkeypatch.setattr(CallStates, "until_certain", later)
    done = await served.play("Time?", TICK, tools=[CLOCK])
    await requested.wait()
    assert bench.started == []
    confirmed.set()
    await eventually(lambda: bool(bench.started))
    await end(served, bench, done.open[0])
