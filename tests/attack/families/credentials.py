"""Keys, tickets and tokens, good and bad ones, in floods."""

from __future__ import annotations

import json
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Callable
from functools import cache

from tests.attack.attack import Family, TargetKind, beats
from tests.attack.client import Attacker
from tests.attack.families.bodies import post

family = Family(sockets=8, ground=TargetKind.KEYS)
KEY_ID = "the-issuers-key"


def _made_up(_: Attacker | None = None) -> str:
    return f"msk_{secrets.token_urlsafe(32)}"


def _forged(key_id: str, signature: bytes) -> str:
    header = {"alg": "RS256", "typ": "JWT", "kid": key_id}
    claims = {"sub": "anybody", "exp": 4_000_000_000}
    parts = (json.dumps(header).encode(), json.dumps(claims).encode(), signature)
    return ".".join(urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


@cache
def _long_token() -> str:
    return _forged(KEY_ID, b"s" * 11_700)


def _tickets(name: str, what: str, key: Callable[[Attacker], str | None]) -> None:
    async def run(attacker: Attacker) -> None:
        async for _ in beats(50):
            await attacker.ask(await attacker.connect(), post("/v1/tickets", b"", key=key(attacker)))
            attacker.close()

    family.add(name, what, run)


def _hellos(name: str, what: str, token: Callable[[], str]) -> None:
    """Say hello with a token, note the answer, and leave."""

    async def run(attacker: Attacker) -> None:
        async for _ in beats(20):
            one = await attacker.handshake()
            await one.put(type="hello", client_id=attacker.client_id, token=token())
            await attacker.answered(one)
            attacker.close()

    family.add(name, what, run)


_tickets("tickets", "Takes tickets with a valid key, and uses none.", lambda me: me.key)
_tickets("tickets-without-a-key", "Asks for tickets with invalid keys.", _made_up)
_hellos("wrong-keys", "Sends `hello` with invalid keys.", _made_up)
_hellos(
    "made-up-key-ids", "Sends tokens with unknown key ids.", lambda: _forged(secrets.token_hex(8), b"s" * 256)
)
_hellos(
    "forged-signatures", "Sends tokens with random signatures.", lambda: _forged(KEY_ID, secrets.token_bytes(256))
)  # fmt: skip
_hellos("long-tokens", "Sends tokens of 16,000 characters.", _long_token)
