"""Several replicas on one store: cancels from another replica, an owner that is killed, an owner that hangs.

Two devices of one client are on different replicas; each sees what the other asks for.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import msgspec

from sessions.store.ownership import RENEW_S
from tests.bench.report import Measured, at_most, none, percentile_ms
from tests.chaos import gateway
from tests.chaos.chat_client import Device
from tests.chaos.event_checker import Frame, differences
from tests.chaos.scenario import Scale, Scenario
from tests.chaos.store_server import store_server
from tests.server_process import ServerProcess, serving

CANCELLED_MS = at_most(100.0)
CLOSED_S = at_most(10.0)
PACE_S = 0.02
WORDS = 5_000
CLOCK_OFF_S = -30.0
"""Seconds by which the last replica's clock is wrong. It asks the first replica to act: clocks must not be compared."""
SEEN = 3
"""Deltas that both devices see before the trouble."""
LIMIT_S = 40.0


class NotInTime(Exception):
    """A required event did not happen."""


def measure(scenario: Scenario) -> Sequence[Measured]:
    """Play each scene with so many replicas."""
    return tuple(finding for number in scenario.scale.replicas for finding in _measure(scenario, number))


def _measure(scenario: Scenario, number: int) -> Iterator[Measured]:
    folder = scenario.folder / str(number)
    folder.mkdir()
    with ExitStack() as stack:
        store = stack.enter_context(store_server(folder / "store"))
        environ = {"MIDSTREAM_REDIS_URL": store.url, "MIDSTREAM_LOG_LEVEL": "warning"}
        servers = []
        for name in range(number):
            (folder / str(name)).mkdir()
            off_s = CLOCK_OFF_S if name == number - 1 else 0.0
            script = gateway.Script(words=WORDS, pace_s=PACE_S, hurry=scenario.scale.hurry, clock_off_s=off_s)
            command = gateway.command(script)
            servers.append(stack.enter_context(serving(folder / str(name), environ, command=command)))
        cancels = asyncio.run(_cancels(servers, scenario.scale.cancels))
        draw = scenario.draw()
        killed = [
            asyncio.run(_killed(servers, f"killed-{time}", draw.uniform(0.0, RENEW_S / scenario.scale.hurry)))
            for time in range(scenario.scale.owner_kills)
        ]
        stalled = asyncio.run(_stalled(servers, scenario.scale))
    readings = {"p50": percentile_ms(cancels, 0.5), "cancels": float(len(cancels))}
    label = f"{number} replicas, one clock 30 s off: p99 from cancel on another one to cancelled"
    cancelled = percentile_ms(cancels, 0.99)
    yield Measured(label=label, value=cancelled, unit="ms", readings=readings, target=CANCELLED_MS)
    deaths = {"least": min(killed), "deaths": float(len(killed))}
    label = f"{number} replicas: from the owner's death to the end of its turn"
    yield Measured(label=label, value=max(killed), unit="s", readings=deaths, target=CLOSED_S)
    closed_s, faults = stalled
    label = (
        f"{number} replicas: late writes of an owner that stood still for {scenario.scale.owner_stall_s:g} s"
    )
    yield msgspec.structs.replace(none(label, faults), readings={"s until its turn was closed": closed_s})


async def _cancels(servers: list[ServerProcess], times: int) -> list[float]:
    """Return the seconds that each cancel took, as the device that asked for it saw it."""
    loop, took = asyncio.get_running_loop(), list[float]()
    here, there = await _two_devices("cancels", servers)
    for number in range(times):
        requester, other = (here, there) if number % 2 else (there, here)
        turn_id = await _begin(other, requester, f"m{number}")
        started = loop.time()
        answer = await requester.ask(type="cancel", conversation_id=requester.conversation_id)
        took.append(loop.time() - started)
        if answer.get("turn_id") != turn_id:
            raise NotInTime(f"the cancel met {answer}, not {turn_id}")
        for device in (here, there):
            await _ended(device, turn_id)
    await _agree(here, there)
    return took


