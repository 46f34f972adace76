"""Whom a token names, as the store may call them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connections.authentication.api_keys import ApiKey
from connections.authentication.identity import ANONYMOUS, of_key, of_subject
from connections.wire.errors import Unauthenticated
from sessions.records import Owner
from sessions.store.keys import Keys

subjects = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)


@given(subjects)
def test_a_subject_of_any_text_leaves_the_hash_tag_whole(subject: str) -> None:
    principal = of_subject(subject, expires_at=0).principal
    owner = Owner(principal, "client")
    assert re.fullmatch(r"ms:\{[^{}/]+/client/talk\}", Keys.of(owner, "talk").conversation)


@given(subjects, subjects)
def test_two_subjects_are_two_principals(one: str, other: str) -> None:
    principals = {of_subject(subject, expires_at=0).principal for subject in (one, other)}
    assert len(principals) == len({one, other})


def test_a_key_a_subject_and_nobody_of_one_name_are_three() -> None:
    key, subject = of_key(ApiKey("anonymous", "")), of_subject("anonymous", expires_at=0)
    assert len({key.principal, subject.principal, ANONYMOUS.principal}) == 3
    assert of_subject("key:ann", expires_at=0).principal != of_key(ApiKey("ann", "")).principal


@pytest.mark.parametrize("subject", ["", "x" * 256, "\ud800"])
def test_a_subject_that_names_nobody_is_refused(subject: str) -> None:
    with pytest.raises(Unauthenticated):
        of_subject(subject, expires_at=0)
