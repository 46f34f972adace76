"""What counts for whom, and what follows from a count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.limits.quotas import Quota, QuotaKind, QuotaSettings, QuotaUsage, near_limits, quota_subjects
from sessions.limits.rates import RateLimited
from sessions.records import Client

ANN, BOB = Client("key:lab", "ann"), Client("key:lab", "bob")
ALL = QuotaSettings(
    messages_per_minute=5, key_messages_per_minute=7, tokens_per_day=100, key_tokens_per_day=200
)


def test_clients_of_a_key_share_its_limits_and_have_their_own_too() -> None:
    (ann, anns_key), (bob, bobs_key) = quota_subjects(ANN), quota_subjects(BOB)
    assert anns_key == bobs_key
    assert len({ann, bob, anns_key}) == 3


def test_where_nobody_is_asked_who_they_are_nobody_shares_a_limit() -> None:
    one, other = quota_subjects(Client("anonymous", "ann")), quota_subjects(Client("anonymous", "bob"))
    assert not set(one) & set(other)


def test_no_slot_of_a_cluster_counts_for_all() -> None:
    """It is chosen by what is between the braces."""
    tags = {
        subject.partition("{")[2].partition("}")[0]
        for subject in (*quota_subjects(ANN), *quota_subjects(BOB))
    }
    assert tags == {"key:lab/ann", "key:lab/bob", "key:lab"}


def test_each_number_is_a_gauge_of_its_subject() -> None:
    client, key = quota_subjects(ANN)
    assert ALL.gauges(ANN) == (
        Quota("messages_per_minute", QuotaKind.MESSAGES, client, 5),
        Quota("key_messages_per_minute", QuotaKind.MESSAGES, key, 7),
        Quota("tokens_per_day", QuotaKind.TOKENS, client, 100),
        Quota("key_tokens_per_day", QuotaKind.TOKENS, key, 200),
    )
    assert QuotaSettings().gauges(ANN) == ()


@pytest.mark.parametrize(
    ("client", "key", "shown"), [(None, None, None), (5, None, 5), (None, 7, 7), (5, 7, 5), (7, 5, 5)]
)
def test_the_smaller_number_is_shown(client: int | None, key: int | None, shown: int | None) -> None:
    assert QuotaSettings(messages_per_minute=client, key_messages_per_minute=key).shown == shown


@given(limit=st.integers(1, 10_000), used=st.integers(0, 20_000))
def test_a_limit_is_told_once_a_fifth_of_it_or_less_is_left(limit: int, used: int) -> None:
    gauge = Quota("tokens_per_day", QuotaKind.TOKENS, "s", limit)
    reported = near_limits([gauge], [QuotaUsage(used, 1)], admitted=True)
    assert [(near.name, near.reset_s) for near in reported] == [("tokens_per_day", 1)] * (
        5 * (limit - used) <= limit
    )
    assert all(near.remaining == max(0, limit - used) for near in reported)


def test_the_limit_that_lasts_longest_is_the_one_that_is_named() -> None:
    gauges = ALL.gauges(ANN)
    readings = [
        QuotaUsage(5, 1_500),
        QuotaUsage(6, 60_000),
        QuotaUsage(100, 7_200_000),
        QuotaUsage(100, 7_200_000),
    ]
    with pytest.raises(RateLimited, match=r"limit of 100 .*\(tokens_per_day\).* in 7200 s") as refused:
        near_limits(gauges, readings, admitted=False)
    assert refused.value.retry_after_ms == 7_200_000
