"""Bytes reach the parser in order, in small parts, with turns of the event loop between; reading pauses meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from ipaddress import ip_network
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connections.http_protocol import (
    MAX_PART_BYTES,
    PARTS_PER_ITERATION,
    ParseScheduler,
    PauseReason,
    ThrottledReader,
)
from connections.loop_scheduler import LIGHT_ONLY_ITERATIONS, WINDOW
from sessions.limits.bounds import PART_BYTES

CHUNKS = st.lists(st.binary(max_size=3) | st.integers(1, 20 * PART_BYTES))


class Peer(asyncio.Transport):
    """A transport that shows whether it is read, and a parser that notes which bytes it got in which turn of the loop."""

    def __init__(
        self, turns: ParseScheduler | None = None, *, slack: int = 0, address: str | None = None
    ) -> None:
        super().__init__(None if address is None else {"peername": (address, 4711)})
        self.is_read = True
        self.is_gone = False
        self.turn = 0
        self.parsed: list[tuple[int, bytes]] = []
        self.feed = ThrottledReader(
            self, turns or ParseScheduler(), lambda sip: self.parsed.append((self.turn, sip)), slack=slack
        )

    def pause_reading(self) -> None:
        assert self.is_read
        self.is_read = False

    def resume_reading(self) -> None:
        assert not self.is_read
        self.is_read = True

    def is_closing(self) -> bool:
        return self.is_gone

    async def turns(self, most: int) -> None:
        """Let the loop turn until nothing waits, but only so often."""
        for _ in range(most):
            self.turn += 1
            await asyncio.sleep(0)

    @property
    def text(self) -> bytes:
        return b"".join(sip for _, sip in self.parsed)


@given(CHUNKS)
def test_all_is_parsed_in_order_and_little_in_a_turn(chunks: Sequence[int | bytes]) -> None:
    sent = [bytes(chunk) for chunk in chunks]

    async def follow() -> None:
        peer = Peer()
        for data in sent:
            peer.feed.take(data)
            assert peer.is_read is not peer.feed.waits
        at_once = len(peer.parsed)
        await peer.turns(sum(map(len, sent)) // PART_BYTES + 2)
        assert peer.text == b"".join(sent)
        assert all(len(sip) <= PART_BYTES for _, sip in peer.parsed)
        turns = [turn for turn, _ in peer.parsed[at_once:]]
        assert all(turns.count(turn) <= PARTS_PER_ITERATION for turn in set(turns))
        assert peer.is_read

    asyncio.run(follow())


async def test_what_is_only_copied_is_taken_in_larger_parts() -> None:
    peer = Peer()
    peer.feed._copied = lambda: 5_000 - len(peer.text)
    peer.feed.take(bytes(5_000 + PART_BYTES + 1))
    await peer.turns(5)
    assert [len(sip) for _, sip in peer.parsed] == [5_000, PART_BYTES, 1]


@given(st.sets(st.sampled_from(PauseReason), min_size=1), st.binary(min_size=1))
def test_nothing_is_parsed_while_there_is_a_reason_to_wait(holds: set[PauseReason], data: bytes) -> None:
    async def follow() -> None:
        peer = Peer()
        for hold in holds:
            peer.feed.hold(hold)
        peer.feed.take(data)
        for hold in holds:
            await peer.turns(2)
            assert (peer.parsed, peer.is_read) == ([], False)
            peer.feed.release(hold)
        await peer.turns(2)
        assert (peer.text, peer.is_read) == (data, True)

    asyncio.run(follow())


async def test_a_reason_that_comes_while_it_parses_stops_it_at_once() -> None:
    peer = Peer()
    peer.feed._parse = lambda sip: (peer.parsed.append((0, sip)), peer.feed.hold(PauseReason.BUDGET))
    peer.feed.take(bytes(MAX_PART_BYTES))
    await peer.turns(3)
    assert [len(sip) for _, sip in peer.parsed] == [PART_BYTES]


async def test_while_an_answer_is_made_little_more_is_read() -> None:
    """Enough that a client's leaving is noticed, and no more."""
    peer = Peer(slack=100)
    peer.feed.hold(PauseReason.ANSWER)
    peer.feed.take(bytes(100))
    assert peer.is_read
    peer.feed.take(bytes(1))
    assert not peer.is_read


async def test_nobody_parses_what_came_from_a_peer_that_is_gone() -> None:
    peer = Peer()
    peer.feed.take(bytes(PART_BYTES + 1))
    peer.is_gone = True
    await peer.turns(2)
    peer.feed.end()
    peer.feed.release(PauseReason.BUDGET)
    assert peer.parsed == []


async def test_however_many_have_something_few_are_parsed_in_a_turn() -> None:
    turns = ParseScheduler()
    peers = [Peer(turns) for _ in range(10)]
    for peer in peers:
        peer.feed.take(b"little" if peer in peers[:5] else bytes(MAX_PART_BYTES))
    parsed = []
    for _ in range(8):
        parsed.append(sum(1 for peer in peers if peer.parsed))
        await asyncio.sleep(0)
    assert all(later - sooner <= 2 for sooner, later in pairwise(parsed))
    assert parsed[-1] == len(peers)


@pytest.mark.parametrize("address", ["10.0.0.7", "::ffff:10.0.0.7", "127.0.0.1", "::1"])
async def test_behind_a_proxy_a_quiet_connection_waits_for_no_busy_one(address: str) -> None:
    """Nor do the busy ones wait for its request longer than if each had an address of its own."""
    turns = ParseScheduler(proxies=[ip_network("10.0.0.0/8")])
    busy = [Peer(turns, address=address) for _ in range(3)]
    quiet = Peer(turns, address=address)
    for peer in busy:
        peer.feed.take(bytes(WINDOW * PART_BYTES))
    for _ in range(WINDOW // PARTS_PER_ITERATION):
        await asyncio.sleep(0)
    with turns.light_clients.request():
        quiet.feed.take(b"little")
        await asyncio.sleep(0)
        assert quiet.text == b"little"
        before = sum(len(peer.parsed) for peer in busy)
        for _ in range(20):
            await asyncio.sleep(0)
    assert (
        sum(len(peer.parsed) for peer in busy) - before >= 20 // LIGHT_ONLY_ITERATIONS * PARTS_PER_ITERATION
    )
