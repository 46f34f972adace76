"""What passes for a JWT, and the forgeries that do not."""

from __future__ import annotations

import hashlib
import hmac
import time
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from connections.authentication.json_web_tokens import Claims, JsonWebTokens, JwkSet
from connections.protocol.errors import Unauthenticated
from tests.jwt_signing import SECRET, ec_key, jwk, key_set, pem, rsa_key, sewn, token

LATER = int(time.time()) + 3600


def tokens(*, secret: str | None = SECRET, **claims: Any) -> JsonWebTokens:
    """A verifier that knows a secret, an RSA key and an EC key."""
    content = key_set(
        jwk(rsa_key(), kid="r"),
        jwk(ec_key(), kid="e", use="sig", alg="ES256"),
        {"kty": "oct", "k": "c2VjcmV0LWluLXRoZS1zZXQtMDEyMzQ1Njc4OWFiY2Q", "kid": "o"},
    )
    known = JwkSet("https://provider.example/keys", fetch=lambda _: content)
    return JsonWebTokens(secret=secret, key_set=known, claims=Claims(**claims))


@pytest.mark.parametrize(
    "shown",
    [
        token(),
        token(rsa_key(), "RS256", kid="r"),
        token(ec_key(), "ES256", kid="e"),
        token(rsa_key(), "RS256"),  # the only key for this algorithm needs no name
        token(aud="whoever", iss="anybody"),
    ],
)
async def test_a_token_names_its_subject_until_it_expires(shown: str) -> None:
    identity = await tokens().identify(shown)
    assert identity.principal == "jwt:ann"
    assert identity.expires_at is not None
    assert identity.expires_at > time.time()
    assert identity.key is None


FORGED = {
    "unsigned": sewn({"alg": "none"}, {"sub": "ann", "exp": LATER}),
    "unsigned, spelled otherwise": sewn({"alg": "nOnE"}, {"sub": "ann", "exp": LATER}),
    "no algorithm": sewn({}, {"sub": "ann", "exp": LATER}),
    "signature left out": token().rpartition(".")[0] + ".",
    "another secret": token("another secret, just as long as the first"),
    "another RSA key under a known id": token(rsa_key(1), "RS256", kid="r"),
    "an EC key's id for RSA": token(rsa_key(1), "RS256", kid="e"),
    "an RSA key's id for EC": token(ec_key(), "ES256", kid="r"),
    "an id that nobody has": token(rsa_key(), "RS256", kid="x"),
    "an id that is no text": sewn({"alg": "RS256", "kid": ["r"]}, {"sub": "ann", "exp": LATER}),
    "an algorithm that is not supported": token(rsa_key(), "PS256", kid="r"),
    "a longer HMAC by the same secret": token(SECRET * 2, "HS512"),
    "the set's symmetric key": token("secret-in-the-set-0123456789abcd", "HS256", kid="o"),
    "another curve": token(ec_key(ec.SECP384R1), "ES384", kid="e"),
}


@pytest.mark.parametrize("shown", FORGED.values(), ids=FORGED.keys())
async def test_a_forged_token_is_refused(shown: str) -> None:
    with pytest.raises(Unauthenticated, match="not valid"):
        await tokens().identify(shown)


@pytest.mark.parametrize("secret", [None, SECRET])
async def test_a_public_key_is_never_taken_for_a_secret(secret: str | None) -> None:
    """The classic confusion: HS256 by the text of the RSA key that everybody may read."""
    unsigned = sewn({"alg": "HS256", "kid": "r"}, {"sub": "ann", "exp": LATER}).rpartition(".")[0]
    signature = hmac.digest(pem(rsa_key()), unsigned.encode(), hashlib.sha256)
    forged = f"{unsigned}.{sewn({}, {}, signature).rpartition('.')[2]}"
    with pytest.raises(Unauthenticated):
        await tokens(secret=secret).identify(forged)


async def test_without_a_secret_no_hmac_is_served_and_without_a_set_no_public_key() -> None:
    with pytest.raises(Unauthenticated):
        await tokens(secret=None).identify(token())
    with pytest.raises(Unauthenticated):
        await JsonWebTokens(secret=SECRET, key_set=None, claims=Claims()).identify(
            token(rsa_key(), "RS256", kid="r")
        )


@pytest.mark.parametrize(
    "claims",
    [
        {"exp": None},
        {"sub": None},
        {"sub": 7},
        {"sub": ""},
        {"sub": "x" * 300},
        {"exp": "soon"},
        {"exp": float("inf")},
        {"nbf": LATER},
        {"iat": LATER},
    ],
)
async def test_claims_that_are_missing_or_make_no_sense_are_refused(claims: dict[str, Any]) -> None:
    payload = {"sub": "ann", "exp": LATER} | claims
    head = sewn(
        {"alg": "HS256"}, {name: value for name, value in payload.items() if value is not None}
    ).rpartition(".")[0]
    signature = hmac.digest(SECRET.encode(), head.encode(), hashlib.sha256)
    shown = f"{head}.{sewn({}, {}, signature).rpartition('.')[2]}"
    with pytest.raises(Unauthenticated, match="not valid"):
        await tokens().identify(shown)


async def test_an_expired_token_is_told_as_such_once_its_signature_was_found_good() -> None:
    with pytest.raises(Unauthenticated, match="has expired"):
        await tokens().identify(token(exp=int(time.time()) - 60))
    with pytest.raises(Unauthenticated, match="not valid"):
        await tokens().identify(token("another secret, just as long as the first", exp=1))


@pytest.mark.parametrize(
    ("wanted", "claims"),
    [
        ({"audience": "midstream"}, {"aud": "another"}),
        ({"audience": "midstream"}, {}),
        ({"issuer": "https://us"}, {"iss": "https://them"}),
        ({"issuer": "https://us"}, {}),
    ],
)
async def test_a_token_for_somebody_else_is_refused(wanted: dict[str, str], claims: dict[str, str]) -> None:
    with pytest.raises(Unauthenticated):
        await tokens(**wanted).identify(token(**claims))


async def test_a_token_for_us_is_taken() -> None:
    verifier = tokens(audience="midstream", issuer="https://us")
    assert await verifier.identify(token(aud=["other", "midstream"], iss="https://us"))


@given(st.one_of(st.text(max_size=60), st.text("abcXYZ012-_.=", max_size=60)))
async def test_any_other_text_is_refused(shown: str) -> None:
    with pytest.raises(Unauthenticated):
        await tokens().identify(shown)


@pytest.mark.parametrize("header", ["[" * 10_000, '{"a":' * 5_000])
async def test_a_header_that_is_nested_without_measure_is_refused(header: str) -> None:
    deep = sewn({}, {}, header.encode()).rpartition(".")[2]
    with pytest.raises(Unauthenticated):
        await tokens().identify(f"{deep}.e30.AA")
