"""Under which names the server answers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connections.middleware import allowed_hosts_for

LOOPBACK = ["localhost", "LocalHost:8000", "a.localhost", "127.0.0.1:8000", "127.9.9.9", "[::1]:8000", "::1"]


@pytest.mark.parametrize("host", [*LOOPBACK, "localhost."])
def test_loopback_answers_to_its_names(host: str) -> None:
    assert allowed_hosts_for((), listening="127.0.0.1", authenticates=True).allows([host])


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "", ":8000"],
)
def test_a_name_that_somebody_pointed_here_is_not_answered_to(host: str) -> None:
    assert not allowed_hosts_for((), listening="localhost", authenticates=True).allows([host])


@given(host=st.text())
def test_beyond_loopback_any_name_is_answered_to_until_some_are_set(host: str) -> None:
    assert allowed_hosts_for((), listening="0.0.0.0", authenticates=True).allows([host])
    assert allowed_hosts_for(("chat.example.org", "*"), listening="0.0.0.0", authenticates=True).allows(
        [host]
    )


@pytest.mark.parametrize(
    ("host", "admitted"),
    [
        ("chat.example.org", True),
        ("Chat.Example.ORG:443", True),
        ("chat.example.org.", True),
        ("eu.chat.example.net", True),
        ("chat.example.net", False),
        ("evilchat.example.net", False),
        ("192.0.2.7:8000", True),  # what it listens on
        ("192.0.2.8", False),
        *((name, True) for name in LOOPBACK),
    ],
)
def test_a_list_names_all_but_loopback_and_the_own_address(host: str, *, admitted: bool) -> None:
    rule = allowed_hosts_for(
        ("chat.example.org", "*.chat.example.net"), listening="192.0.2.7", authenticates=True
    )
    assert rule.allows([host]) is admitted


@pytest.mark.parametrize(
    ("host", "admitted"),
    [
        ("evil.example:8000", False),
        ("127.0.0.1.evil.example", False),
        ("chat.example.org", True),
        ("192.0.2.8:8000", True),
        ("[2001:db8::1]:8000", True),
        *((name, True) for name in LOOPBACK),
    ],
)
def test_without_authentication_names_are_listed_also_beyond_loopback(host: str, *, admitted: bool) -> None:
    """A page may point its name at this machine, but no address."""
    rule = allowed_hosts_for(("chat.example.org",), listening="0.0.0.0", authenticates=False)
    assert rule.allows([host]) is admitted
    assert allowed_hosts_for(("*",), listening="0.0.0.0", authenticates=False).allows([host])


def test_two_names_at_once_are_answered_to_by_nobody() -> None:
    assert not allowed_hosts_for((), listening="127.0.0.1", authenticates=True).allows(
        ["localhost", "evil.example"]
    )


def test_a_request_without_a_name_is_no_browsers() -> None:
    assert allowed_hosts_for((), listening="127.0.0.1", authenticates=True).allows([])
