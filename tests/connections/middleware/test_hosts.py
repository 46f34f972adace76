"""Under which names the server answers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connections.middleware import allowed_hosts_for

LOOPBACK = ["localhost", "LocalHost:8000", "a.localhost", "127.0.0.1:8000", "127.9.9.9", "[::1]:8000", "::1"]


EVIL = ["evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "", ":8000"]
LISTED = ("chat.example.org", "*.chat.example.net")


def allows(host: str, *listed: str, listening: str, authenticates: bool = True) -> bool:
    return allowed_hosts_for(listed, listening=listening, authenticates=authenticates).allows([host])


@pytest.mark.parametrize("host", [*LOOPBACK, "localhost."])
def test_loopback_answers_to_its_names_however_the_server_is_set_up(host: str) -> None:
    assert allows(host, listening="127.0.0.1")
    assert allows(host.removesuffix("."), *LISTED, listening="192.0.2.7")
    assert allows(host.removesuffix("."), *LISTED, listening="0.0.0.0", authenticates=False)


@pytest.mark.parametrize("host", EVIL)
def test_a_name_that_somebody_pointed_here_is_not_answered_to(host: str) -> None:
    assert not allows(host, listening="localhost")


@given(host=st.text())
def test_beyond_loopback_any_name_is_answered_to_until_some_are_set(host: str) -> None:
    assert allows(host, listening="0.0.0.0")
    assert allows(host, "chat.example.org", "*", listening="0.0.0.0")
    assert allows(host, "*", listening="0.0.0.0", authenticates=False)


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
    ],
)
def test_a_list_names_all_but_loopback_and_the_own_address(host: str, *, admitted: bool) -> None:
    assert allows(host, *LISTED, listening="192.0.2.7") is admitted


@pytest.mark.parametrize(
    ("host", "admitted"),
    [
        ("evil.example:8000", False),
        ("127.0.0.1.evil.example", False),
        ("chat.example.org", True),
        ("192.0.2.8:8000", True),
        ("[2001:db8::1]:8000", True),
    ],
)
def test_without_authentication_names_are_listed_also_beyond_loopback(host: str, *, admitted: bool) -> None:
    """A page may point its name at this machine, but no address."""
    assert allows(host, *LISTED, listening="0.0.0.0", authenticates=False) is admitted


def test_two_names_at_once_are_answered_to_by_nobody_and_a_request_without_one_is_no_browsers() -> None:
    hosts = allowed_hosts_for((), listening="127.0.0.1", authenticates=True)
    assert not hosts.allows(["localhost", "evil.example"])
    assert hosts.allows([])
