"""Functions of the operator: called with what they want, bounded in time and size, and nobody else notices when they fail."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import pytest
import structlog

from sessions.limits.slots import FairSlots
from sessions.tools.calls import MOST_WAITING
from sessions.tools.tool_registry import (
    CallContext,
    Outcome,
    Progress,
    ToolCounters,
    ToolFailed,
    ToolLost,
)
from tests.sessions.tools.tool_calls import Watcher, box_of, call_of

caller: ContextVar[str] = ContextVar("caller", default="nobody")


@dataclass
class Place:
    latitude: float
    longitude: float


def weather(city: str, days: int = 1) -> str:
    """Tell the weather of a city."""
    return f"{city}: sun, for {days} days"


async def distance(start: Place, end: Place) -> dict[str, float]:
    return {"degrees": abs(start.latitude - end.latitude) + abs(start.longitude - end.longitude)}


def remember(text: str) -> None: ...
def who(context: CallContext) -> str:
    return f"{context.owner} {context.conversation} {context.call_id} {caller.get()}"


class Gate:
    """A function that waits in its thread until the test opens it."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.opened = threading.Event()

    def wait(self) -> str:
        self.entered.release()
        self.opened.wait(60)
        return "through"


@pytest.fixture
def gate() -> Iterator[Gate]:
    one = Gate()
    yield one
    one.opened.set()


async def entered(gate: Gate) -> None:
    """Returns when one more call is inside."""
    await asyncio.to_thread(gate.entered.acquire)


PLACES = {"start": {"latitude": 1, "longitude": 2}, "end": {"latitude": 1.5, "longitude": 2}}


@pytest.mark.parametrize(
    ("function", "arguments", "result"),
    [
        (weather, {"city": "Bern"}, "Bern: sun, for 1 days"),
        (distance, PLACES, '{"degrees":0.5}'),
        (remember, {"text": "x"}, "The tool is done."),
        (who, {}, "alice talk c7 the turn"),
    ],
)
async def test_a_function_gets_arguments_and_its_call_and_gives_text(
    function: Callable[..., Any], arguments: dict[str, Any], result: str
) -> None:
    """A thread has the context of its caller, and the log a line without content."""
    caller.set("the turn")
    with structlog.testing.capture_logs() as lines:
        assert await box_of(function).run(function.__name__, arguments, call_of("alice", "c7")) == result
    assert [line for line in lines if line["event"] == "tool called"] == [
        {"event": "tool called", "log_level": "info", "tool": function.__name__, "outcome": "done"}
    ]
    assert "Bern" not in str(lines)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "missing required field `city`"),
        ({"city": 3}, "Expected `str`, got `int` - at `$.city`"),
        ({"city": "Bern", "context": {}}, "unknown field `context`"),
    ],
)
async def test_the_model_is_told_what_is_wrong_about_its_arguments(
    arguments: dict[str, Any], words: str
) -> None:
    box = box_of(weather)
    with pytest.raises(ToolFailed, match="The arguments do not fit") as failure:
        await box.run("weather", arguments, call_of())
    assert words in str(failure.value)
    with pytest.raises(ToolFailed, match="no tool 'sing' now"):
        await box.run("sing", {}, call_of())


async def test_what_a_tool_says_on_purpose_reaches_the_model() -> None:
    def find(name: str) -> str:
        raise ToolFailed(f"Nobody is called {name}.")

    with pytest.raises(ToolFailed, match=r"^Nobody is called Ann\.$"):
        await box_of(find).run("find", {"name": "Ann"}, call_of())


def exits() -> str:
    sys.exit("secret")


async def exits_on_the_loop() -> str:
    sys.exit("secret")


def stops() -> str:
    raise StopIteration("secret")


def connects() -> str:
    raise ConnectionError("postgres://user:secret@10.0.0.1/")


def gives_no_json() -> object:
    return object()


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (exits, "SystemExit"),
        (exits_on_the_loop, "SystemExit"),
        (stops, "RuntimeError"),
        (connects, "ConnectionError"),
        (gives_no_json, "TypeError"),
    ],
)
async def test_other_exceptions_are_told_by_their_type_and_a_number_that_the_log_has(
    function: Callable[[], Any], name: str
) -> None:
    """Messages of libraries hold addresses and passwords, which the model does not get from here."""
    with structlog.testing.capture_logs() as lines, pytest.raises(ToolFailed, match=name) as failure:
        await box_of(function).run(function.__name__, {}, call_of())
    assert "secret" not in str(failure.value)
    (line,) = [line for line in lines if line["event"] == "tool failed"]
    assert line["tool"] == function.__name__
    assert line["incident"] in str(failure.value)


async def test_a_long_result_is_cut_and_says_so() -> None:
    def read() -> str:
        return "ü" * 1000

    text = await box_of(read, result_bytes=101).run("read", {}, call_of())
    assert text.startswith("ü" * 50 + "\n[")
    assert "1000 characters" in text


