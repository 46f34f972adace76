"""Each bound is written once: PROTOCOL.md has those that clients meet."""

from __future__ import annotations

import pytest

from sessions.limits import bounds
from sessions.limits.bounds import Bound
from specs.bounds import CONNECTION_BOUNDS, protocol
from tests.docs.documents import PROTOCOL


def test_the_protocol_shows_the_bounds_of_the_code() -> None:
    text = PROTOCOL.read_text()
    assert protocol(text) == text
    assert protocol(text.replace("| size of a message | 64 KiB⁵ |", "| size of a message | 1 KiB |")) == text


def test_a_protocol_without_a_table_is_refused() -> None:
    with pytest.raises(ValueError, match="no table"):
        protocol("# Wire protocol")


def test_every_bound_that_is_counted_is_shown() -> None:
    assert {bound for *_, bound in CONNECTION_BOUNDS} == {None, *Bound}


def test_the_rates_are_those_of_the_code() -> None:
    text = " ".join(PROTOCOL.read_text().split())
    rates = f"{bounds.MESSAGES_PER_S:g} messages and {bounds.READS_PER_S:g} reads a second, and up to five seconds' worth"
    assert f"An owner may send {rates} at once" in text
    assert f"of a key or address together may send {bounds.GROUPS_TIMES} times as much" in text
    assert f"and {bounds.MAX_ACCEPTING} messages may be waiting for `accepted`" in text
    assert (
        f"connections (default: {bounds.MAX_CLIENT_CONNECTIONS} for each client; further connections close with 4429)"
        in text
    )
    assert bounds.BURST_S == 5
