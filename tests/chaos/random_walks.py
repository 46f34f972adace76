"""Random walks: two devices of one client, on either of two replicas, send, repeat, cancel, leave and return at random.

In the end both devices and the history agree, byte for byte.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from contextlib import suppress
from random import Random

from tests.bench.report import Measured, Target
from tests.chaos import gateway
from tests.chaos.chat_client import Device, Lost, gateways
from tests.chaos.event_checker import Frame, differences
from tests.chaos.scenario import Scenario
from tests.chaos.store_server import store_server

STEPS = 25
LIMIT_S = 30.0
LOOK_S = 0.01
REFUSALS = {"busy", "queue_full"}
"""Possible answers to a send besides `accepted`."""
UNDONE = {"conflict", "not_found"}
"""Possible answers to a rollback of an ended exchange."""


class WrongWalk(Exception):
    """A walk found something wrong. The message has its seed, its steps, and what the devices received."""


async def measure(scenario: Scenario) -> Sequence[Measured]:
    """Walk so often. Raises WrongWalk."""
    draw, walked, turns = scenario.draw(), 0, 0
    with store_server(scenario.folder / "store") as store:
        environ = {"MIDSTREAM_REDIS_URL": store.url} | gateway.UNHURRIED
        script = gateway.Script(words=60, pace_s=0.004)
        async with gateways(scenario, environ, environ, script=script) as replicas:
            for _ in range(scenario.scale.walks):
                turns += await Walk(draw.getrandbits(64), [one.ws_url for one in replicas]).walk()
                walked += 1
    label, counted = "random walks whose devices and history agree in the end", {"turns": float(turns)}
    target = Target(float(scenario.scale.walks))
    return [Measured(label=label, value=float(walked), readings=counted, target=target)]


class Walk:
    """One conversation. `urls` are the replicas'."""

    def __init__(self, seed: int, urls: Sequence[str]) -> None:
        self._seed, self._draw, self._urls = seed, Random(seed), urls
        client = f"walker-{uuid.uuid4().hex}"
        self._devices = (Device(client), Device(client))
        self._contents: dict[str, str] = {}
        """Content by `client_msg_id`."""
        self._turn_of: dict[str, str] = {}
        self._steps: list[str] = []

    async def walk(self) -> int:
        """Take all steps, let all turns end, and compare; return the number of turns. Raises WrongWalk."""
        rules = [self._send, self._send_again, self._send_otherwise, self._cancel, self._cancel_one]
        rules += [self._leave, self._come_back, self._wait]
        try:
            for _ in range(STEPS):
                rule, device = self._draw.choice(rules), self._draw.choice(self._devices)
                self._steps.append(f"{rule.__name__} by {self._devices.index(device)}")
                await rule(device)
            if self._turn_of:
                await self._compare()
        except (AssertionError, Lost, TimeoutError) as wrong:
            told = (line for device in self._devices for line in device.received_lines())
            raise WrongWalk("\n".join([f"{self._seed}: {wrong!r}", *self._steps, *told])) from wrong
        finally:
            for device in self._devices:
                await device.leave()
        return len(self._turn_of)

    async def _send(self, device: Device) -> None:
        name, words = f"m{len(self._contents)}", self._draw.randint(1, 60)
        self._contents[name] = f"{name}, {words} words, please."
        options = {
            "on_busy": self._draw.choice(("reject", "enqueue", "interrupt", "rollback")),
            "on_disconnect": self._draw.choice(("cancel", "continue")),
            "grace_s": self._draw.choice((0, 0.05, 5)),
            "params": {"max_new_tokens": words},
        }
        answer = await self._ask(device, self._message(name) | options)
        if answer["type"] == "accepted":
            self._turn_of[name] = answer["turn_id"]
        else:
            assert answer["code"] in REFUSALS, answer

    async def _send_again(self, device: Device) -> None:
        """Send a message again under its id: it makes no second turn."""
        if self._turn_of:
            name = self._draw.choice(list(self._turn_of))
            answer = await self._ask(device, self._message(name))
            assert answer["type"] == "accepted", answer
            assert answer["duplicate"], answer
            assert answer["turn_id"] == self._turn_of[name], answer

    async def _send_otherwise(self, device: Device) -> None:
        """Send something else under an id that was used."""
        if self._turn_of:
            message = self._message(self._draw.choice(list(self._turn_of)))
            assert (await self._ask(device, message | {"content": "Something else."}))["code"] == "conflict"

    async def _cancel(self, device: Device) -> None:
        """Cancel the running turn, and the waiting ones."""
        seen = self._draw.choice((None, self._draw.randint(0, 80)))
        answer = await self._ask(device, self._cancelling() | ({} if seen is None else {"seen_off": seen}))
        assert answer["type"] == "cancelled", answer

    async def _cancel_one(self, device: Device) -> None:
        """Cancel one turn, whether it runs, waits or has ended."""
        if self._turn_of:
            turn_id = self._draw.choice(list(self._turn_of.values()))
            answer = await self._ask(device, self._cancelling() | {"turn_id": turn_id})
            assert answer["type"] == "cancelled" or answer["code"] in UNDONE, answer

    async def _leave(self, device: Device) -> None:
        await device.leave()

    async def _come_back(self, device: Device) -> None:
        """Connect to a replica, after leaving another one."""
        await device.leave()
        await device.come(self._draw.choice(self._urls))

    async def _wait(self, _: Device) -> None:
        await asyncio.sleep(self._draw.randint(1, 60) / 1000)

    async def _compare(self) -> None:
        for device in self._devices:
            if not device.is_there or device.event_checker.epoch is None:
                await device.leave()
                await device.come(self._urls[0])
        for device in self._devices:
            assert await device.until(lambda device=device: _is_over(device), within_s=LIMIT_S), "no end"  # type: ignore[misc]
        async with asyncio.timeout(LIMIT_S):
            history = await self._steady_history()
        checkers = [device.event_checker for device in self._devices]
        wrong = [fault for one in checkers for fault in (*one.faults, *differences(one, history))]
        assert not wrong, wrong
        contents = [message["content"] for message in history if message["role"] == "user"]
        assert len(contents) == len(set(contents)), contents

    async def _steady_history(self) -> list[Frame]:
        """Return the history once both devices know all of it: the newest rollback may still be on its way."""
        here, there = self._devices
        while True:
            messages = await self._all_messages(here)
            if here.event_checker.seq == there.event_checker.seq == here.history_seq:
                return messages
            await asyncio.sleep(LOOK_S)

    async def _all_messages(self, device: Device) -> list[Frame]:
        """Return every branch: a turn that was cancelled while it waited stands beside those that ran."""
        messages = await device.history()
        for turn_id, turn in device.event_checker.turns.items():
            known = {message["turn_id"] for message in messages}
            if turn_id not in known and turn.done is not None and not turn.removed:
                with suppress(Lost):  # it is nowhere, and counted as missing
                    branch = await device.history(leaf=turn.done["message_id"])
                    messages += [message for message in branch if message["turn_id"] not in known]
        return messages

    def _message(self, name: str) -> Frame:
        named = {"conversation_id": self._devices[0].conversation_id, "client_msg_id": name}
        return {"type": "send", **named, "content": self._contents[name]}

    def _cancelling(self) -> Frame:
        mode = self._draw.choice(("keep", "rollback"))
        return {"type": "cancel", "conversation_id": self._devices[0].conversation_id, "mode": mode}

    async def _ask(self, device: Device, frame: Frame) -> Frame:
        if not device.is_there:
            await device.come(self._urls[self._devices.index(device)])
        return await device.ask(**frame)


def _is_over(device: Device) -> bool:
    """Return whether a device knows the end of all turns that it can know of."""
    checker = device.event_checker
    return checker.epoch is not None and all(turn.is_over for turn in checker.turns.values())
