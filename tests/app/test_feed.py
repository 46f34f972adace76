"""Bytes reach the parser in order, in small parts, with turns of the event loop between; reading rests meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from app.server.feed import SIP_BYTES, SLICE_BYTES, Feed, Hold

CHUNKS = st.lists(st.binary(max_size=3) | st.integers(1, 3 * SLICE_BYTES).map(bytes))


class Peer(asyncio.Transport):
    """A transport that says whether it is read, and a parser that remembers what it got in which turn of the loop."""

    def __init__(self, *, slack: int = 0) -> None:
        super().__init__()
        self.is_read = True
        self.is_gone = False
        self.turn = 0
        self.parsed: list[tuple[int, bytes]] = []
        self.feed = Feed(
            self, asyncio.get_running_loop(), lambda sip: self.parsed.append((self.turn, sip)), slack=slack
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
        """Lets the loop turn until nothing waits, so often at most."""
        for _ in range(most):
            self.turn += 1
            await asyncio.sleep(0)

    @property
    def text(self) -> bytes:
        return b"".join(sip for _, sip in self.parsed)


@given(CHUNKS)
def test_all_is_parsed_in_order_a_slice_a_turn(chunks: Sequence[bytes]) -> None:
    async def follow() -> None:
        peer = Peer()
        for chunk in chunks:
            peer.feed.take(chunk)
            assert peer.is_read is not peer.feed.waits
        await peer.turns(sum(map(len, chunks)) // SLICE_BYTES + 2)
        assert peer.text == b"".join(chunks)
        assert all(len(sip) <= SIP_BYTES for _, sip in peer.parsed)
        turns = [turn for turn, _ in peer.parsed]
        assert all(turns.count(turn) * SIP_BYTES <= SLICE_BYTES for turn in set(turns))
        assert peer.is_read

    asyncio.run(follow())


@given(st.sets(st.sampled_from(Hold), min_size=1), st.binary(min_size=1))
def test_nothing_is_parsed_while_there_is_a_reason_to_wait(holds: set[Hold], data: bytes) -> None:
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
    peer.feed._parse = lambda sip: (peer.parsed.append((0, sip)), peer.feed.hold(Hold.BUDGET))
    peer.feed.take(bytes(SLICE_BYTES))
    await peer.turns(3)
    assert [len(sip) for _, sip in peer.parsed] == [SIP_BYTES]


async def test_while_an_answer_is_made_little_more_is_read() -> None:
    """So much that a client's leaving is noticed, and no more than that."""
    peer = Peer(slack=100)
    peer.feed.hold(Hold.ANSWER)
    peer.feed.take(bytes(100))
    assert peer.is_read
    peer.feed.take(bytes(1))
    assert not peer.is_read


async def test_nobody_parses_what_came_from_a_peer_that_is_gone() -> None:
    peer = Peer()
    peer.feed.take(b"late")
    peer.is_gone = True
    await peer.turns(2)
    peer.feed.end()
    peer.feed.release(Hold.BUDGET)
    assert peer.parsed == []
