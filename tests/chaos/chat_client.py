"""Clients that talk whatever happens, and their accounts of it.

A `Device` reconnects; one `EventChecker` has what it sees over all its connections. A `ChatClient` sends each message until it is
acknowledged, and waits for its reply. A `ClientGroup` talks to several gateways on one store while that store has trouble.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from time import monotonic
from typing import Any, ClassVar

import msgspec

from midstream.server_connection import Disconnected, NotConnected, Refused, ServerConnection, opened
from tests.bench.report import Measured, none
from tests.chaos import gateway
from tests.chaos.event_checker import EventChecker, Frame, Reply, differences
from tests.chaos.scenario import Scenario
from tests.chaos.server_log import unhandled
from tests.server_process import ServerProcess

UNKNOWN_EPOCH = "none"
OPEN_S = 5.0
ANSWER_S = 20.0
PAGE = 200
KEPT = 500
PAUSE_S = 0.1
END_S = 60.0
LATER = {"busy", "store_unavailable", "store_full", "engine_unavailable", "overloaded", "draining"}
"""Refusals that change nothing: the message is sent again."""
PACE_S = 0.03
QUIET_S = 60.0
GO_ON_S = 60.0
"""Seconds that a client waits for an end: a busy machine may fail over once more than the test asked for."""
LOOK_S = 0.05


class Lost(Exception):
    """The connection ended, or could not be opened."""


class Device:
    """A device with at most one connection at a time. `_take` gets all frames but errors that answer a request."""

    def __init__(self, client_id: str, conversation_id: str = "c", *, features: Sequence[str] = ()) -> None:
        self.client_id, self.conversation_id = client_id, conversation_id
        self.features = features
        self.event_checker = EventChecker(conversation_id)
        self.losses = 0
        self.history_seq = 0
        """Sequence number of the last event in the history that was read last."""
        self._heard: deque[Frame] = deque(maxlen=KEPT)
        self._line: ServerConnection | None = None
        self._staying: asyncio.Task[None] | None = None
        self._news = asyncio.Event()

    @property
    def is_there(self) -> bool:
        """True if it is connected, as far as it knows."""
        return self._line is not None

    async def come(self, url: str) -> None:
        """Connect, and read what it missed. Raises Lost."""
        options = {"compression": None, "open_timeout": OPEN_S, "close_timeout": 1.0}
        try:
            self._line = await opened(url, self._take, lambda: False, **options)
        except (OSError, TimeoutError, NotConnected) as error:
            raise Lost(str(error)) from error
        self._staying = asyncio.create_task(self._stay(self._line))
        await self.put(type="hello", client_id=self.client_id, features=list(self.features))
        position = {"epoch": self.event_checker.epoch or UNKNOWN_EPOCH, "after_seq": self.event_checker.seq}
        answer = await self.ask(type="resume", conversation_id=self.conversation_id, **position)
        if answer["type"] != "error":
            return
        if answer["code"] != "not_found":
            await self.leave()
            raise Lost(answer["code"])
        self.event_checker.vanish()

    async def leave(self) -> None:
        """Cut the connection, if there is one."""
        if self._line is not None and self._staying is not None:
            self._line.abandon()
            await self._staying

    async def _stay(self, line: ServerConnection) -> None:
        await line.lost()
        self._line = None
        self.losses += 1
        self.event_checker.left()
        self._news.set()

    async def put(self, **frame: Any) -> None:
        """Send a frame. Raises Lost."""
        try:
            await self._connected().send(frame)
        except Disconnected as error:
            raise Lost(str(error)) from error

    async def ask(self, **frame: Any) -> Frame:
        """Send a frame; return its answer. Raises Lost, also if no answer comes in time."""
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self._connected().request(frame)
        except Refused as refused:
            return {"type": "error", "code": refused.code, "retryable": refused.retryable}
        except Disconnected as error:
            raise Lost(str(error)) from error
        except TimeoutError:
            await self.leave()
            raise Lost(f"{frame['type']} was not answered in {ANSWER_S:g} s") from None

    def _connected(self) -> ServerConnection:
        if self._line is None:
            raise Lost("no connection")
        return self._line

    async def until(self, holds: Callable[[], bool], *, within_s: float = ANSWER_S) -> bool:
        """Read frames until `holds` returns True; return whether it did in time. Raises Lost."""
        try:
            async with asyncio.timeout(within_s):
                while not holds():
                    self._connected()
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return False
        return True

    async def history(self, *, leaf: str | None = None) -> list[Frame]:
        """Return all messages of the active branch, oldest first. `leaf` makes its branch the active one. Raises Lost."""
        messages: list[Frame] = []
        before = {} if leaf is None else {"leaf": leaf}
        while True:
            page = await self.ask(type="history", conversation_id=self.conversation_id, limit=PAGE, **before)
            if page["type"] == "error":
                raise Lost(page["code"])
            messages, self.history_seq = page["messages"] + messages, page["seq"]
            if not page["has_more"]:
                return messages
            before = {"before": messages[0]["message_id"]}

    def received_lines(self) -> list[str]:
        """Return the newest received frames, one a line, to find out what went wrong."""
        return [f"{self.client_id}:", *(json.dumps(frame) for frame in self._heard)]

    def _take(self, frame: Frame) -> None:
        self._heard.append(frame)
        self.event_checker.take(frame)
        self._news.set()


class SentMessage(msgspec.Struct, frozen=True):
    """An acknowledged message."""

    client_msg_id: str
    content: str
    message_id: str
    turn_id: str


class ChatClient:
    """One client with one conversation. `url` returns where to connect next."""

    SEND: ClassVar[Frame] = {"grace_s": 20, "params": {"max_new_tokens": 20, "temperature": 0}}
    FEATURES: ClassVar[tuple[str, ...]] = ()

    def __init__(self, name: str, url: Callable[[], str]) -> None:
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

    async def _send(self, client_msg_id: str, content: str) -> SentMessage:
        """Send a message until it is acknowledged, under one id."""
        began = monotonic()
        while True:
            answer = await self._try(client_msg_id, content)
            if answer is not None and answer["type"] == "accepted":
                named = (answer["message_id"], answer["turn_id"])
                sent = SentMessage(client_msg_id, content, *named)
                self.sent.append(sent)
                self.longest_wait_s = max(self.longest_wait_s, monotonic() - began)
                return sent
            await asyncio.sleep(PAUSE_S)

    async def _try(self, client_msg_id: str, content: str) -> Frame | None:
        try:
            await self._be_there()
            message = {"client_msg_id": client_msg_id, "content": content, **self.SEND}
            answer = await self.device.ask(
                type="send", conversation_id=self.device.conversation_id, **message
            )
        except Lost as lost:
            self.unanswered += "not answered" in str(lost)
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
                    silent = f"{sent.turn_id} has no end, and nothing is sent for {END_S:g} s"
                    self.faults.append(f"{self.device.client_id}: {silent}")
                    return
            except Lost as lost:
                self.unanswered += "not answered" in str(lost)
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
        "broken promises on the wire (gaps, repetitions, second ends)": "faults",
    }

    lost: list[str]
    doubled: list[str]
    endless: list[str]
    different: list[str]
    faults: list[str]


class ClientGroup:
    """Clients that talk; each moves to the next gateway when it loses one."""

    def __init__(self, chat_clients: Sequence[ChatClient]) -> None:
        self.chat_clients = chat_clients

    @property
    def ended(self) -> int:
        """Number of replies that ended."""
        return sum(one.ended for one in self.chat_clients)

    @property
    def turns(self) -> dict[str, Reply]:
        """All turns, as their clients saw them."""
        checkers = [one.device.event_checker for one in self.chat_clients]
        return {turn_id: turn for checker in checkers for turn_id, turn in checker.turns.items()}

    @property
    def ends(self) -> dict[str, Frame]:
        """The ends of turns."""
        return {turn_id: turn.done for turn_id, turn in self.turns.items() if turn.done is not None}

    @property
    def unsaved(self) -> set[str]:
        """Turns whose end was sent as not saved. A client that was away for longer than a lease may have lost it."""
        return {turn_id for turn_id, done in self.ends.items() if not done["saved"]}

    async def accounts(self, *, within_s: float = QUIET_S) -> list[Account]:
        """Return the clients' accounts, taken from a server that answers; then all leave. Raises TimeoutError.

        Nobody promised unsaved ends, and turns of refused messages: clients may have seen such turns before the store lost
        them with its master; they got a gap for it.
        """
        found = []
        for one in self.chat_clients:
            async with asyncio.timeout(within_s):
                found.append(await _account(one))
            await one.leave()
        promised = {sent.turn_id for one in self.chat_clients for sent in one.sent}
        excused = self.unsaved | (self.turns.keys() - promised)
        for account in found:
            account.different[:] = [
                what for what in account.different if not any(one in what for one in excused)
            ]
        return found

    async def go_on(self) -> None:
        """Return once each client got another reply. Raises NoReplies."""
        before, end = {one: one.ended for one in self.chat_clients}, monotonic() + GO_ON_S
        while stuck := [one for one, ended in before.items() if one.ended == ended]:
            if monotonic() > end:
                raise NoReplies(f"no reply in {GO_ON_S:g} s: {'; '.join(map(_state, stuck))}")
            await asyncio.sleep(LOOK_S)

    async def serving_again(self, within_s: float) -> None:
        """Wait until some got replies again: before that there is nothing new to lose. Gives up after `within_s`."""
        wanted, end = self.ended + len(self.chat_clients) // 4, monotonic() + within_s
        while self.ended < wanted and monotonic() < end:  # noqa: ASYNC110 - no single event
            await asyncio.sleep(LOOK_S)

    def findings(self, label: str, accounts: Sequence[Account], times: int) -> Iterator[Measured]:
        """Yield the figures; `label` names what happened `times` times."""
        some, checkers = self.chat_clients, [one.device.event_checker for one in self.chat_clients]
        readings = {
            "times": times,
            "acknowledged": sum(len(one.sent) for one in some),
            "connections lost": sum(one.device.losses for one in some),
            "gaps": sum(one.gaps for one in checkers),
            "ends sent as not saved": len(self.unsaved),
            "ends that the store lost": sum(one.lost_ends for one in checkers),
            "unanswered for 20 s": sum(one.unanswered for one in some),
        }
        readings |= sum((one.refusals for one in some), Counter())
        counts = {name: float(count) for name, count in readings.items()}
        yield Measured(label=f"{label}: replies to the end", value=float(self.ended), readings=counts)
        for each, name in Account.LABELS.items():
            yield none(f"{label}: {each}", [one for account in accounts for one in getattr(account, name)])


class NoReplies(Exception):
    """Clients got no more replies, although the trouble is over."""


def _state(one: ChatClient) -> str:
    """Return where a client is stuck."""
    there = "connected" if one.device.is_there else "not connected"
    waits = "for an end" if len(one.sent) > one.ended else "for accepted"
    return f"{one.device.client_id} is {there}, waits {waits}, was refused {dict(one.refusals)}, {one.faults}"


async def _account(one: ChatClient) -> Account:
    while True:
        try:
            return await one.account()
        except Lost:
            await asyncio.sleep(0.1)


def errors(label: str, servers: Sequence[ServerProcess]) -> Measured:
    """Return the errors that servers logged."""
    logged = [error for server in servers for error in unhandled(server.log)]
    note = "; ".join(sorted(set(logged))[:3])
    return Measured(label=f"{label}: errors in the logs", value=float(len(logged)), note=note)


@asynccontextmanager
async def gateways(
    scenario: Scenario,
    *environs: dict[str, str],
    script: gateway.Script | None = None,
    clocks: Sequence[float] = (),
) -> AsyncIterator[list[ServerProcess]]:
    """Run a scripted gateway for each environment. `clocks`: seconds by which theirs are wrong."""
    script = script or gateway.Script(words=20, pace_s=PACE_S, hurry=scenario.scale.hurry)
    servers = []
    for number, environ in enumerate(environs):
        folder = scenario.folder / f"gateway-{number}"
        folder.mkdir()
        off_s = clocks[number] if clocks else 0.0
        command = gateway.command(msgspec.structs.replace(script, clock_off_s=off_s))
        servers.append(ServerProcess(folder, {"MIDSTREAM_LOG_LEVEL": "warning"} | environ, command=command))
    try:
        for server in servers:
            await asyncio.to_thread(server.start)
        yield servers
    finally:
        for server in servers:
            if server.process is not None and server.process.poll() is None:
                await asyncio.to_thread(server.stop)


async def run_clients(
    scenario: Scenario,
    urls: Sequence[str],
    happens: Callable[[ClientGroup], Awaitable[None]],
    *,
    make: Callable[[str, Callable[[], str]], ChatClient] = ChatClient,
    quiet_s: float = QUIET_S,
    recovers: bool = True,
) -> tuple[ClientGroup, list[Account]]:
    """Have clients talk during the trouble and for a while longer; return their accounts.

    `recovers`: each gets replies again.
    """
    turns = count()

    def url() -> str:
        return urls[next(turns) % len(urls)]

    group = ClientGroup([make(f"talker-{number}", url) for number in range(scenario.scale.chat_clients)])
    talking = [asyncio.create_task(one.talk()) for one in group.chat_clients]
    try:
        await group.go_on()
        await happens(group)
        if recovers:
            await group.go_on()
        for one in group.chat_clients:
            one.stop()
        await asyncio.wait(talking, timeout=quiet_s)
        for task in talking:
            task.cancel()
        await asyncio.gather(*talking, return_exceptions=True)
        return group, await group.accounts(within_s=max(quiet_s, QUIET_S))
    finally:
        for task in talking:
            task.cancel()
        await asyncio.gather(*talking, return_exceptions=True)
        for one in group.chat_clients:
            await one.leave()
