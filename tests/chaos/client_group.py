"""Clients that talk to several gateways on one store while that store has trouble, and their accounts of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import count

import msgspec

from tests.bench.engine.report import Target
from tests.chaos import gateway
from tests.chaos.chat_client import Account, ChatClient
from tests.chaos.device import Lost
from tests.chaos.report import Finding, Part
from tests.chaos.scenario import Scenario
from tests.server_process import ServerProcess

PACE_S = 0.03
QUIET_S = 60.0
GO_ON_S = 60.0
"""Seconds that a talker waits for an end: a busy machine may fail over once more than the test asked for."""
LOOK_S = 0.05
NONE = Target(0.0, at_most=True)


class NoReplies(Exception):
    """Talkers got no more replies, although the trouble is over."""


class ClientGroup:
    """Talkers; each moves to the next gateway when it loses one."""

    def __init__(self, chat_clients: list[ChatClient]) -> None:
        self.chat_clients = chat_clients

    @property
    def ended(self) -> int:
        """Number of replies that ended."""
        return sum(chat_client.ended for chat_client in self.chat_clients)

    @property
    def unsaved(self) -> set[str]:
        """Turns whose end was sent as not saved. A client that was away for longer than a lease may have lost it."""
        turns = (
            pair
            for chat_client in self.chat_clients
            for pair in chat_client.device.event_checker.turns.items()
        )
        return {turn_id for turn_id, turn in turns if turn.done is not None and not turn.done["saved"]}

    @property
    def interrupted(self) -> list[str]:
        """Turns that ended as interrupted, or with an error."""
        turns = (
            pair
            for chat_client in self.chat_clients
            for pair in chat_client.device.event_checker.turns.items()
        )
        ends = ((turn_id, turn.done["reason"]) for turn_id, turn in turns if turn.done is not None)
        return [f"{turn_id}: {reason}" for turn_id, reason in ends if reason in ("interrupted", "error")]

    @property
    def longest_wait_s(self) -> float:
        """Seconds between the first attempt to send a message and its acknowledgement, at most."""
        return max(chat_client.longest_wait_s for chat_client in self.chat_clients)

    def judged(self, account: Account) -> Account:
        """Return an account without what nobody promised: unsaved ends, and turns of refused messages.

        Clients may have seen such turns before the store lost them with its master; they got a gap for it.
        """
        promised = {sent.turn_id for chat_client in self.chat_clients for sent in chat_client.sent}
        refused = self._seen - promised
        different = [
            one for one in account.different if not any(turn_id in one for turn_id in self.unsaved | refused)
        ]
        return msgspec.structs.replace(account, different=different)

    async def accounts(self, *, within_s: float = QUIET_S) -> list[Account]:
        """Return the talkers' accounts, taken from a server that answers; then all leave. Raises TimeoutError."""
        return [self.judged(await _account(chat_client, within_s)) for chat_client in self.chat_clients]

    @property
    def _seen(self) -> set[str]:
        return {
            turn_id for chat_client in self.chat_clients for turn_id in chat_client.device.event_checker.turns
        }

    async def go_on(self) -> None:
        """Return once each talker got another reply. Raises NoReplies."""
        before = [chat_client.ended for chat_client in self.chat_clients]
        end = asyncio.get_running_loop().time() + GO_ON_S
        while any(
            chat_client.ended == ended for chat_client, ended in zip(self.chat_clients, before, strict=True)
        ):
            if asyncio.get_running_loop().time() > end:
                stuck = [
                    chat_client
                    for chat_client, ended in zip(self.chat_clients, before, strict=True)
                    if chat_client.ended == ended
                ]
                raise NoReplies(f"no reply in {GO_ON_S:g} s: {'; '.join(map(_state, stuck))}")
            await asyncio.sleep(LOOK_S)

    def findings(self, part: Part, label: str, accounts: Sequence[Account], times: int) -> Iterator[Finding]:
        """Yield the findings; `label` names what happened `times` times."""
        yield Finding(
            part=part,
            label=f"{label}: replies to the end",
            value=float(self.ended),
            readings={
                "times": float(times),
                "acknowledged": float(sum(len(chat_client.sent) for chat_client in self.chat_clients)),
                "connections lost": float(
                    sum(chat_client.device.losses for chat_client in self.chat_clients)
                ),
                "gaps told": float(
                    sum(chat_client.device.event_checker.gaps for chat_client in self.chat_clients)
                ),
                "ends told as not saved": float(len(self.unsaved)),
            },
        )
        for each, name in Account.LABELS.items():
            found = [one for account in accounts for one in getattr(account, name)]
            yield Finding(
                part=part, label=f"{label}: {each}", value=float(len(found)), target=NONE,
                note="; ".join(found[:3]),
            )  # fmt: skip


