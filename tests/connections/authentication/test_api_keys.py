"""The list of keys: what it keeps, and what it never repeats."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connections.authentication.api_keys import (
    ApiKey,
    Kind,
    digest_of,
    new_key,
    parse_keys,
    with_key,
    without_key,
)
from connections.protocol.errors import InvalidList

names = st.from_regex(r"[A-Za-z0-9._@-]{1,64}", fullmatch=True)
keys = st.lists(names, unique=True, max_size=8).map(
    lambda those: [ApiKey(n, digest_of(n), "new", list(Kind)[len(n) % 2]) for n in those]
)


@given(keys)
def test_what_is_added_is_read_again_in_its_order(added: list[ApiKey]) -> None:
    text = "# the keys of this service"
    for key in added:
        text = with_key(text, key)
    assert parse_keys(text.splitlines()) == tuple(added)
    assert text.startswith("# the keys of this service")


@given(keys.filter(bool), st.data())
def test_what_is_taken_out_is_gone_and_the_rest_is_there(added: list[ApiKey], data: st.DataObject) -> None:
    text = "# first\n"
    for key in added:
        text = with_key(text, key)
    gone = data.draw(st.sampled_from(added))
    left = without_key(text, gone.name)
    assert parse_keys(left.splitlines()) == tuple(key for key in added if key != gone)
    assert left.startswith("# first\n")


def test_a_key_is_long_random_and_kept_as_its_hash() -> None:
    one, other = new_key(), new_key()
    assert one != other
    assert one.startswith("msk_")
    assert len(one) == 47  # 32 random bytes in base64
    assert digest_of(one) == hashlib.sha256(one.encode()).hexdigest()


def test_an_odd_text_has_a_hash_too() -> None:
    assert digest_of("\ud800") != digest_of("")


@pytest.mark.parametrize("name", ["", "a b", "a:b", "a/b", "{a}", "a\n", "x" * 65, "a#b"])
def test_a_name_that_could_not_be_read_again_is_refused(name: str) -> None:
    with pytest.raises(InvalidList, match="A name must be"):
        with_key("", ApiKey(name, digest_of("key")))


def test_a_name_has_one_key() -> None:
    text = with_key("", ApiKey("ann", digest_of("one")))
    with pytest.raises(InvalidList, match="ann has a key already"):
        with_key(text, ApiKey("ann", digest_of("other")))
    with pytest.raises(InvalidList, match="Key not found: bob"):
        without_key(text, "bob")


@pytest.mark.parametrize(
    ("kind", "read"), [("", Kind.APPLICATION), (":app", Kind.APPLICATION), (":personal", Kind.PERSONAL)]
)
def test_a_key_has_a_kind_and_is_an_applications_without_one(kind: str, read: Kind) -> None:
    (key,) = parse_keys([f"ann:{digest_of('k')}{kind} # since ever"])
    assert (key.kind, key.note) == (read, "since ever")


@pytest.mark.parametrize("kind", ["user", "Personal", "app:", "msk_secret"])
def test_another_kind_is_refused_and_not_repeated(kind: str) -> None:
    with pytest.raises(InvalidList, match=r"entry 1: the kind of ann must be personal, app or admin\.$"):
        parse_keys([f"ann:{digest_of('k')}:{kind}"])


@pytest.mark.parametrize("entry", ["msk_secret", "ann:msk_secret", "ann", ":", f"a b:{digest_of('k')}"])
def test_a_bad_entry_is_told_by_its_place_and_not_repeated(entry: str) -> None:
    with pytest.raises(InvalidList, match="entry 2 is not NAME:HASH") as refused:
        parse_keys(["# keys", entry])
    assert "secret" not in str(refused.value)