async def _killed(servers: list[ServerProcess], name: str, later_s: float) -> float:
    """Return the seconds from an owner's death until the other device got the end of its turn."""
    loop = asyncio.get_running_loop()
    here, there = await _two_devices(name, servers)
    turn_id = await _begin(here, there, "m")
    await asyncio.sleep(later_s)  # so that a lease has a random age
    await asyncio.to_thread(servers[0].kill)
    started = loop.time()
    done = await _ended(there, turn_id)
    took = loop.time() - started
    if done["reason"] != "interrupted":
        raise NotInTime(f"the turn of a dead owner ended otherwise: {done}")
    await asyncio.to_thread(servers[0].start)
    await here.come(servers[0].ws_url)
    await _ended(here, turn_id)
    await _agree(here, there)
    return took


async def _stalled(servers: list[ServerProcess], scale: Scale) -> tuple[float, list[str]]:
    """Suspend an owner until its turn is closed and the conversation goes on; then wake it.

    Return the seconds until another replica closed the turn, and the faults afterwards.
    """
    loop = asyncio.get_running_loop()
    here, there = await _two_devices("stalled", servers)
    turn_id = await _begin(here, there, "m")
    owner = servers[0].process
    assert owner is not None
    owner.send_signal(signal.SIGSTOP)
    started = loop.time()
    try:
        await _ended(there, turn_id)
        closed_s = loop.time() - started
        next_turn = await _send(there, "next", max_new_tokens=5)
        await _ended(there, next_turn)
        seq = there.event_checker.seq
        await asyncio.sleep(max(0.0, started + scale.owner_stall_s - loop.time()))
    finally:
        owner.send_signal(signal.SIGCONT)
    await asyncio.sleep(scale.settle_s)
    late = [f"seq {there.event_checker.seq} behind {seq}"] if there.event_checker.seq != seq else []
    for turn in (turn_id, next_turn):
        await _ended(here, turn)
    return closed_s, [*late, *await _disagreements(here, there)]


async def _two_devices(name: str, servers: list[ServerProcess]) -> tuple[Device, Device]:
    """Connect devices of one client to the first and the last replica, attached to one conversation."""
    here, there = Device(name), Device(name)
    await here.come(servers[0].ws_url)
    first = await _send(here, "first", max_new_tokens=1)
    await _ended(here, first)
    await there.come(servers[-1].ws_url)
    await there.history()
    return here, there


async def _begin(owner: Device, other: Device, client_msg_id: str) -> str:
    """Ask for a long reply, and wait until both devices see its text; return its turn."""
    turn_id = await _send(owner, client_msg_id, max_new_tokens=WORDS)
    for device in (owner, other):
        turns = device.event_checker.turns
        if not await device.until(
            lambda turns=turns: turn_id in turns and turns[turn_id].text.count(" ") >= SEEN  # type: ignore[misc]
        ):
            raise NotInTime(f"no text of {turn_id}")
    return turn_id


async def _send(device: Device, client_msg_id: str, **params: Any) -> str:
    message = {"client_msg_id": client_msg_id, "content": f"Message {client_msg_id}.", "grace_s": 60}
    frame = await device.ask(type="send", conversation_id=device.conversation_id, **message, params=params)
    if frame["type"] != "accepted":
        raise NotInTime(f"{client_msg_id} was refused: {frame}")
    turn_id: str = frame["turn_id"]
    return turn_id


async def _ended(device: Device, turn_id: str) -> Frame:
    turns = device.event_checker.turns
    if not await device.until(lambda: turn_id in turns and turns[turn_id].done is not None, within_s=LIMIT_S):
        raise NotInTime(f"no end of {turn_id} in {LIMIT_S:g} s")
    done = turns[turn_id].done
    assert done is not None
    return done


async def _agree(here: Device, there: Device) -> None:
    if faults := await _disagreements(here, there):
        raise NotInTime("; ".join(faults[:3]))


async def _disagreements(here: Device, there: Device) -> list[str]:
    """Compare both devices with the history, and leave."""
    history = await there.history()
    faults = [
        fault
        for one in (here, there)
        for fault in (*one.event_checker.faults, *differences(one.event_checker, history))
    ]
    await here.leave()
    await there.leave()
    return faults