@asynccontextmanager
async def gateways(scenario: Scenario, *environs: dict[str, str]) -> AsyncIterator[list[ServerProcess]]:
    """Run a scripted gateway for each environment."""
    command = gateway.command(gateway.Script(words=20, pace_s=PACE_S, hurry=scenario.scale.hurry))
    servers = []
    for number, environ in enumerate(environs):
        folder = scenario.folder / f"gateway-{number}"
        folder.mkdir()
        servers.append(ServerProcess(folder, {"MIDSTREAM_LOG_LEVEL": "warning"} | environ, command=command))
    try:
        for server in servers:
            await asyncio.to_thread(server.start)
        yield servers
    finally:
        for server in servers:
            await asyncio.to_thread(server.stop)


async def run_clients(
    scenario: Scenario,
    urls: Sequence[str],
    happens: Callable[[ClientGroup], Awaitable[None]],
    *,
    rest_s: float = 0.0,
) -> tuple[ClientGroup, list[Account]]:
    """Have clients talk during the trouble and for a while longer; return their accounts.

    `rest_s`: seconds that every other client rests between a reply and its next message.
    """
    turns = count()
    chat_clients = [
        ChatClient(
            f"talker-{number}", lambda: urls[next(turns) % len(urls)], rest_s=rest_s if number % 2 else 0.0
        )
        for number in range(scenario.scale.chat_clients)
    ]
    client_group = ClientGroup(chat_clients)
    talking = [asyncio.create_task(chat_client.talk()) for chat_client in client_group.chat_clients]
    try:
        await client_group.go_on()
        await happens(client_group)
        await client_group.go_on()
        for chat_client in client_group.chat_clients:
            chat_client.stop()
        await asyncio.wait(talking, timeout=QUIET_S)
        return client_group, await client_group.accounts()
    finally:
        for task in talking:
            task.cancel()
        await asyncio.gather(*talking, return_exceptions=True)
        for chat_client in client_group.chat_clients:
            await chat_client.leave()


def _state(chat_client: ChatClient) -> str:
    """Return where a talker is stuck."""
    there = "connected" if chat_client.device.is_there else "not connected"
    waits = "for an end" if len(chat_client.sent) > chat_client.ended else "for accepted"
    refusals = dict(chat_client.refusals)
    return f"{chat_client.device.client_id} is {there}, waits {waits}, was refused {refusals}, {chat_client.faults}"


async def _account(chat_client: ChatClient, within_s: float) -> Account:
    async with asyncio.timeout(within_s):
        while True:
            try:
                account = await chat_client.account()
            except Lost:
                await asyncio.sleep(0.1)
            else:
                await chat_client.leave()
                return account


def check_guarantees(part: Part, accounts: Sequence[Account], logged: Sequence[str]) -> Iterator[Finding]:
    """Yield the findings that must be zero, and the servers' logged errors."""
    for label, name in Account.LABELS.items():
        yield none(part, label, [one for account in accounts for one in getattr(account, name)])
    yield Finding(
        part=part,
        label="errors in the logs",
        value=float(len(logged)),
        note="; ".join(sorted(set(logged))[:3]),
    )


def none(part: Part, label: str, found: Sequence[str]) -> Finding:
    """Return a finding that must be zero: the number of faults, and the first ones."""
    return Finding(part=part, label=label, value=float(len(found)), target=NONE, note="; ".join(found[:3]))
