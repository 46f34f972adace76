"""A client that talks whatever happens: it sends each message until it is acknowledged, and waits for its reply."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from time import monotonic
from typing import ClassVar

import msgspec

from tests.chaos.device import Device, Lost
from tests.chaos.event_checker import Frame, differences

PAUSE_S = 0.1
END_S = 60.0
LATER = {"busy", "store_unavailable", "store_full", "engine_unavailable", "overloaded", "draining"}
"""Refusals that change nothing: the message is sent again."""


class SentMessage(msgspec.Struct, frozen=True):
    """An acknowledged message."""

    client_msg_id: str
    content: str
    message_id: str
    turn_id: str
    epoch: str = ""


class ChatClient:
    """One client with one conversation. `url` returns where to connect next; `rest_s`: seconds before a message."""

    SEND: ClassVar[Frame] = {"grace_s": 20, "params": {"max_new_tokens": 20, "temperature": 0}}
    FEATURES: ClassVar[tuple[str, ...]] = ()

    def __init__(self, name: str, url: Callable[[], str], *, rest_s: float = 0.0) -> None:
        self.device = Device(name, features=self.FEATURES)
        self.sent: list[SentMessage] = []
        self.refusals: Counter[str] = Counter()
        self.faults: list[str] = []
        self.ended = 0
        self.unanswered = 0
        """Number of requests without an answer for so long that the connection was given up."""
        self.longest_wait_s = 0.0
        """Seconds between the first attempt to send a message and its acknowledgement, at most."""
        self._url = url
        self._rest_s = rest_s
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """Send nothing more once the current reply has ended."""
        self._stop.set()

    async def talk(self) -> None:
        """Talk until stopped."""
        while not self._stop.is_set():
            number = len(self.sent)
            content = f"{self.device.client_id}, message {number}: What is {number} plus 8?"
            sent = await self._send(f"m{number}", content)
            await self._wait_end(sent)
            self.ended += 1
            await asyncio.sleep(self._rest_s)

    async def _send(self, client_msg_id: str, content: str) -> SentMessage:
        """Send a message until it is acknowledged, under one id."""
        began = monotonic()
        while True:
            answer = await self._try(client_msg_id, content)
            if answer is not None and answer["type"] == "accepted":
                sent = SentMessage(
                    client_msg_id, content, answer["message_id"], answer["turn_id"], answer["epoch"]
                )
                self.sent.append(sent)
                self.longest_wait_s = max(self.longest_wait_s, monotonic() - began)
                return sent
            await asyncio.sleep(PAUSE_S)

    async def _try(self, client_msg_id: str, content: str) -> Frame | None:
        try:
            await self._be_there()
            answer = await self.device.ask(
                type="send",
                conversation_id=self.device.event_checker.conversation_id,
                client_msg_id=client_msg_id,
                content=content,
                **self.SEND,
            )
        except Lost as lost:
            self._note(str(lost))
            return None
        if answer["type"] == "error":
            self.refusals[answer["code"]] += 1
            if answer["code"] not in LATER:
                self.faults.append(f"{self.device.client_id}: {client_msg_id} was refused: {answer}")
        return answer

    async def _wait_end(self, sent: SentMessage) -> None:
        """Wait until the reply has ended. The limit is for silence while there is a connection."""
        while not self._has_end(sent):
            try:
                if not await self._follow(sent):
                    self.faults.append(
                        f"{self.device.client_id}: {sent.turn_id} has no end, and nothing is told for {END_S:g} s"
                    )
                    return
            except Lost as lost:
                self._note(str(lost))
                await asyncio.sleep(PAUSE_S)

    async def _follow(self, sent: SentMessage) -> bool:
        """Return whether something came in time: an event, or a gap that may have covered the end. Raises Lost."""
        if not self.device.is_there:
            await self._be_there()
            await self._resend(sent)
        event_checker = self.device.event_checker
        gaps, seq = event_checker.gaps, event_checker.seq
        has_news = await self.device.until(
            lambda: self._has_end(sent) or (event_checker.gaps, event_checker.seq) != (gaps, seq),
            within_s=END_S,
        )
        if event_checker.gaps != gaps:
            await self._resend(sent)
        return has_news

    async def _resend(self, sent: SentMessage) -> None:
        """Send it under the same id, unless its end is known: missing parts of its turn come then. Raises Lost."""
        if self._has_end(sent):
            return
        again = await self._try(sent.client_msg_id, sent.content)
        if again is not None and again.get("turn_id", sent.turn_id) != sent.turn_id:
            self.faults.append(f"{self.device.client_id}: {sent.client_msg_id} made a second turn")

    def _has_end(self, sent: SentMessage) -> bool:
        turn = self.device.event_checker.turns.get(sent.turn_id)
        return turn is not None and (turn.done is not None or turn.gone)

    async def _be_there(self) -> None:
        if not self.device.is_there:
            await self.device.come(self._url())

    def _note(self, why: str) -> None:
        self.unanswered += "not answered" in why

    @property
    def reported_gone(self) -> set[str]:
        """Acknowledged messages of conversations that this client was told are gone."""
        return {one.client_msg_id for one in self.sent if one.epoch in self.device.event_checker.gone}

    async def leave(self) -> None:
        """Close all its connections."""
        await self.device.leave()

    async def account(self) -> Account:
        """Return an account of everything that it said. Raises Lost."""
        await self._be_there()
        history = await self.device.history()
        users = Counter(message["message_id"] for message in history if message["role"] == "user")
        contents = Counter(message["content"] for message in history if message["role"] == "user")
        return Account(
            lost=[one.client_msg_id for one in self.sent if not users[one.message_id]],
            doubled=[content for content, times in contents.items() if times > 1],
            endless=[one["turn_id"] for one in history if one["status"] == "running"],
            different=differences(self.device.event_checker, history),
            faults=[*self.faults, *self.device.event_checker.faults],
        )


class Account(msgspec.Struct, frozen=True):
    """One talker's account after all troubles: each list should be empty."""

    LABELS: ClassVar[dict[str, str]] = {
        "acknowledged messages lost": "lost",
        "messages doubled": "doubled",
        "turns without an end": "endless",
        "replies that the history has otherwise": "different",
        "broken promises on the wire (holes, repetitions, second ends)": "faults",
    }

    lost: list[str]
    doubled: list[str]
    endless: list[str]
    different: list[str]
    faults: list[str]
