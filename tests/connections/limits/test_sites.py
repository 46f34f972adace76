"""Whose turn it is goes by an address, or by the network that one subscriber has whole."""

from __future__ import annotations

import pytest

from connections.limits.groups import site_of


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
    assert (site_of(one) == site_of(other)) is is_same
