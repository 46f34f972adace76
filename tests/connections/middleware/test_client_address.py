"""Whose word about an address counts, and whose does not."""

from __future__ import annotations

import re
from ipaddress import ip_address

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from connections.middleware import AllowedAddresses, is_loopback, networks

TRUSTED = networks(["127.0.0.0/8", "10.0.0.0/8", "fd00::/8"])


@pytest.mark.parametrize(
    ("peer", "forwarded_for", "client"),
    [
        ("203.0.113.9", [], "203.0.113.9"),
        ("203.0.113.9", ["198.51.100.1"], "203.0.113.9"),  # no proxy of ours: its word counts for nothing
        ("127.0.0.1", ["198.51.100.1"], "198.51.100.1"),
        ("127.0.0.1", ["198.51.100.1, 10.1.2.3"], "198.51.100.1"),
        ("127.0.0.1", ["198.51.100.1", "10.1.2.3"], "198.51.100.1"),  # two lines are one list
        (
            "127.0.0.1",
            ["192.168.0.1, 198.51.100.1"],
            "198.51.100.1",
        ),  # the left one is the client's own claim
        ("127.0.0.1", ["198.51.100.1:4711"], "198.51.100.1"),
        ("fd00::1", ["[2001:db8::7]:443"], "2001:db8::7"),
        ("::ffff:127.0.0.1", ["2001:db8::7"], "2001:db8::7"),
        ("127.0.0.1", [], "127.0.0.1"),
        ("127.0.0.1", ["10.0.0.7"], "10.0.0.7"),
        ("127.0.0.1", ["198.51.100.1, unknown"], None),
        ("127.0.0.1", [""], None),
        ("somewhere", [], None),
        (None, ["198.51.100.1"], None),
    ],
)
def test_the_nearest_address_that_is_no_proxy_of_ours_is_the_clients(
    peer: str | None, forwarded_for: list[str], client: str | None
) -> None:
    found = AllowedAddresses(trusted=TRUSTED).client(peer, forwarded_for)
    assert found == (None if client is None else ip_address(client))


@given(claimed=st.text(), written=st.ip_addresses())
def test_nothing_that_a_client_claims_changes_what_our_proxy_saw(claimed: str, written: object) -> None:
    proxy = "192.0.2.1"
    assume(str(written) != proxy)
    ours = AllowedAddresses(trusted=networks([proxy]))
    assert ours.client(proxy, [claimed, str(written)]) == ours.client(proxy, [str(written)])


@given(peer=st.ip_addresses())
def test_without_a_list_everybody_may_come_in(peer: object) -> None:
    assert AllowedAddresses().allows(ip_address(str(peer)))
    assert AllowedAddresses().allows(None)


@pytest.mark.parametrize(
    ("peer", "forwarded_for", "admitted"),
    [
        ("192.168.7.9", [], True),
        ("::ffff:192.168.7.9", [], True),
        ("203.0.113.9", [], False),
        ("203.0.113.9", ["192.168.7.9"], False),
        ("10.0.0.1", ["192.168.7.9"], True),
        ("10.0.0.1", ["192.168.7.9, 203.0.113.9"], False),
        ("10.0.0.1", ["_hidden"], False),
        (None, [], False),
    ],
)
def test_a_list_lets_in_its_own_and_nobody_else(
    peer: str | None, forwarded_for: list[str], *, admitted: bool
) -> None:
    rule = AllowedAddresses(allowed=networks(["192.168.0.0/16"]), trusted=TRUSTED)
    assert rule.allows(rule.client(peer, forwarded_for)) is admitted


@pytest.mark.parametrize("wrong", ["10.0.0.1/8", "10.0.0", "example.org", "10.0.0.0/33"])
def test_what_is_no_range_is_named(wrong: str) -> None:
    with pytest.raises(ValueError, match=re.escape(wrong)):
        networks(["10.0.0.0/8", wrong])


@pytest.mark.parametrize(
    ("peer", "is_own"), [("127.0.0.5", True), ("::1", True), ("10.0.0.1", False), (None, False)]
)
def test_this_machine_is_told_by_its_address(peer: str | None, *, is_own: bool) -> None:
    assert is_loopback(peer) is is_own
