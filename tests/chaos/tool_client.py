"""A talker whose replies call tools: two devices on two servers settle the calls, and the first answer counts."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import ClassVar

from tests.chaos.chat_client import PAUSE_S, Account, ChatClient, SentMessage
from tests.chaos.device import Device, Lost
from tests.chaos.event_checker import SETTLED, Frame
from tests.chaos.scripted_tools import CLIENTS, SERVERS

QUIET_S = 2.0


class ToolClient(ChatClient):
    """Talks as other talkers do; `phone` is its second device."""

    SEND: ClassVar[Frame] = {"on_disconnect": "continue", "tools": [*CLIENTS, *SERVERS]}
    FEATURES: ClassVar[tuple[str, ...]] = ("reasoning", "tools")

    def __init__(self, name: str, url: Callable[[], str], *, draw: random.Random) -> None:
        super().__init__(name, url)
        self.phone = Device(name, features=self.FEATURES)
        self.settled = 0
        self._quiet: dict[str, float] = {}
        """By call, the time until which no answer is sent: after a conflict, the other device's event will follow."""
        self._draw = draw

    async def talk(self) -> None:
        """Talk until stopped, and settle the calls of the replies."""
        settling = [asyncio.create_task(self._settle(device)) for device in (self.device, self.phone)]
        try:
            await super().talk()
        finally:
            for task in settling:
                task.cancel()
            await asyncio.gather(*settling, return_exceptions=True)

    async def leave(self) -> None:
        """Close the connections of both devices."""
        await asyncio.gather(self.device.leave(), self.phone.leave())

    async def account(self) -> Account:
        """Return the account, with the faults that the phone saw. Raises Lost."""
        account = await super().account()
        account.faults.extend(self.phone.event_checker.faults)
        return account

    def _has_end(self, sent: SentMessage) -> bool:
        """True if the whole exchange has ended: its last turn made no calls."""
        return self._has_last(sent.turn_id)

    def _has_last(self, turn_id: str) -> bool:
        """True if this turn or a later one is the last. A store that lost the following turn makes a new one."""
        turns = self.device.event_checker.turns
        turn = turns.get(turn_id)
        if turn is None or (turn.done is None and not turn.is_over):
            return False
        if turn.done is None or turn.removed or turn.done["reason"] != "tools":
            return True
        return any(self._has_last(name) for name, one in turns.items() if one.follows == turn_id)

    async def _settle(self, device: Device) -> None:
        """Answer one device's calls, again and again, until cancelled."""
        while True:
            await asyncio.sleep(self._draw.uniform(0.0, 2 * PAUSE_S))
            try:
                if not device.is_there:
                    if device is self.phone:
                        await device.come(self._url())
                    continue
                for call in [*device.event_checker.calls.values()]:
                    is_quiet = time.monotonic() < self._quiet.get(call["call_id"], 0.0)
                    if call["state"] not in SETTLED and not is_quiet:
                        await self._answer(device, call)
            except Lost:
                continue

    async def _answer(self, device: Device, call: Frame) -> None:
        if call.get("needs") == "approval" and call["state"] == "waiting":
            answer = await device.ask(
                type="tool_decision",
                conversation_id=device.event_checker.conversation_id,
                call_id=call["call_id"],
                args_sha256=call["args_sha256"],
                decision="allow" if int(call["args_sha256"], 16) % 4 else "deny",
            )
        elif call.get("where") == "client":
            answer = await device.ask(
                type="tool_result",
                conversation_id=device.event_checker.conversation_id,
                call_id=call["call_id"],
                content=f"Result of {call['call_id']}.",
            )
        else:
            return
        self._judge(call, answer)

    def _judge(self, call: Frame, answer: Frame) -> None:
        """Note the answer. A late answer may be refused: the ledger checks that no call is settled twice."""
        if answer["type"] == "tool_ack":
            self.settled += answer["state"] in SETTLED and not answer["already"]
        elif answer["code"] == "conflict":
            self._quiet[call["call_id"]] = time.monotonic() + QUIET_S
        elif answer["code"] == "not_found":
            call["state"] = "lost"
        elif not answer["retryable"]:
            self.faults.append(f"{call['call_id']} was answered by {answer}")
