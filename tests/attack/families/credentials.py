"""Keys, tickets and tokens, good and bad ones, in floods."""

from __future__ import annotations

import json
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Callable

from tests.attack.attack import Family, TargetKind
from tests.attack.client import Attacker
from tests.attack.requests import frame, post

family = Family(sockets=8, ground=TargetKind.KEYS)
KEY_ID = "the-issuers-key"
UNAUTHENTICATED = "error unauthenticated"
ACTS = (
    "GET /v1/admin/turns",
    "GET /v1/admin/export?principal=a&client_id=b",
    "DELETE /v1/admin/owner?principal=a",
    "DELETE /v1/admin/connections?principal=a",
    "GET /v1/admin/unknown/" + "x" * 4_000,
    "POST /v1/admin/keys",
)


def _made_up(_: Attacker | None = None) -> str:
    return f"msk_{secrets.token_urlsafe(32)}"


def _forged(key_id: str, signature: bytes) -> str:
    header = {"alg": "RS256", "typ": "JWT", "kid": key_id}
    claims = {"sub": "anybody", "exp": 4_000_000_000}
    parts = (json.dumps(header).encode(), json.dumps(claims).encode(), signature)
    return ".".join(urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


LONG_TOKEN = _forged(KEY_ID, b"s" * 11_700)


def _act(_: Attacker, number: int) -> bytes:
    act = ACTS[number % len(ACTS)]
    return f"{act} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {_made_up()}\r\n\r\n".encode()


def _hello(name: str, what: str, token: Callable[[], str]) -> None:
    """Say hello with a token, note the answer, and leave."""

    async def visit(attacker: Attacker) -> None:
        one = await attacker.handshake()
        await one.write(frame("hello", client_id=attacker.client_id, token=token()))
        await attacker.answered(one)

    family.visits(name, what, visit, per_s=20, expect=UNAUTHENTICATED)


def _tickets(name: str, what: str, key: Callable[[Attacker], str | None], expect: str) -> None:
    async def visit(attacker: Attacker) -> None:
        await attacker.ask(post("/v1/tickets", b"", key=key(attacker)))

    family.visits(name, what, visit, per_s=50, expect=expect)


_tickets("tickets", "Takes tickets with a valid key, and uses none.", lambda me: me.key, "HTTP 200")
_tickets("tickets-without-a-key", "Asks for tickets with invalid keys.", _made_up, "HTTP 401")
_hello("wrong-keys", "Sends `hello` with invalid keys.", _made_up)
_hello(
    "made-up-key-ids", "Sends tokens with unknown key ids.", lambda: _forged(secrets.token_hex(8), b"s" * 256)
)
_hello(
    "forged-signatures",
    "Sends tokens with random signatures.",
    lambda: _forged(KEY_ID, secrets.token_bytes(256)),
)
_hello("long-tokens", "Sends tokens of 16,000 characters.", lambda: LONG_TOKEN)
family.ask_often(
    "guessed-operators",
    "Calls the admin API with invalid keys.",
    _act,
    per_s=100,
    sockets=4,
    expect="HTTP 401",
)
