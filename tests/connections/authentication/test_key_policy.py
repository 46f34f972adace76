"""What stands behind a key in its file: until when it is good, what it may do and how much."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from connections.authentication.api_keys import (
    ApiKey,
    ApiKeyStore,
    KeyPolicy,
    digest_of,
    format_policy,
    of_key,
    parse_expiry,
    parse_keys,
    parse_policy,
    with_key,
)
from connections.protocol.base import Grant, KeyScope
from connections.protocol.errors import InvalidList
from sessions.limits.quotas import Allowance

NOW = datetime(2026, 11, 24, 12, 0, 0, 500, tzinfo=UTC)
ALL = KeyPolicy(
    expires_at=1_800_000_000.0,
    grant=Grant(frozenset({KeyScope.READ, KeyScope.CHAT}), frozenset({"big", "org/small:8b"})),
    allowance=Allowance(messages_per_minute=1, messages_per_day=2, tokens_per_day=3),
)


@pytest.mark.parametrize("policy", [KeyPolicy(), ALL])
def test_what_is_written_is_read_again(policy: KeyPolicy) -> None:
    text = with_key("", ApiKey("ann", digest_of("ann"), "added", policy=policy))
    (key,) = parse_keys(text.splitlines())
    assert (key.policy, key.note) == (policy, "added")
    assert parse_policy(format_policy(policy)) == policy


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("30d", datetime(2026, 12, 24, 12, tzinfo=UTC)),
        ("90m", datetime(2026, 11, 24, 13, 30, tzinfo=UTC)),
        ("2027-01-31", datetime(2027, 1, 31, tzinfo=UTC)),
        ("2027-01-31T12:00+02:00", datetime(2027, 1, 31, 10, tzinfo=UTC)),
    ],
)
def test_a_moment_is_a_span_or_a_time(text: str, at: datetime) -> None:
    assert parse_expiry(text, now=NOW) == at.timestamp()


@pytest.mark.parametrize(
    "words",
    [
        *(
            "msk_secret",
            "msk_secret=1",
            "expires=soon",
            "expires=9999-12-31T23:59:59-14:00",
            "scopes=all",
            "models=a,b",
            "tokens_per_day=0",
        ),
        *("tokens_per_day=-1", "expires=2027-01-01 expires=2027-01-02", "messages_per_day="),
    ],
)
def test_what_is_no_term_is_told_by_its_place_and_never_repeated(words: str) -> None:
    """It may be a key that somebody put there."""
    with pytest.raises(InvalidList, match="entry 1: ") as reported:
        parse_keys([f"ann:{digest_of('ann')}:personal {words}"])
    assert "secret" not in str(reported.value)


def test_a_key_is_good_until_its_moment_and_its_end_is_noticed_once() -> None:
    now = [1_799_999_999.0]
    text = with_key("", ApiKey("ann", digest_of("ann"), policy=ALL))
    ring = ApiKeyStore(text.strip(), clock=lambda: now[0])
    key = ring.find("ann")
    assert key is not None
    assert (ring.reload_if_changed(), ring.revocation_reason(of_key(key))) == (False, None)
    now[0] += 1
    assert (ring.reload_if_changed(), ring.revocation_reason(of_key(key))) == (True, "The key has expired.")
    assert not ring.reload_if_changed()
