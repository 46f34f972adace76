"""Whom a token names, as the store may call them."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from connections.authentication.api_keys import ANONYMOUS, ApiKey, Identity, Kind, of_key, of_subject
from connections.protocol.errors import Unauthenticated
from sessions.records import Owner
from sessions.store.codec import Keys

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


def test_a_person_owns_alike_from_any_device_and_an_applications_users_do_not() -> None:
    person, subject = of_key(ApiKey("ann", "", kind=Kind.PERSONAL)), of_subject("ann", expires_at=0)
    for identity in (person, subject):
        assert identity.is_person
        assert identity.owner("laptop") == identity.owner("phone")
        assert identity.client("laptop") != identity.client("phone")
    for identity in (of_key(ApiKey("ann", "")), ANONYMOUS):
        assert not identity.is_person
        assert identity.owner("ann") != identity.owner("bob")
        assert str(identity.owner("ann")) == str(identity.client("ann"))


@given(subjects)
def test_no_client_has_the_names_of_a_person(subject: str) -> None:
    """A client id is never empty; those of Realtime sessions begin with a slash, and hold two."""
    person = of_subject(subject, expires_at=0)
    mine = Keys.of(person.owner("laptop"), "talk").conversation
    for client_id in ("laptop", "/openai", "/openai/talk"):
        assert Keys.of(Owner(person.principal, client_id), "talk").conversation != mine


def test_a_ticket_of_an_older_version_is_an_applications_or_a_subjects() -> None:
    read = msgspec.json.Decoder(Identity).decode
    assert not read(b'{"principal":"key:shop","key":"d"}').is_person
    assert read(b'{"principal":"jwt:ann","expires_at":1}').is_person


@pytest.mark.parametrize("subject", ["", "x" * 256, "\ud800"])
def test_a_subject_that_names_nobody_is_refused(subject: str) -> None:
    with pytest.raises(Unauthenticated):
        of_subject(subject, expires_at=0)
