"""Whose turn it is goes by an address, or by the network that one subscriber has whole."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from connections.authentication.caller import peer_group


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2", True),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
        ("testclient", "testclient", True),
    ],
)
def test_addresses_of_one_subscriber_have_their_turn_together(*, one: str, other: str, is_same: bool) -> None:
    assert (peer_group(one) == peer_group(other)) is is_same


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "::ffff:127.0.0.1", "10.0.0.7", "::ffff:10.0.0.7"])
def test_an_address_that_stands_for_many_is_no_site(address: str) -> None:
    assert peer_group(address, [ip_network("10.0.0.0/8")]) == ""


def test_another_address_of_this_machine_is_a_site() -> None:
    assert peer_group("127.0.2.1") == "127.0.2.1"