async def test_a_function_that_ignores_its_cancellation_keeps_nobody_waiting() -> None:
    inside, cancelled, opened = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def stubborn() -> str:
        inside.set()
        while not opened.is_set():
            try:
                await opened.wait()
            except asyncio.CancelledError:
                cancelled.set()
        return "at last"

    running = asyncio.create_task(box_of(stubborn).run("stubborn", {}, call_of()))
    await inside.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await cancelled.wait()
    opened.set()


async def test_a_thread_holds_its_place_until_its_function_returns(gate: Gate) -> None:
    """A thread can't be ended: who is in one counts, though nobody waits for it."""
    box = box_of(gate.wait, threads=FairSlots(1, each=1), limit_s=60)
    first = asyncio.create_task(box.run("wait", {}, call_of("alice")))
    await entered(gate)
    first.cancel()
    second = asyncio.create_task(box.run("wait", {}, call_of("bob")))
    done, _ = await asyncio.wait({first}, return_when=asyncio.FIRST_COMPLETED)
    assert done == {first}
    assert not gate.entered.acquire(blocking=False)
    gate.opened.set()
    assert await second == "through"


async def test_one_owner_does_not_get_all_threads(gate: Gate) -> None:
    threads = FairSlots(3, each=2)
    box = box_of(gate.wait, weather, threads=threads, limit_s=60)
    hers = [asyncio.create_task(box.run("wait", {}, call_of("alice"))) for _ in range(5)]
    await entered(gate)
    await entered(gate)
    assert threads._taken["alice"] == 2
    assert await box.run("weather", {"city": "Bern"}, call_of("bob")) == "Bern: sun, for 1 days"
    gate.opened.set()
    assert await asyncio.gather(*hers) == ["through"] * 5


async def test_more_than_some_hundred_calls_do_not_wait(gate: Gate) -> None:
    box = box_of(gate.wait, threads=FairSlots(1), limit_s=60)
    calls = [asyncio.create_task(box.run("wait", {}, call_of())) for _ in range(MOST_WAITING + 1)]
    await entered(gate)
    with pytest.raises(ToolFailed, match="not run"):
        await box.run("wait", {}, call_of("bob"))
    for one in calls:
        one.cancel()


async def test_a_call_whose_time_is_up_is_lost_and_one_that_got_no_thread_was_not_started(gate: Gate) -> None:
    box = box_of(gate.wait, threads=FairSlots(1, each=1), limit_s=0.05)
    with pytest.raises(ToolLost, match=r"within 0.05 s"):
        await box.run("wait", {}, call_of())
    with pytest.raises(ToolFailed, match="was not started") as failure:
        await box.run("wait", {}, call_of())
    assert not isinstance(failure.value, ToolLost)


async def test_progress_from_a_thread_is_heard() -> None:
    watcher = Watcher()

    def count(context: CallContext) -> str:
        context.progress(Progress(done=1, total=2, message="half"))
        return "counted"

    await box_of(count).run("count", {}, call_of(progress=watcher))
    assert await watcher.seen.get() == Progress(done=1, total=2, message="half")


async def test_functions_that_run_are_cancelled_when_the_box_is_closed() -> None:
    inside = asyncio.Event()

    async def wait() -> str:
        inside.set()
        await asyncio.Event().wait()
        return "never"

    box = box_of(wait)
    async with box.running():
        running = asyncio.create_task(box.run("wait", {}, call_of()))
        await inside.wait()
    with pytest.raises(ToolFailed, match="cancelled itself"):
        await running


def fine() -> str:
    """Work."""
    return "done"


def broken() -> str:
    """Fail."""
    raise ToolFailed("Broken.")


def gone() -> str:
    """Be lost."""
    raise ToolLost("Gone.")


async def test_each_end_of_a_call_is_counted_under_its_own_name() -> None:
    running = asyncio.Event()

    async def endless() -> str:
        """Wait."""
        running.set()
        return await asyncio.Event().wait() and ""

    box = box_of(fine, broken, gone, endless)
    async with box.running():
        await box.run("fine", {}, call_of())
        for name in ("broken", "gone", "nobody's"):
            with pytest.raises(ToolFailed):
                await box.run(name, {}, call_of())
        call = asyncio.create_task(box.run("endless", {}, call_of()))
        await running.wait()
        assert (box.counters.started, box.counters.running) == (5, 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert box.counters.running == 0
    assert box.counters.ended == {Outcome.DONE: 1, Outcome.FAILED: 2, Outcome.LOST: 1, Outcome.CANCELLED: 1}


def test_the_seconds_of_calls_are_added_up() -> None:
    clock = iter([10.0, 12.5, 20.0, 21.0])
    tally = ToolCounters(lambda: next(clock))
    for _ in range(2):
        with tally.call():
            pass
    assert tally.seconds[Outcome.DONE] == 3.5
