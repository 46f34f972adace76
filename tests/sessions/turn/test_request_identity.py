"""Requests under one `client_msg_id` are told apart by what they say and by where that goes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sessions.records import digest
from sessions.turn.message_request import Append, Edit, Regenerate, digest_of

words = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
ids = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)
requests = st.one_of(
    st.tuples(words, st.just(Append())),
    st.tuples(words, st.builds(Edit, ids)),
    st.tuples(st.just(""), st.builds(Regenerate, ids)),
)


@given(requests, requests)
def test_two_requests_have_one_digest_only_where_they_are_the_same(
    one: tuple[str, Append | Edit | Regenerate], other: tuple[str, Append | Edit | Regenerate]
) -> None:
    assert (digest_of(*one) == digest_of(*other)) == (one == other)


@given(words, st.none() | ids)
def test_a_message_is_the_same_whatever_it_answers(content: str, parent_id: str | None) -> None:
    """It may be sent again without the parent that it had, when another branch is active."""
    assert digest_of(content, Append(parent_id)) == digest(content)
