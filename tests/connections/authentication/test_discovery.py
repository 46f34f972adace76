"""An issuer says where its keys are, and nobody says so in its place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from connections.authentication.json_web_tokens import JwkSet, JwkSetUnavailable, fetch_jwk_set
from tests.jwt_signing import Provider, jwk, provider, rsa_key


@pytest.fixture
def issuer() -> Iterator[Provider]:
    with provider(jwk(rsa_key(), kid="k")) as serving:
        yield serving


async def test_keys_are_found_by_the_issuers_url_alone(issuer: Provider) -> None:
    found = await JwkSet(issuer.issuer, fetch=fetch_jwk_set).find("k", "RS256")
    assert found.key.public_numbers() == rsa_key().public_key().public_numbers()
    assert issuer.request_count == 2


@pytest.mark.parametrize(
    "configuration",
    [
        {"issuer": "https://another.example"},
        {"issuer": None},
        {"jwks_uri": "file:///etc/passwd"},
        {"jwks_uri": "ftp://127.0.0.1/keys"},
        {"jwks_uri": 7},
    ],
)
async def test_a_configuration_that_is_not_the_issuers_own_gives_no_keys(
    issuer: Provider, configuration: dict[str, Any]
) -> None:
    issuer.configuration |= configuration
    with pytest.raises(JwkSetUnavailable):
        await JwkSet(issuer.issuer, fetch=fetch_jwk_set).find("k", "RS256")


@pytest.mark.parametrize("missing", ["issuer", "jwks_uri"])
def test_a_configuration_that_lacks_something_is_told_by_what_it_lacks(
    issuer: Provider, missing: str
) -> None:
    del issuer.configuration[missing]
    with pytest.raises(ValueError, match="names no issuer, or no jwks_uri"):
        fetch_jwk_set(issuer.issuer)


def test_a_slash_at_the_issuers_end_is_its_own(issuer: Provider) -> None:
    issuer.configuration["issuer"] = f"{issuer.issuer}/"
    assert b"keys" in fetch_jwk_set(f"{issuer.issuer}/")
    with pytest.raises(ValueError, match="belongs to another issuer"):
        fetch_jwk_set(issuer.issuer)
