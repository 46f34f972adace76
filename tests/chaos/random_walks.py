"""Random walks: two devices of one client, on either of two replicas, send, repeat, cancel, leave and return at random.

In the end both devices and the history agree, byte for byte.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Coroutine, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import hypothesis.strategies as st
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from tests.bench.report import Measured, Target
from tests.chaos import gateway
from tests.chaos.chat_client import Device, Lost
from tests.chaos.event_checker import Frame, differences
from tests.chaos.scenario import Scenario
from tests.chaos.store_server import store_server
from tests.server_process import ServerProcess, serving

REPLICAS = 2
PACE_S = 0.004
STEPS = 25
LIMIT_S = 30.0
LOOK_S = 0.01
REFUSALS = {"busy", "queue_full"}
"""Possible answers to a send besides `accepted`."""
UNDONE = {"conflict", "not_found"}
"""Possible answers to a rollback of an ended exchange."""
DEVICES = st.integers(0, 1)

T = TypeVar("T")


class Walk(RuleBasedStateMachine):
    """One conversation. `urls` are the replicas'; `walked` and `turns` count over all walks."""

    urls: ClassVar[Sequence[str]] = ()
    walked: ClassVar[int] = 0
    turns: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.new_event_loop()
        client = f"walker-{uuid.uuid4().hex}"
        self._devices = (Device(client), Device(client))
        self._sent: dict[str, str] = {}
        """Content by `client_msg_id`."""
        self._turn_of: dict[str, str] = {}

    @rule(
        which=DEVICES,
        on_busy=st.sampled_from(("reject", "enqueue", "interrupt", "rollback")),
        on_disconnect=st.sampled_from(("cancel", "continue")),
        grace_s=st.sampled_from((0, 0.05, 5)),
        words=st.integers(1, 60),
    )
    def send(self, which: int, words: int, **fields: Any) -> None:
        """Send something new."""
        client_msg_id = f"m{len(self._sent)}"
        self._sent[client_msg_id] = f"{client_msg_id}, {words} words, please."
        answer = self._ask(
            which, self._message(client_msg_id) | fields | {"params": {"max_new_tokens": words}}
        )
        if answer["type"] == "accepted":
            self._turn_of[client_msg_id] = answer["turn_id"]
        else:
            assert answer["code"] in REFUSALS, answer
            del self._sent[client_msg_id]
            self._sent[f"{client_msg_id}, refused"] = ""

    @rule(which=DEVICES, chance=st.integers(0, 99))
    def send_again(self, which: int, chance: int) -> None:
        """Send a message again under its id: it makes no second turn."""
        if known := sorted(self._turn_of):
            client_msg_id = known[chance % len(known)]
            answer = self._ask(which, self._message(client_msg_id))
            assert answer["type"] == "accepted", answer
            assert answer["duplicate"], answer
            assert answer["turn_id"] == self._turn_of[client_msg_id], answer

    @rule(which=DEVICES, chance=st.integers(0, 99))
    def send_something_else(self, which: int, chance: int) -> None:
        """Send something else under an id that was used."""
        if known := sorted(self._turn_of):
            message = self._message(known[chance % len(known)]) | {"content": "Something else."}
            assert self._ask(which, message).get("code") == "conflict"

    @rule(which=DEVICES, mode=st.sampled_from(("keep", "rollback")), seen=st.none() | st.integers(0, 80))
    def cancel(self, which: int, mode: str, seen: int | None) -> None:
        """Cancel the running turn, and the waiting ones."""
        frame = {"type": "cancel", "conversation_id": self._conversation, "mode": mode}
        answer = self._ask(which, frame | ({} if seen is None else {"seen_off": seen}))
        assert answer["type"] == "cancelled", answer

    @rule(which=DEVICES, mode=st.sampled_from(("keep", "rollback")), chance=st.integers(0, 99))
    def cancel_one(self, which: int, mode: str, chance: int) -> None:
        """Cancel one turn, whether it runs, waits or has ended."""
        if known := sorted(self._turn_of.values()):
            turn_id = known[chance % len(known)]
            frame = {"type": "cancel", "turn_id": turn_id, "conversation_id": self._conversation}
            answer = self._ask(which, frame | {"mode": mode})
            assert answer["type"] == "cancelled" or answer["code"] in UNDONE, answer

    @rule(which=DEVICES)
    def leave(self, which: int) -> None:
        """Lose the connection."""
        self._run(self._devices[which].leave())

    @rule(which=DEVICES, replica=st.integers(0, REPLICAS - 1))
    def come_back(self, which: int, replica: int) -> None:
        """Connect to a replica, after leaving another one."""
        device = self._devices[which]
        self._run(device.leave())
        self._run(device.come(self.urls[replica]))

    @rule(ms=st.integers(1, 60))
    def wait(self, ms: int) -> None:
        """Let time pass."""
        self._run(asyncio.sleep(ms / 1000))

    def teardown(self) -> None:
        """Let all turns end, and compare."""
        try:
            self._run(self._compare())
        finally:
            for device in self._devices:
                self._run(device.leave())
            self._loop.close()
        Walk.walked += 1
        Walk.turns += len(self._turn_of)

    async def _compare(self) -> None:
        if not self._turn_of:
            return
        for device in self._devices:
            if not device.is_there or device.event_checker.epoch is None:
                await device.leave()
                await device.come(self.urls[0])
        here, there = self._devices
        for device in (here, there):
            await self._all_ended(device)
        history = await self._steady_history(here, there)
        wrong = [
            fault
            for one in (here, there)
            for fault in (*one.event_checker.faults, *differences(one.event_checker, history))
        ]
        assert not wrong, "\n".join([*wrong, *here.received_lines(), *there.received_lines()])
        contents = [message["content"] for message in history if message["role"] == "user"]
        assert len(contents) == len(set(contents)), contents

    async def _steady_history(self, here: Device, there: Device) -> list[Frame]:
        """Return the history once both devices know all of it: the newest rollback may still be on its way."""
        end = self._loop.time() + LIMIT_S
        while True:
            history = await self._all_messages(here)
            if here.event_checker.seq == there.event_checker.seq == here.history_seq:
                return history
            if self._loop.time() > end:
                told = (*here.received_lines(), *there.received_lines())
                raise AssertionError("\n".join(["the devices differ", *told]))
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

    async def _all_ended(self, device: Device) -> None:
        if not await device.until(lambda: self._is_over(device), within_s=LIMIT_S):
            raise AssertionError(
                "\n".join(["turns without an end", *self._open(device), *device.received_lines()])
            )

    def _is_over(self, device: Device) -> bool:
        """Return whether a device knows the end of all turns that it can know of."""
        return device.event_checker.epoch is not None and not self._open(device)

    def _open(self, device: Device) -> list[str]:
        return [name for name, turn in device.event_checker.turns.items() if not turn.is_over]

    @property
    def _conversation(self) -> str:
        return self._devices[0].conversation_id

    def _message(self, client_msg_id: str) -> Frame:
        named = {"conversation_id": self._conversation, "client_msg_id": client_msg_id}
        return {"type": "send", **named, "content": self._sent[client_msg_id]}

    def _ask(self, which: int, frame: Frame) -> Frame:
        device = self._devices[which]
        if not device.is_there:
            self._run(device.come(self.urls[which]))
        return self._run(device.ask(**frame))

    def _run(self, what: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(what)


def _replicas(stack: ExitStack, folder: Path) -> list[ServerProcess]:
    store = stack.enter_context(store_server(folder / "store"))
    environ = {"MIDSTREAM_REDIS_URL": store.url, "MIDSTREAM_LOG_LEVEL": "warning", **gateway.UNHURRIED}
    command = gateway.command(gateway.Script(words=60, pace_s=PACE_S))
    folders = [folder / str(number) for number in range(REPLICAS)]
    for one in folders:
        one.mkdir()
    return [stack.enter_context(serving(one, environ, command=command)) for one in folders]


def measure(scenario: Scenario) -> Sequence[Measured]:
    """Walk so often. Raises what a walk finds wrong, with the steps that led there."""
    with ExitStack() as stack:
        Walk.urls = [server.ws_url for server in _replicas(stack, scenario.folder)]
        Walk.walked = Walk.turns = 0
        run_state_machine_as_test(
            seed(scenario.seed)(Walk),
            settings=settings(
                max_examples=scenario.scale.walks,
                stateful_step_count=STEPS,
                phases=(Phase.generate,),  # a random failure can't be shrunk
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
    label, turns = "random walks whose devices and history agree in the end", {"turns": float(Walk.turns)}
    target = Target(float(scenario.scale.walks))
    return [Measured(label=label, value=float(Walk.walked), readings=turns, target=target)]
