"""The keys of whoever signs tokens: fetched when they are needed, and no more often than is decent."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from connections.authentication import json_web_tokens
from connections.authentication.json_web_tokens import (
    MAX_AGE_S,
    MIN_FETCH_INTERVAL_S,
    REFRESH_S,
    JwkSet,
    JwkSetUnavailable,
    download,
    parse_jwk_set,
)
from connections.protocol.errors import Unauthenticated
from tests.jwt_signing import Provider, ec_key, jwk, key_set, provider, rsa_key

FIRST, SECOND = jwk(rsa_key(0), kid="first"), jwk(rsa_key(1), kid="second")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def published() -> Iterator[Provider]:
    with provider(FIRST) as serving:
        yield serving


@pytest.fixture
async def keys(published: Provider, clock: Clock) -> JwkSet:
    """A set that was fetched once."""
    keys = JwkSet(published.url, clock=clock)
    await keys.find("first", "RS256")
    return keys


async def test_a_set_is_fetched_once_for_all_who_come(published: Provider, clock: Clock) -> None:
    keys = JwkSet(published.url, clock=clock)
    found = await asyncio.gather(*(keys.find("first", "RS256") for _ in range(8)))
    assert {key.key.public_numbers() for key in found} == {rsa_key(0).public_key().public_numbers()}
    assert published.request_count == 1


async def test_a_set_is_fetched_off_the_event_loop() -> None:
    threads: list[threading.Thread] = []

    def fetch(_: str) -> bytes:
        threads.append(threading.current_thread())
        return key_set(FIRST)

    await JwkSet("", fetch=fetch).find("first", "RS256")
    assert threads != [threading.current_thread()]


async def test_an_unknown_id_fetches_again_but_not_at_once(
    keys: JwkSet, published: Provider, clock: Clock
) -> None:
    published.content = key_set(FIRST, SECOND)
    for _ in range(5):
        with pytest.raises(Unauthenticated):
            await keys.find("second", "RS256")
    assert published.request_count == 1
    clock.now += MIN_FETCH_INTERVAL_S
    assert await keys.find("second", "RS256")
    assert published.request_count == 2


async def test_a_withdrawn_key_is_good_no_longer_than_the_set_is_kept(
    keys: JwkSet, published: Provider, clock: Clock
) -> None:
    published.content = key_set(SECOND)
    clock.now += REFRESH_S + 1
    with pytest.raises(Unauthenticated):
        await keys.find("first", "RS256")


async def test_keys_that_are_known_stay_good_for_a_while_though_their_provider_is_down(
    keys: JwkSet, published: Provider, clock: Clock
) -> None:
    """Not for ever: one may have been withdrawn, and whoever has it may keep the provider from answering."""
    published.status = 500
    clock.now += REFRESH_S + 1
    assert await keys.find("first", "RS256")
    assert published.request_count == 2
    clock.now += MAX_AGE_S - REFRESH_S
    with pytest.raises(JwkSetUnavailable):
        await keys.find("first", "RS256")
    published.status = 200
    clock.now += MIN_FETCH_INTERVAL_S
    assert await keys.find("first", "RS256")


async def test_all_who_come_after_a_quiet_hour_wait_for_the_new_set(
    keys: JwkSet, published: Provider, clock: Clock
) -> None:
    clock.now += MAX_AGE_S + 1
    found = await asyncio.gather(*(keys.find("first", "RS256") for _ in range(4)))
    assert (len(set(map(id, found))), published.request_count) == (1, 2)


@pytest.mark.parametrize("status", [302, 404, 500])
async def test_where_no_set_was_ever_had_nobody_is_called_a_forger(
    status: int, published: Provider, clock: Clock
) -> None:
    published.status = status
    keys = JwkSet(published.url, clock=clock)
    with pytest.raises(JwkSetUnavailable) as refused:
        await keys.find("first", "RS256")
    assert refused.value.retryable
    assert published.request_count == 1


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"keys":7}', b"\xff", b"[" * 100_000])
async def test_what_is_no_key_set_is_told_as_such(content: bytes) -> None:
    with pytest.raises(JwkSetUnavailable):
        await JwkSet("", fetch=lambda _: content).find("first", "RS256")


def test_a_set_longer_than_any_is_not_read_on(published: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_web_tokens, "MAX_BYTES", 100)
    with pytest.raises(ValueError, match="longer than 100 bytes"):
        download(published.url)


def test_a_redirect_is_not_followed(published: Provider) -> None:
    published.status = 302
    with pytest.raises(OSError, match="302"):
        download(published.url)
    assert published.request_count == 1


@pytest.mark.parametrize(
    "odd",
    [
        jwk(rsa_key(), kid="x", use="enc"),
        jwk(rsa_key(), kid="x", alg="RS512"),
        jwk(rsa_key(bits=1024), kid="x"),
        jwk(ec_key(ec.SECP384R1), kid="x"),
        RSAAlgorithm.to_jwk(rsa_key(), as_dict=True) | {"kid": "x"},
        ECAlgorithm.to_jwk(ec_key(), as_dict=True) | {"kid": "x"},
        {"kty": "oct", "k": "AAAA", "kid": "x"},
        {"kty": "RSA", "n": "AQAB", "kid": "x"},
        {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA", "kid": "x"},
        {"kty": ["RSA"]},
        {"kty": "EC", "crv": ["P-256"]},
        jwk(rsa_key(), kid=["x"]),
        {},
    ],
)
def test_a_key_that_can_not_verify_is_passed_over(odd: dict[str, object]) -> None:
    assert set(parse_jwk_set(key_set(odd, FIRST))) == {("first", "RS256"), (None, "RS256")}


def test_of_several_keys_a_token_has_to_name_one() -> None:
    assert set(parse_jwk_set(key_set(FIRST, SECOND, jwk(ec_key(), kid="e")))) == {
        ("first", "RS256"),
        ("second", "RS256"),
        ("e", "ES256"),
        (None, "ES256"),
    }
